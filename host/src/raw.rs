//! [`run_unverified`]: programs that **nobody verified**, for tests of the instruction set and for tools.
//!
//! The sandbox holds: such a program reaches its own memory and nothing else, and its fuel ends it. Nothing else does: it may
//! loop, trap, read what it never wrote, and return anything. The plugin interface cannot get here: what it calls takes a
//! [`PolicyModule`](crate::policy::PolicyModule) made by `compile`, which takes a verified module.

use crate::engine::Engine;
use crate::error::Error;
use crate::fault::Fault;
use crate::instance::{Instance, Limits};
use crate::maps::{DEFAULT_MAP_BYTES, MapRegistry, Owner, ScopeRules};
use crate::policy::{Code, PolicyModule};
use ringfence_translator::Env;
use ringfence_translator::wasm::UnverifiedModule;
use ringfence_translator::wasm::layout::CTX_MAX;
use std::fmt;
use std::sync::Arc;

/// Why an unverified program gave no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RawError {
    /// It could not be compiled or instantiated.
    Setup(Error),
    /// It ran, and was stopped.
    Fault(Fault),
}

impl fmt::Display for RawError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RawError::Setup(e) => e.fmt(f),
            RawError::Fault(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for RawError {}

/// Runs an unverified program once, in a sandbox of its own with maps of its own, over `mem` (r1 points to a copy of it, r2 is its size; the
/// copy is written back). The result is r0.
///
/// # Errors
/// [`RawError`]; `mem` is unchanged then.
pub fn run_unverified(module: &UnverifiedModule, mem: &mut [u8], fuel: u64) -> Result<u64, RawError> {
    let mut instance = instantiate(module.clone(), Limits { fuel: Some(fuel) }).map_err(RawError::Setup)?;
    instance.run_generic(mem).map_err(RawError::Fault)
}

fn instantiate(module: UnverifiedModule, limits: Limits) -> Result<Instance, Error> {
    let engine = Engine::global()?;
    let policy = PolicyModule::from_code(engine, Code::Unverified(module, Arc::new(Env::generic(CTX_MAX))))?;
    let owner = Owner { policy: "unverified".into(), communicator: 0 };
    let maps =
        MapRegistry::new(engine, DEFAULT_MAP_BYTES).resolve(policy.maps(), &ScopeRules::default(), &owner)?;
    Instance::new(&policy, &maps, limits)
}
