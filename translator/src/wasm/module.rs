//! [`Translator`] and [`WasmModule`]: a verified program as a Wasm module, and where its code came from.

use super::control;
use super::imports::{Imports, Input, WALK_ARGS};
use super::layout::{
    ENTRY_EXPORT, HELPER_MODULE, MAP_MODULE, MEMORY_EXPORT, PRIVATE_PAGES, PRIVATE_TAG, SLOT_MODULE,
    STACK_TOP, WALK_MODULE,
};
use super::lower::{CALL_PARAMS, Lower, pointer};
use crate::cfg::Cfg;
use crate::error::{At, Error, ErrorKind, Stage};
use crate::isa::{Insn, Pc};
use crate::map::MapDecl;
use crate::program::{Program, SourceLine};
use crate::verify::{CtxLayout, Env, Fact, HelperSig, Region, Verified};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use wasm_encoder::{
    CodeSection, ConstExpr, EntityType, ExportKind, ExportSection, Function, FunctionSection, GlobalSection,
    GlobalType, ImportSection, IndirectNameMap, MemorySection, MemoryType, Module, NameMap, NameSection,
    TypeSection, ValType,
};

/// Most bytes of a function's body that Wasm engines accept (wasmparser's `MAX_WASM_FUNCTION_SIZE`).
const MAX_BODY_BYTES: usize = 7_654_321;

/// Translates verified programs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Translator {
    check_regions: bool,
}

impl Translator {
    /// A translator.
    pub fn new() -> Translator {
        Translator { check_regions: false }
    }

    /// The module traps where an access is not wholly inside the region that was proved, the context, the active
    /// stack or one value of the map. For tests of the verifier: a proof needs no such check.
    #[cfg(feature = "interp")]
    pub fn check_regions(self) -> Translator {
        Translator { check_regions: true }
    }

    /// The Wasm module of a program, in the ABI of [`layout`](super::layout). The same program with the same facts gives
    /// the same bytes.
    ///
    /// # Errors
    /// `TooLarge` for a function of more than 7.6 MB of Wasm, `BadMap` for a map that
    /// does not fit into a memory.
    pub fn translate(&self, verified: &Verified) -> Result<WasmModule, Error> {
        let program = verified.program();
        let env = verified.env();
        let check_regions = self.check_regions.then(|| env.ctx.size());
        let input = Input {
            program,
            facts: Some(verified.facts()),
            helpers: &env.helpers,
            check_regions,
            ctx_size: ctx_size(env),
        };
        let output = Output::new(&input)?;
        Ok(WasmModule {
            output,
            env: Arc::clone(env),
            ctx_reads: ctx_reads(verified),
            ctx_writes: ctx_writes(verified),
            max_fuel: verified.stats().max_fuel,
        })
    }
}

/// A verified program as a Wasm module. Only [`Translator::translate`] makes one:
///
/// ```compile_fail
/// let forged = ringfence_translator::WasmModule { bytes: Vec::new() };
/// ```
#[derive(Clone, Debug)]
pub struct WasmModule {
    output: Output,
    env: Arc<Env>,
    ctx_reads: Vec<Range<u32>>,
    ctx_writes: bool,
    max_fuel: u64,
}

impl WasmModule {
    /// The module in Wasm's binary format.
    pub fn bytes(&self) -> &[u8] {
        &self.output.bytes
    }
    /// Maps, in the order of the imported memories.
    pub fn maps(&self) -> &[MapDecl] {
        self.output.program.maps()
    }
    /// Numbers of the imported helpers, ascending. Array look-ups are inlined and not among them.
    pub fn helpers(&self) -> &[u32] {
        &self.output.helpers
    }
    /// The environment that the program was verified against.
    pub fn env(&self) -> &Arc<Env> {
        &self.env
    }
    /// Name of the entry function.
    pub fn name(&self) -> &str {
        self.output.program.name()
    }
    /// ELF section of the entry function; empty for raw code.
    pub fn section(&self) -> &str {
        self.output.program.section()
    }
    /// Most fuel that a run takes, proved: see [`Stats::max_fuel`](crate::verify::Stats::max_fuel).
    pub fn max_fuel(&self) -> u64 {
        self.max_fuel
    }
    /// Bytes of the context that the program may read, itself or through a helper: ascending, disjoint, not
    /// adjacent. The host need not fill others.
    pub fn ctx_reads(&self) -> &[Range<u32>] {
        &self.ctx_reads
    }
    /// May the program write to its context? One that does not decides nothing.
    pub fn ctx_writes(&self) -> bool {
        self.ctx_writes
    }
    /// Where the code at a byte offset of [`bytes`](Self::bytes) came from; `None` outside the program's functions.
    /// wasmtime's `FrameInfo::module_offset` is such an offset.
    pub fn source_at(&self, wasm_offset: usize) -> Option<SourceAt<'_>> {
        self.output.source_at(wasm_offset)
    }
    /// The whole table behind [`source_at`](Self::source_at): (byte offset where the code of an instruction starts, its source),
    /// ascending. For a host that keeps machine code, but not the module.
    pub fn sources(&self) -> impl Iterator<Item = (u32, SourceAt<'_>)> {
        self.output.pcs.iter().filter_map(|(at, pc)| Some((*at, self.output.source((*pc)?))))
    }
}

/// A program that **nobody verified** as a Wasm module, for tests of the instruction set and for tools. The sandbox
/// holds (it can reach its own memories and the helpers on offer, no more), but it may loop, trap and return
/// anything. Nothing in the plugin takes one: [`WasmModule`] is another type and cannot be made from it.
#[derive(Clone, Debug)]
pub struct UnverifiedModule {
    output: Output,
}

impl UnverifiedModule {
    /// The module in Wasm's binary format.
    pub fn bytes(&self) -> &[u8] {
        &self.output.bytes
    }
    /// Maps, in the order of the imported memories.
    pub fn maps(&self) -> &[MapDecl] {
        self.output.program.maps()
    }
    /// Numbers of the imported helpers, ascending. Each takes all five argument registers.
    pub fn helpers(&self) -> &[u32] {
        &self.output.helpers
    }
    /// Name of the entry function.
    pub fn name(&self) -> &str {
        self.output.program.name()
    }
    /// As [`WasmModule::source_at`].
    pub fn source_at(&self, wasm_offset: usize) -> Option<SourceAt<'_>> {
        self.output.source_at(wasm_offset)
    }
}

/// Translates a program **without verifying it**; see [`UnverifiedModule`]. `helpers` are on offer; each is imported with
/// five arguments. Every access is checked at run time, and calls nest eight deep at most.
///
/// # Errors
/// As [`Translator::translate`], and `NotFound` for a helper that is not on offer.
pub fn translate_unverified(program: &Program, helpers: &[HelperSig]) -> Result<UnverifiedModule, Error> {
    let output = Output::new(&Input { program, facts: None, helpers, check_regions: None, ctx_size: 0 })?;
    Ok(UnverifiedModule { output })
}

/// r2 of an entry function.
fn ctx_size(env: &Env) -> u32 {
    match env.ctx {
        CtxLayout::Buffer { size } => size,
        CtxLayout::Fields { .. } => 0,
    }
}

/// Where a piece of Wasm came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SourceAt<'a> {
    /// Name of the function.
    pub func: &'a str,
    /// The instruction.
    pub pc: Pc,
    /// Its source line, where the object has line info.
    pub line: Option<&'a SourceLine>,
}

/// What both kinds of modules hold.
#[derive(Clone, Debug)]
struct Output {
    bytes: Vec<u8>,
    program: Program,
    helpers: Vec<u32>,
    /// (offset in `bytes`, instruction whose code starts there), ascending; `None` ends a function.
    pcs: Vec<(u32, Option<Pc>)>,
}

impl Output {
    fn new(input: &Input<'_>) -> Result<Output, Error> {
        let imports = Imports::new(input)?;
        let bodies = bodies(input, &imports)?;
        let (bytes, pcs) = assemble(input, &imports, &bodies);
        Ok(Output {
            bytes,
            program: input.program.clone(),
            helpers: imports.helpers.keys().copied().collect(),
            pcs,
        })
    }

    fn source_at(&self, wasm_offset: usize) -> Option<SourceAt<'_>> {
        let i = self.pcs.partition_point(|(at, _)| *at as usize <= wasm_offset);
        Some(self.source(self.pcs[i.checked_sub(1)?].1?))
    }

    fn source(&self, pc: Pc) -> SourceAt<'_> {
        SourceAt { func: &self.program.func_at(pc).name, pc, line: self.program.line_at(pc) }
    }
}

/// The bytes for any facts, to test that wrong ones do no harm.
#[cfg(test)]
pub(super) fn output_bytes(input: &Input<'_>) -> Result<Vec<u8>, Error> {
    Output::new(input).map(|output| output.bytes)
}

/// One Wasm function.
struct Body {
    name: String,
    params: u32,
    function: Function,
    locals: Vec<String>,
    /// (offset in the body, instruction).
    pcs: Vec<(u32, Pc)>,
}

/// All functions of the module; the exported one is the first, or the last if the first is called too.
fn bodies(input: &Input<'_>, imports: &Imports) -> Result<Vec<Body>, Error> {
    let entry_called = entry_called(input.program);
    let mut bodies = Vec::new();
    for (i, func) in input.program.funcs().iter().enumerate() {
        let entry = i == 0 && !entry_called;
        let cfg = Cfg::new(input.program, func, input)?;
        let mut lower = Lower::new(input, imports, entry);
        control::emit(&cfg, &mut lower)?;
        let body = Body::new(func.name.clone(), if entry { 2 } else { CALL_PARAMS.len() as u32 }, lower);
        if body.function.byte_len() > MAX_BODY_BYTES {
            let at = At::Insn { func: func.name.clone(), pc: func.start };
            let text = format!("{} bytes of Wasm, at most {MAX_BODY_BYTES}", body.function.byte_len());
            return Err(Error::new(Stage::Translate, ErrorKind::TooLarge, at, text));
        }
        bodies.push(body);
    }
    if entry_called {
        bodies.push(Body::trampoline(input, imports));
    }
    Ok(bodies)
}

/// Does a call lead to the entry function, or a tail call anywhere? The first is recursion, so only in an unverified
/// program.
fn entry_called(program: &Program) -> bool {
    has_tails(program) || program.iter().any(|(_, insn)| matches!(insn, Insn::CallLocal { target: Pc(0) }))
}

/// Has the program targets of tail calls, and so a global that counts them?
fn has_tails(program: &Program) -> bool {
    !program.tails.is_empty()
}

impl Body {
    fn new(name: String, params: u32, lower: Lower<'_>) -> Body {
        let mut function = Function::new_with_locals_types(lower.locals.declared());
        let header = function.byte_len() as u32;
        function.raw(lower.code);
        Body {
            name,
            params,
            function,
            locals: lower.locals.names().collect(),
            pcs: lower.pcs.iter().map(|(at, pc)| (at + header, *pc)).collect(),
        }
    }

    /// What is exported where the entry function is called by the program too.
    fn trampoline(input: &Input<'_>, imports: &Imports) -> Body {
        let mut lower = Lower::new(input, imports, true);
        let index = imports.func(0);
        if has_tails(input.program) {
            lower.ops().i32_const(0).global_set(imports.tail_count());
        }
        lower.ops().local_get(0).local_get(1).i64_const(0).i64_const(0).i64_const(0);
        lower.ops().i64_const(pointer(PRIVATE_TAG, STACK_TOP)).call(index).end();
        Body::new("entry".into(), 2, lower)
    }
}

/// Puts the sections together; also returns the map from offsets to instructions.
fn assemble(input: &Input<'_>, imports: &Imports, bodies: &[Body]) -> (Vec<u8>, Vec<(u32, Option<Pc>)>) {
    let walks = imports.walks.iter().map(|_| WALK_ARGS);
    let arities: BTreeSet<u32> =
        imports.helpers.values().copied().chain(walks).chain(bodies.iter().map(|b| b.params)).collect();
    let type_of = |arity: u32| arities.range(..arity).count() as u32;
    let mut types = TypeSection::new();
    for &arity in &arities {
        types.ty().function(vec![ValType::I64; arity as usize], [ValType::I64]);
    }
    let mut functions = FunctionSection::new();
    let mut code = CodeSection::new();
    let mut starts = Vec::new();
    for body in bodies {
        functions.function(type_of(body.params));
        code.function(&body.function);
        starts.push(code.byte_len() - body.function.byte_len());
    }
    let mut module = Module::new();
    module
        .section(&types)
        .section(&import_section(imports, type_of))
        .section(&functions)
        .section(&private_memory());
    if has_tails(input.program) {
        let ty = GlobalType { val_type: ValType::I32, mutable: true, shared: false };
        module.section(GlobalSection::new().global(ty, &ConstExpr::i32_const(0)));
    }
    module.section(&exports(imports, bodies)).section(&code);
    let base = module.len() - code.byte_len();
    let mut pcs = Vec::new();
    for (body, start) in bodies.iter().zip(starts) {
        let at = |offset: u32| (base + start) as u32 + offset;
        pcs.extend(body.pcs.iter().map(|(offset, pc)| (at(*offset), Some(*pc))));
        pcs.push((at(body.function.byte_len() as u32), None));
    }
    module.section(&names(input, imports, bodies));
    (module.finish(), pcs)
}

fn import_section(imports: &Imports, type_of: impl Fn(u32) -> u32) -> ImportSection {
    let mut section = ImportSection::new();
    for (k, map) in imports.maps.iter().enumerate() {
        let pages = u64::from(map.pages);
        section.import(MAP_MODULE, &k.to_string(), EntityType::Memory(memory(pages, true)));
    }
    for (id, arity) in &imports.helpers {
        section.import(HELPER_MODULE, &id.to_string(), EntityType::Function(type_of(*arity)));
    }
    for map in &imports.walks {
        section.import(WALK_MODULE, &map.0.to_string(), EntityType::Function(type_of(WALK_ARGS)));
    }
    let ty = GlobalType { val_type: ValType::I64, mutable: false, shared: false };
    for map in &imports.slots {
        section.import(SLOT_MODULE, &map.0.to_string(), EntityType::Global(ty));
    }
    section
}

fn private_memory() -> MemorySection {
    let mut section = MemorySection::new();
    section.memory(memory(u64::from(PRIVATE_PAGES), false));
    section
}

/// A memory that never grows.
fn memory(pages: u64, shared: bool) -> MemoryType {
    MemoryType { minimum: pages, maximum: Some(pages), memory64: false, shared, page_size_log2: None }
}

fn exports(imports: &Imports, bodies: &[Body]) -> ExportSection {
    let entry = bodies.iter().rposition(|b| b.params == 2).unwrap_or(0);
    let mut section = ExportSection::new();
    section.export(MEMORY_EXPORT, ExportKind::Memory, imports.private());
    section.export(ENTRY_EXPORT, ExportKind::Func, imports.func(entry));
    section
}

fn names(input: &Input<'_>, imports: &Imports, bodies: &[Body]) -> NameSection {
    let mut functions = NameMap::new();
    for (i, id) in imports.helpers.keys().enumerate() {
        let name = input.helper(*id).map_or("helper", |h| h.name);
        functions.append(i as u32, &format!("bpf_{name}"));
    }
    for map in &imports.walks {
        let name = input.program.maps().get(usize::from(map.0)).map_or("?", |m| m.name.as_str());
        functions.append(imports.walk(*map).unwrap_or_default(), &format!("walk_{name}"));
    }
    let mut locals = IndirectNameMap::new();
    for (i, body) in bodies.iter().enumerate() {
        functions.append(imports.func(i), &body.name);
        let mut map = NameMap::new();
        for (k, name) in body.locals.iter().enumerate() {
            map.append(k as u32, name);
        }
        locals.append(imports.func(i), &map);
    }
    let mut memories = NameMap::new();
    for (k, map) in input.program.maps().iter().enumerate() {
        memories.append(k as u32, &map.name);
    }
    memories.append(imports.private(), "private");
    let mut section = NameSection::new();
    section.module(input.program.name());
    section.functions(&functions);
    section.locals(&locals);
    section.memories(&memories);
    section
}

/// The fields that the verifier says are read, as byte ranges; all of a buffer.
fn ctx_reads(verified: &Verified) -> Vec<Range<u32>> {
    let ctx = &verified.env().ctx;
    let fields = match ctx {
        CtxLayout::Fields { fields, .. } if fields.len() == verified.ctx_reads().len() => fields,
        CtxLayout::Fields { size, .. } | CtxLayout::Buffer { size } => {
            return std::iter::once(0..*size).filter(|r| !r.is_empty()).collect();
        }
    };
    let mut ranges: Vec<Range<u32>> = Vec::new();
    for (field, _) in fields.iter().zip(verified.ctx_reads()).filter(|(_, read)| **read) {
        let end = field.offset + field.bytes();
        match ranges.last_mut() {
            Some(last) if last.end == field.offset => last.end = end,
            _ => ranges.push(field.offset..end),
        }
    }
    ranges
}

/// Does any instruction that may run write to what may be the context? (No helper writes there.)
fn ctx_writes(verified: &Verified) -> bool {
    let writes = |insn: &Insn| matches!(insn, Insn::Store { .. } | Insn::Atomic { .. });
    let elsewhere = |region| !matches!(region, Region::Ctx | Region::Mixed);
    let to_ctx = |fact: &Fact| !fact.access.is_some_and(|a| elsewhere(a.region));
    verified.program().iter().any(|(pc, insn)| writes(insn) && verified.fact(pc).is_some_and(to_ctx))
}
