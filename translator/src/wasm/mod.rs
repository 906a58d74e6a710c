//! [`Translator`]: from a verified program to a [`WasmModule`].
//!
//! Reducible control flow becomes structured Wasm ([`control`]), eBPF registers become locals, and each map is a
//! memory of its own ([`memory`]). [`layout`] is the ABI of the result.

mod alu;
mod callback;
pub mod chain;
mod control;
pub mod cost;
mod imports;
pub mod layout;
mod locals;
mod lower;
mod memory;
mod module;
mod regions;
mod tail;

pub use module::{SourceAt, Translator, UnverifiedModule, WasmModule, translate_unverified};

#[cfg(all(test, feature = "asm"))]
mod tests;
