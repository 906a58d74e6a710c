//! [`Engine`]: the process's one Wasm engine, with every setting and the reason for it.
//!
//! The process belongs to a training job, not to us: the engine installs no signal handler, reserves no address
//! space beyond what memories use, starts no thread of its own, and cannot make a system call on the decision path.

use crate::error::{Error, ErrorKind, Result};
use once_cell::sync::OnceCell;
use ringfence_translator::wasm::chain::{ChainModule, DecisionLayout, Link};
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use wasmtime::{Config, OperatorCost, OptLevel};

/// A Wasm engine with Ringfence's settings. Cheap to clone; shared memories and modules belong to one engine.
#[derive(Clone)]
pub struct Engine {
    inner: wasmtime::Engine,
    /// The modules that run chains, by what their policies do with the decision.
    chains: Arc<Mutex<BTreeMap<Vec<Link>, Chain>>>,
}

/// A module that runs a chain, and what is known of its code.
type Chain = (wasmtime::Module, Arc<ChainModule>);

/// Machine stack that Wasm code may use, in bytes. Wasmtime does not compare it with the thread's real stack, so it must
/// be small: 64 KiB on a thread of 64 KiB kills the process, 32 KiB traps cleanly on every thread that is larger.
/// It holds eight eBPF frames (whose 512-byte stacks live in the private memory, not here) with some 4 KiB each of spilled registers.
pub const MAX_WASM_STACK: usize = 32 << 10;

/// Fuel of one call instruction. The others cost 1; a call may be one of a helper, which takes about this many times longer.
/// The translator's bound on a policy's fuel counts the same.
pub const CALL_FUEL: u8 = ringfence_translator::wasm::cost::CALL_COST as u8;

static GLOBAL: OnceCell<Engine> = OnceCell::new();

impl Engine {
    /// The engine of this process, made at the first call (0.1 to 0.5 ms).
    ///
    /// # Errors
    /// [`ErrorKind::Engine`] when the processor or the platform cannot run it; a later call tries again.
    pub fn global() -> Result<&'static Engine> {
        GLOBAL.get_or_try_init(Engine::new)
    }

    /// Another engine with the same settings, for tests and tools.
    ///
    /// # Errors
    /// As [`Engine::global`].
    pub fn new() -> Result<Engine> {
        let inner = wasmtime::Engine::new(&config())
            .map_err(|e| Error::new(ErrorKind::Engine, format!("cannot set up the Wasm engine: {e:#}")))?;
        Ok(Engine { inner, chains: Arc::default() })
    }

    pub(crate) fn wasmtime(&self) -> &wasmtime::Engine {
        &self.inner
    }

    /// Compiles a module to machine code. Where memory may not be made executable (W^X by `PR_SET_MDWE`, SELinux)
    /// this is an error value, and NCCL's own choice stays in force.
    pub(crate) fn compile(&self, wasm: &[u8]) -> Result<wasmtime::Module> {
        wasmtime::Module::from_binary(&self.inner, wasm)
            .map_err(|e| Error::new(ErrorKind::Compile, format!("cannot compile the module: {e:#}")))
    }
}

impl Engine {
    /// The module that runs a chain of such policies, compiled at its first use (1 to 2 ms); `None` if there is none of that length.
    pub(crate) fn chain(&self, links: &[Link], layout: DecisionLayout) -> Result<Option<Chain>> {
        /// Sets that a process sees have few chains; more come only from reloads.
        const MOST: usize = 32;
        let mut chains = self.chains.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(chain) = chains.get(links) {
            return Ok(Some(chain.clone()));
        }
        let Some(code) = ChainModule::new(links, layout) else { return Ok(None) };
        if chains.len() >= MOST {
            chains.clear();
        }
        let chain = (self.compile(code.bytes())?, Arc::new(code));
        Ok(Some(chains.entry(links.to_vec()).or_insert(chain).clone()))
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Engine")
    }
}

/// All settings; each line says why. Costs are from a 2-core x86-64 machine.
fn config() -> Config {
    let mut c = Config::new();
    confinement(&mut c);
    memories(&mut c);
    code(&mut c);
    c
}

/// What a policy may do, and what the engine may do to the process.
fn confinement(c: &mut Config) {
    // Bounds are checked in code instead of by SIGSEGV: handlers would outlive a dlclose of this library, and would
    // be cut off by a host that installs its own later (Python's faulthandler). Costs below 0.5 ns an access.
    c.signals_based_traps(false);
    // Every policy ends. Fuel, unlike time, ends all ranks at the same instruction. About 1 ns a call.
    c.consume_fuel(true);
    c.operator_cost(OperatorCost { Call: CALL_FUEL, ..OperatorCost::default() });
    c.max_wasm_stack(MAX_WASM_STACK);
    // Each map is a memory of its own, shared between the stores of several communicators.
    c.wasm_multi_memory(true);
    c.wasm_threads(true);
    c.shared_memory(true);
    // What the translator never emits stays off, so that a module from elsewhere does not even validate.
    c.wasm_simd(false);
    c.wasm_relaxed_simd(false);
    c.wasm_memory64(false);
    c.wasm_tail_call(false);
    // One frame tells the source line of a trap. It is taken only when a trap happens: calls that return pay nothing.
    c.wasm_backtrace_max_frames(NonZeroUsize::new(1));
    // Or WASMTIME_BACKTRACE_DETAILS in the job's environment would switch DWARF parsing on.
    c.wasm_backtrace_details(wasmtime::WasmBacktraceDetails::Disable);
}

/// Memories: all have minimum = maximum, so nothing is reserved for growth and each bound is one constant.
fn memories(c: &mut Config) {
    c.memory_reservation(64 << 10);
    c.memory_reservation_for_growth(0);
    c.memory_guard_size(0);
    c.guard_before_linear_memory(false);
    c.memory_may_move(false);
    // Copy-on-write images need a memfd per module, and file descriptors of the job; our memories start as zeros.
    c.memory_init_cow(false);
}

/// Code generation.
fn code(c: &mut Config) {
    c.cranelift_opt_level(OptLevel::Speed);
    // Maps machine code to Wasm offsets, hence to source lines of a trap: some bytes a module, nothing at run time.
    c.generate_address_map(true);
    // Registering unwind tables takes a process-wide lock, and other people's profilers need not unwind policies.
    c.native_unwind_info(false);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_engine_per_process() {
        let (a, b) = (Engine::global().unwrap(), Engine::global().unwrap());
        assert!(std::ptr::eq(a, b));
    }

    #[test]
    fn bad_wasm_is_a_compile_error() {
        let e = Engine::global().unwrap().compile(b"\0asm\x02\0\0\0").unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Compile);
    }
}
