//! [`PolicyModule`]: a verified policy as machine code, ready to be instantiated any number of times.

use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::hooks::Hook;
use crate::metrics::Metrics;
use ringfence_translator::wasm::layout;
use ringfence_translator::{Env, MapDecl, SourceLine};
use sha2::{Digest, Sha256};
use std::fmt;
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
    /// The words that byte `offset..offset + size` touches.
    pub(crate) fn of(offset: u32, size: u32) -> Words {
        let (first, last) = (offset / 8, (offset + size.max(1) - 1) / 8);
        Words((first..=last.min(63)).fold(0, |w, i| w | 1 << i))
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

/// Wasm offsets with their source lines, ordered.
pub(crate) type Lines = Vec<(u32, Arc<SourceLine>)>;

/// What the host takes from a translated module.
pub(crate) struct ModuleParts<'a> {
    pub(crate) wasm: &'a [u8],
    pub(crate) name: String,
    pub(crate) section: String,
    pub(crate) env: Arc<Env>,
    pub(crate) maps: Vec<MapDecl>,
    /// Words of the context that the policy may read.
    pub(crate) reads: Words,
    pub(crate) lines: Lines,
}

/// A policy as machine code. Cheap to clone.
#[derive(Clone)]
pub struct PolicyModule(Arc<Inner>);

struct Inner {
    module: wasmtime::Module,
    engine: Engine,
    name: String,
    section: String,
    hook: Hook,
    env: Arc<Env>,
    maps: Vec<MapDecl>,
    reads: Words,
    lines: Lines,
    hash: ContentHash,
    metrics: Metrics,
}

impl PolicyModule {
    pub(crate) fn from_parts(engine: &Engine, parts: ModuleParts<'_>) -> Result<PolicyModule> {
        let unknown = || {
            Error::new(ErrorKind::Module, format!("{}: no hook is called {:?}", parts.name, parts.env.hook))
        };
        let hook = Hook::parse(parts.env.hook).ok_or_else(unknown)?;
        let module = engine.compile(parts.wasm)?;
        check_exports(&module)
            .map_err(|why| Error::new(ErrorKind::Module, format!("{}: {why}", parts.name)))?;
        Ok(PolicyModule(Arc::new(Inner {
            module,
            engine: engine.clone(),
            hook,
            hash: content_hash(hook, parts.wasm, &parts.maps),
            name: parts.name,
            section: parts.section,
            env: parts.env,
            maps: parts.maps,
            reads: parts.reads,
            lines: parts.lines,
            metrics: Metrics::default(),
        })))
    }

    /// Name of the entry function.
    pub fn name(&self) -> &str {
        &self.0.name
    }
    /// ELF section of the entry function.
    pub fn section(&self) -> &str {
        &self.0.section
    }
    /// Where the policy stands.
    pub fn hook(&self) -> Hook {
        self.0.hook
    }
    /// The environment that it was verified against.
    pub fn env(&self) -> &Env {
        &self.0.env
    }
    /// Maps that it declares, in the order of its memories.
    pub fn maps(&self) -> &[MapDecl] {
        &self.0.maps
    }
    /// Hash of code, hook, maps and initial data: equal hashes decide equally.
    pub fn hash(&self) -> ContentHash {
        self.0.hash
    }
    /// Counters over all instances.
    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.0.engine
    }
    pub(crate) fn module(&self) -> &wasmtime::Module {
        &self.0.module
    }
    pub(crate) fn reads(&self) -> Words {
        self.0.reads
    }

    /// Source line of a Wasm offset.
    pub(crate) fn line_at(&self, offset: u32) -> Option<Arc<SourceLine>> {
        let lines = &self.0.lines;
        let i = lines.partition_point(|(at, _)| *at <= offset).checked_sub(1)?;
        Some(lines[i].1.clone())
    }
}

impl fmt::Debug for PolicyModule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PolicyModule({} {} {})", self.0.hook, self.0.name, self.0.hash.short())
    }
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

fn content_hash(hook: Hook, wasm: &[u8], maps: &[MapDecl]) -> ContentHash {
    let mut sha = Sha256::new();
    let mut part = |bytes: &[u8]| {
        // Lengths keep adjacent parts apart.
        sha.update((bytes.len() as u64).to_le_bytes());
        sha.update(bytes);
    };
    part(hook.name().as_bytes());
    part(wasm);
    for m in maps {
        part(m.name.as_bytes());
        part(
            format!("{:?}", (m.kind, m.key_size, m.value_size, m.max_entries, m.flags, m.read_only))
                .as_bytes(),
        );
        part(&m.init);
    }
    ContentHash(sha.finalize().into())
}
