//! From a verified program to a Wasm module.
pub mod layout;
