//! [`verified`]: a translated program of the `generic` hook, run once in the product's runtime.

use anyhow::Result;
use ringfence_host::maps::{DEFAULT_MAP_BYTES, Owner};
use ringfence_host::{Engine, Instance, Limits, MapRegistry, PolicyModule, ScopeRules};
use ringfence_translator::WasmModule;

/// Runs it over `memory`, which is copied in and out, with maps of its own; the result is r0.
///
/// # Errors
/// Why it could not be set up, or the fault that stopped it.
pub fn verified(module: WasmModule, memory: &mut [u8], fuel: u64) -> Result<u64> {
    let engine = Engine::global()?;
    let policy = PolicyModule::compile(engine, module)?;
    let owner = Owner { policy: policy.name().to_owned(), communicator: 0 };
    let maps =
        MapRegistry::new(engine, DEFAULT_MAP_BYTES).resolve(policy.maps(), &ScopeRules::default(), &owner)?;
    Ok(Instance::new(&policy, &maps, Limits { fuel: Some(fuel) })?.run_generic(memory)?)
}
