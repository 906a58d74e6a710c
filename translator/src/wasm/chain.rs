//! [`ChainModule`]: a module that calls several policies one after the other, so that a chain costs one entry into the Wasm engine
//! instead of one for each policy.
//!
//! - It imports each policy's entry and private memory as `("policy", "<i>")` and `("memory", "<i>")`, and `("chain", "step")`:
//!   `(r0: i64) -> ()`, called between two policies with what the first returned.
//! - It exports `"entry"`: `(route: i64, channels: i64) -> (route: i64, channels: i64, r0: i64)`, the decision so far and what the
//!   chain left of it, with the last policy's result. A route is `algo | proto << 32`, or -1 for none; 0 channels are none.
//!
//! A policy's decision counts if it returned 0. Nothing is handed to one that neither sees the decision nor decides, nor taken from one
//! that does not decide ([`Link`]). Code between the policies is straight, so its fuel is known: a host that adds
//! [`before`](ChainModule::before) and [`after`](ChainModule::after) to a policy's own has the policy pay for itself alone.

use super::cost::CALL_COST;
use super::layout::{CTX_BASE, CTX_PTR, ENTRY_EXPORT, PRIVATE_PAGES};
use wasm_encoder::{
    CodeSection, EntityType, ExportKind, ExportSection, Function, FunctionSection, ImportSection,
    Instruction, MemArg, MemoryType, Module, TypeSection, ValType,
};

/// Import module of the policies' entries.
pub const POLICY_MODULE: &str = "policy";
/// Import module of their private memories.
pub const MEMORY_MODULE: &str = "memory";
/// Import module and name of the call between two policies.
pub const STEP: (&str, &str) = ("chain", "step");

/// Most policies that one module calls.
pub const MAX_POLICIES: usize = 16;

/// Where a decision lies in the context, in bytes, and how many algorithms and protocols there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecisionLayout {
    /// `u32`, at a multiple of 8: the algorithm. The protocol lies behind it.
    pub algo: u32,
    /// `u32`, at a multiple of 8: channels; 0 says nothing. The four bytes behind it are padding.
    pub channels: u32,
    /// Numbers from here on name no algorithm.
    pub algos: u32,
    /// Numbers from here on name no protocol.
    pub protos: u32,
}

/// What one policy of the chain has to do with the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Link {
    /// It may read the decision so far.
    pub sees: bool,
    /// It may write to its context.
    pub decides: bool,
}

/// See the module's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainModule {
    bytes: Vec<u8>,
    before: Vec<u64>,
    after: Vec<u64>,
}

impl ChainModule {
    /// The module for these policies, in order; `None` for fewer than two or more than [`MAX_POLICIES`].
    pub fn new(links: &[Link], layout: DecisionLayout) -> Option<ChainModule> {
        if !(2..=MAX_POLICIES).contains(&links.len()) {
            return None;
        }
        let mut body = Body::new(layout);
        let (mut before, mut after) = (Vec::new(), Vec::new());
        // Wasmtime charges one unit for entering a function.
        body.fuel = 1;
        for (i, link) in (0..).zip(links) {
            if link.sees || link.decides {
                body.hand_over(i);
            }
            body.call(i);
            before.push(std::mem::take(&mut body.fuel));
            if i as usize + 1 < links.len() {
                body.step();
                after.push(std::mem::take(&mut body.fuel));
            } else {
                body.emit(Instruction::LocalSet(R0));
            }
            if link.decides {
                body.take(i);
            }
        }
        body.finish();
        after.push(body.fuel);
        Some(ChainModule { bytes: encode(links.len() as u32, &body.function), before, after })
    }

    /// The Wasm binary.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
    /// Fuel of the chain's own code before policy `i`'s, since the call of `step` before it or the entry; 0 for a policy that is not there.
    pub fn before(&self, i: usize) -> u64 {
        self.before.get(i).copied().unwrap_or(0)
    }
    /// Fuel of the chain's own code after policy `i`, until `step` runs or the entry returns.
    pub fn after(&self, i: usize) -> u64 {
        self.after.get(i).copied().unwrap_or(0)
    }
}

/// Locals of the entry: two parameters, and three more.
const ROUTE: u32 = 0;
const CHANNELS: u32 = 1;
const R0: u32 = 2;
const ALGO: u32 = 3;
const PROTO: u32 = 4;

const STEP_FUNCTION: u32 = 0;
const FIRST_POLICY: u32 = 1;

const POLICY_TYPE: u32 = 0;
const STEP_TYPE: u32 = 1;
const ENTRY_TYPE: u32 = 2;

/// The entry's code, and the fuel of it since it was last taken.
struct Body {
    function: Function,
    layout: DecisionLayout,
    fuel: u64,
}

impl Body {
    fn new(layout: DecisionLayout) -> Body {
        Body { function: Function::new([(3, ValType::I64)]), layout, fuel: 0 }
    }

    fn emit(&mut self, instruction: Instruction<'_>) {
        self.fuel += match instruction {
            Instruction::Call(_) => CALL_COST,
            Instruction::End => 0,
            _ => 1,
        };
        self.function.instruction(&instruction);
    }

    /// Policy `i` gets the decision so far.
    fn hand_over(&mut self, i: u32) {
        for (local, at) in [(ROUTE, self.layout.algo), (CHANNELS, self.layout.channels)] {
            self.emit(Instruction::I32Const(CTX_BASE as i32));
            self.emit(Instruction::LocalGet(local));
            self.emit(Instruction::I64Store(field(i, at, 3)));
        }
    }

    fn call(&mut self, i: u32) {
        self.emit(Instruction::I64Const(CTX_PTR as i64));
        self.emit(Instruction::I64Const(0));
        self.emit(Instruction::Call(FIRST_POLICY + i));
    }

    /// Right behind a policy that has a successor.
    fn step(&mut self) {
        self.emit(Instruction::LocalTee(R0));
        self.emit(Instruction::Call(STEP_FUNCTION));
    }

    /// Takes over what policy `i` decided. By fields of 32 bits, as the policy stored them: a load of both at once would wait until both
    /// stores have left the store buffer.
    fn take(&mut self, i: u32) {
        let DecisionLayout { algo, channels, algos, protos } = self.layout;
        self.load(i, algo);
        self.emit(Instruction::LocalTee(ALGO));
        self.load(i, algo + 4);
        self.emit(Instruction::LocalTee(PROTO));
        self.emit(Instruction::I64Const(32));
        self.emit(Instruction::I64Shl);
        self.emit(Instruction::I64Or);
        self.emit(Instruction::I64Const(-1));
        for (local, bound) in [(ALGO, algos), (PROTO, protos)] {
            self.emit(Instruction::LocalGet(local));
            self.emit(Instruction::I64Const(bound.into()));
            self.emit(Instruction::I64LtU);
        }
        self.emit(Instruction::I32And);
        self.emit(Instruction::Select);
        self.if_submitted(ROUTE);
        self.load(i, channels);
        self.if_submitted(CHANNELS);
    }

    fn load(&mut self, i: u32, at: u32) {
        self.emit(Instruction::I32Const(CTX_BASE as i32));
        self.emit(Instruction::I64Load32U(field(i, at, 2)));
    }

    /// `local` becomes the value on the stack, if the policy returned 0.
    fn if_submitted(&mut self, local: u32) {
        self.emit(Instruction::LocalGet(local));
        self.emit(Instruction::LocalGet(R0));
        self.emit(Instruction::I64Eqz);
        self.emit(Instruction::Select);
        self.emit(Instruction::LocalSet(local));
    }

    fn finish(&mut self) {
        for local in [ROUTE, CHANNELS, R0] {
            self.emit(Instruction::LocalGet(local));
        }
        self.emit(Instruction::End);
    }
}

fn field(memory: u32, at: u32, align: u32) -> MemArg {
    MemArg { offset: at.into(), align, memory_index: memory }
}

fn encode(policies: u32, entry: &Function) -> Vec<u8> {
    let wide = |n: usize| vec![ValType::I64; n];
    let mut types = TypeSection::new();
    types.ty().function(wide(2), wide(1));
    types.ty().function(wide(1), wide(0));
    types.ty().function(wide(2), wide(3));
    let mut functions = FunctionSection::new();
    functions.function(ENTRY_TYPE);
    let mut exports = ExportSection::new();
    exports.export(ENTRY_EXPORT, ExportKind::Func, FIRST_POLICY + policies);
    let mut code = CodeSection::new();
    code.function(entry);
    let mut module = Module::new();
    module.section(&types).section(&imports(policies)).section(&functions);
    module.section(&exports).section(&code);
    module.finish()
}

fn imports(policies: u32) -> ImportSection {
    let mut imports = ImportSection::new();
    imports.import(STEP.0, STEP.1, EntityType::Function(STEP_TYPE));
    let pages = u64::from(PRIVATE_PAGES);
    let memory = MemoryType {
        minimum: pages,
        maximum: Some(pages),
        memory64: false,
        shared: false,
        page_size_log2: None,
    };
    for i in 0..policies {
        imports.import(POLICY_MODULE, &i.to_string(), EntityType::Function(POLICY_TYPE));
    }
    for i in 0..policies {
        imports.import(MEMORY_MODULE, &i.to_string(), memory);
    }
    imports
}

#[cfg(all(test, feature = "asm"))]
mod tests {
    use super::*;
    use wasmparser::{Operator, Parser, Payload, Validator, WasmFeatures};

    const LAYOUT: DecisionLayout = DecisionLayout { algo: 64, channels: 72, algos: 7, protos: 3 };

    /// All kinds of links, in turn.
    fn links(n: usize) -> Vec<Link> {
        (0..n).map(|i| Link { sees: i % 4 != 1, decides: i % 3 != 1 }).collect()
    }

    #[test]
    fn there_is_a_valid_module_for_each_length() {
        assert!([1, MAX_POLICIES + 1].into_iter().all(|n| ChainModule::new(&links(n), LAYOUT).is_none()));
        for n in 2..=MAX_POLICIES {
            let module = ChainModule::new(&links(n), LAYOUT).unwrap();
            let features = WasmFeatures::WASM2;
            Validator::new_with_features(features | WasmFeatures::MULTI_MEMORY)
                .validate_all(module.bytes())
                .unwrap();
        }
    }

    #[test]
    fn the_fuel_is_that_of_the_code_between_the_calls() {
        for offset in 0..12 {
            the_fuel_is(&links(offset + 3)[offset..]);
        }
    }

    fn the_fuel_is(links: &[Link]) {
        let module = ChainModule::new(links, LAYOUT).unwrap();
        // The entry, and each call, closes a stretch.
        let mut stretches = vec![1];
        for payload in Parser::new(0).parse_all(module.bytes()) {
            let Ok(Payload::CodeSectionEntry(body)) = payload else { continue };
            for op in body.get_operators_reader().unwrap() {
                let last = stretches.last_mut().unwrap();
                match op.unwrap() {
                    Operator::Call { .. } => {
                        *last += CALL_COST;
                        stretches.push(0);
                    }
                    Operator::End => {}
                    _ => *last += 1,
                }
            }
        }
        // entry .. policy 0 .. step .. policy 1 .. step .. policy 2 .. end
        let ours: Vec<u64> = (0..3).flat_map(|i| [module.before(i), module.after(i)]).collect();
        assert_eq!(ours, stretches);
    }
}
