//! [`PolicyModule`]: a verified policy as machine code, ready to be instantiated any number of times.

use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::fault::Place;
use crate::hooks::Hook;
use crate::metrics::Metrics;
use crate::printk::Lines;
use ringfence_guest::abi::helper;
use ringfence_translator::verify::Rights;
use ringfence_translator::wasm::{UnverifiedModule, WasmModule, layout};
use ringfence_translator::{Env, MapDecl};
use sha2::{Digest, Sha256};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// SHA-256 of what decides a policy's behaviour.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContentHash([u8; 32]);

impl ContentHash {
    /// The hash of some bytes.
    pub fn of(bytes: &[u8]) -> ContentHash {
        ContentHash(Sha256::digest(bytes).into())
    }
    /// All 32 bytes.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
    /// The first eight bytes as hex: enough to tell versions apart in a log.
    pub fn short(&self) -> String {
        self.0[..8].iter().map(|b| format!("{b:02x}")).collect()
    }
}

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ContentHash({})", self.short())
    }
}

/// A set of 8-byte words of a context: bit `i` is bytes `8 * i .. 8 * i + 8`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Words(pub(crate) u64);

impl Words {
    /// The words that these bytes touch, up to byte 511.
    fn of(bytes: &Range<u32>) -> Words {
        Words((bytes.start / 8..bytes.end.div_ceil(8)).filter(|i| *i < 64).fold(0, |w, i| w | 1 << i))
    }
    pub(crate) const fn and(self, other: Words) -> Words {
        Words(self.0 | other.0)
    }
    #[inline]
    pub(crate) const fn has(self, word: u32) -> bool {
        self.0 >> word & 1 != 0
    }
    #[inline]
    pub(crate) const fn any(self, of: Words) -> bool {
        self.0 & of.0 != 0
    }
}

/// A translated program of either kind. The plugin only ever makes the first.
pub(crate) enum Code {
    Verified(WasmModule),
    /// For [`raw`](crate::raw) alone.
    Unverified(UnverifiedModule, Arc<Env>),
}

impl Code {
    fn wasm(&self) -> &[u8] {
        match self {
            Code::Verified(m) => m.bytes(),
            Code::Unverified(m, _) => m.bytes(),
        }
    }
    fn maps(&self) -> &[MapDecl] {
        match self {
            Code::Verified(m) => m.maps(),
            Code::Unverified(m, _) => m.maps(),
        }
    }
    fn name(&self) -> &str {
        match self {
            Code::Verified(m) => m.name(),
            Code::Unverified(m, _) => m.name(),
        }
    }
    fn env(&self) -> &Env {
        match self {
            Code::Verified(m) => m.env(),
            Code::Unverified(_, env) => env,
        }
    }
    /// Most fuel that a call takes, where it is proved.
    fn max_fuel(&self) -> Option<u64> {
        match self {
            Code::Verified(m) => Some(m.max_fuel()),
            Code::Unverified(..) => None,
        }
    }
    /// Words of the context that the program may read; all, where nobody knows.
    fn reads(&self) -> Words {
        match self {
            Code::Verified(m) => m.ctx_reads().iter().fold(Words::default(), |w, r| w.and(Words::of(r))),
            Code::Unverified(..) => Words(u64::MAX),
        }
    }
    /// May the program write to its context?
    fn decides(&self) -> bool {
        match self {
            Code::Verified(m) => m.ctx_writes(),
            Code::Unverified(..) => true,
        }
    }
    fn place(&self, wasm_offset: usize) -> Option<Place> {
        let at = match self {
            Code::Verified(m) => m.source_at(wasm_offset),
            Code::Unverified(m, _) => m.source_at(wasm_offset),
        }?;
        Some(Place { func: at.func.to_string(), pc: at.pc, line: at.line.cloned() })
    }
}

/// A policy as machine code. Cheap to clone.
#[derive(Clone)]
pub struct PolicyModule(Arc<Inner>);

struct Inner {
    module: wasmtime::Module,
    engine: Engine,
    hook: Hook,
    code: Code,
    reads: Words,
    /// Bytes of the context that a policy may decide, neighbours joined.
    decided: Box<[Range<usize>]>,
    hash: ContentHash,
    metrics: Arc<Metrics>,
    /// For what it says to the log, if it says anything.
    lines: Option<Arc<Lines>>,
}

impl PolicyModule {
    /// Compiles a translated policy to machine code: 1 ms for 40 Wasm instructions, 10 ms for 5000. The hook is the one whose
    /// environment the policy was verified against. A module that nobody verified is of another type:
    ///
    /// ```no_run
    /// fn compiles(engine: &ringfence_host::Engine, module: ringfence_translator::WasmModule) {
    ///     ringfence_host::PolicyModule::compile(engine, module).ok();
    /// }
    /// ```
    /// ```compile_fail,E0308
    /// fn does_not(engine: &ringfence_host::Engine, module: ringfence_translator::UnverifiedModule) {
    ///     ringfence_host::PolicyModule::compile(engine, module).ok();
    /// }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Compile`], also where memory may not be made executable; [`ErrorKind::Module`] for an environment
    /// that is no hook of this host.
    pub fn compile(engine: &Engine, module: WasmModule) -> Result<PolicyModule> {
        PolicyModule::from_code(engine, Code::Verified(module))
    }

    pub(crate) fn from_code(engine: &Engine, code: Code) -> Result<PolicyModule> {
        let failed =
            |why: &dyn fmt::Display| Error::new(ErrorKind::Module, format!("{}: {why}", code.name()));
        let name = code.env().hook;
        let hook = Hook::parse(name).ok_or_else(|| failed(&format_args!("no hook is called {name:?}")))?;
        let module = engine.compile(code.wasm())?;
        check_exports(&module).map_err(|why| failed(&why))?;
        let (hash, reads) = (content_hash(hook, &code), code.reads());
        let (engine, decided) = (engine.clone(), decided(code.env()));
        let lines = imports_helper(&module, helper::TRACE_PRINTK).then(|| Arc::new(Lines::new()));
        Ok(PolicyModule(Arc::new(Inner {
            module,
            engine,
            hook,
            code,
            reads,
            decided,
            hash,
            metrics: Arc::default(),
            lines,
        })))
    }

    /// Name of the entry function.
    pub fn name(&self) -> &str {
        self.0.code.name()
    }
    /// ELF section of the entry function; empty for raw code.
    pub fn section(&self) -> &str {
        match &self.0.code {
            Code::Verified(m) => m.section(),
            Code::Unverified(..) => "",
        }
    }
    /// Where the policy stands.
    pub fn hook(&self) -> Hook {
        self.0.hook
    }
    /// The environment that it was verified against.
    pub fn env(&self) -> &Env {
        self.0.code.env()
    }
    /// Maps that it declares, in the order of its memories.
    pub fn maps(&self) -> &[MapDecl] {
        self.0.code.maps()
    }
    /// Hash of code, hook, maps and initial data: equal hashes decide equally.
    pub fn hash(&self) -> ContentHash {
        self.0.hash
    }
    /// Counters over all instances.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.0.metrics
    }

    /// What its instances say to the log, waiting to be written.
    pub(crate) fn lines(&self) -> Option<&Arc<Lines>> {
        self.0.lines.as_ref()
    }
    pub(crate) fn engine(&self) -> &Engine {
        &self.0.engine
    }
    pub(crate) fn module(&self) -> &wasmtime::Module {
        &self.0.module
    }
    /// Most fuel that a call takes: the verifier has proved it. `None` for a program that nobody verified.
    pub fn max_fuel(&self) -> Option<u64> {
        self.0.code.max_fuel()
    }
    pub(crate) fn reads(&self) -> Words {
        self.0.reads
    }
    /// May the policy write to its context?
    pub(crate) fn decides(&self) -> bool {
        self.0.code.decides()
    }
    /// Bytes of the context that the policy may decide.
    #[inline]
    pub(crate) fn decided(&self) -> &[Range<usize>] {
        &self.0.decided
    }

    /// Where the code at a Wasm offset came from.
    pub(crate) fn place(&self, wasm_offset: usize) -> Option<Place> {
        self.0.code.place(wasm_offset)
    }
}

impl fmt::Debug for PolicyModule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PolicyModule({} {} {})", self.0.hook, self.name(), self.0.hash.short())
    }
}

/// The fields of a context with the right to decide, as bytes from low to high; neighbours are joined.
fn decided(env: &Env) -> Box<[Range<usize>]> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for field in env.ctx.fields().iter().filter(|f| f.rights == Rights::ReadWrite) {
        let (start, end) = (field.offset as usize, (field.offset + field.bytes()) as usize);
        match ranges.last_mut().filter(|last| last.end == start) {
            Some(last) => last.end = end,
            None => ranges.push(start..end),
        }
    }
    ranges.into()
}

/// Does a module call the helper of that number?
fn imports_helper(module: &wasmtime::Module, id: u32) -> bool {
    let name = id.to_string();
    module.imports().any(|i| i.module() == layout::HELPER_MODULE && i.name() == name)
}

/// What [`GuestMemory`](crate::memory) relies on: one private memory that never grows.
fn check_exports(module: &wasmtime::Module) -> Result<(), String> {
    let pages = u64::from(layout::PRIVATE_PAGES);
    match module.get_export(layout::MEMORY_EXPORT) {
        Some(wasmtime::ExternType::Memory(m))
            if !m.is_shared() && m.minimum() == pages && m.maximum() == Some(pages) =>
        {
            Ok(())
        }
        other => Err(format!("the private memory is not one of {pages} fixed pages: {other:?}")),
    }
}

fn content_hash(hook: Hook, code: &Code) -> ContentHash {
    let mut sha = Sha256::new();
    let mut part = |bytes: &[u8]| {
        // Lengths keep adjacent parts apart.
        sha.update((bytes.len() as u64).to_le_bytes());
        sha.update(bytes);
    };
    part(hook.name().as_bytes());
    part(code.wasm());
    for m in code.maps() {
        part(m.name.as_bytes());
        part(
            format!(
                "{:?}",
                (m.kind, m.key_size, m.value_size, m.max_entries, m.flags, m.read_only, m.spin_lock)
            )
            .as_bytes(),
        );
        part(&m.init);
    }
    ContentHash(sha.finalize().into())
}
