//! The Ringfence host.

pub mod config;
pub mod ffi;
mod reload;
