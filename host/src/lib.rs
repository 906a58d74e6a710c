//! The Ringfence host: policies compiled, instantiated and called, the maps that they share, and NCCL's interfaces.
//!
//! Principal types, in the order of the data: [`Engine`], [`PolicyModule`], [`MapRegistry`], [`Instance`],
//! [`Decision`], [`CostTable`]. `unsafe` is allowed in [`memory`] and in [`ffi`] alone.
#![deny(unsafe_code)]

mod chunk;
#[cfg(feature = "cli")]
pub mod cli;
pub mod client;
pub mod comm;
pub mod config;
mod constants;
#[cfg(feature = "cli")]
pub mod csv;
pub mod decision;
pub mod endpoint;
pub mod engine;
pub mod env;
pub mod error;
pub mod fault;
#[allow(unsafe_code)]
pub mod ffi;
pub mod hooks;
pub mod host;
pub mod instance;
mod link;
pub mod log;
pub mod maps;
#[allow(unsafe_code)]
pub mod memory;
pub mod metrics;
pub(crate) mod net;
pub mod observe;
pub mod policy;
pub mod policy_set;
pub(crate) mod printk;
pub mod profiler;
pub mod raw;
pub mod reload;
pub mod schema;

pub use config::Source;
pub use decision::{Algo, Applied, CommInfo, CostTable, Costs, Decision, Proto, TunerInput};
pub use endpoint::Endpoint;
pub use engine::Engine;
pub use error::{Error, ErrorKind};
pub use fault::{Fault, TrapCode};
pub use hooks::Hook;
pub use host::Host;
pub use instance::{Instance, Limits};
pub use maps::{Map, MapRegistry, MapSet, Owner, Scope, ScopeRules};
pub use memory::prepare_thread;
pub use policy::{ContentHash, PolicyModule};
pub use policy_set::{LoadError, LoadErrorKind, PolicySet};
pub use schema::{Field, FieldRights, Schema, SchemaError};
