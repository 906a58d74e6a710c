//! NCCL's profiler interface, versions 1 to 7: [`types`] lays it out.

pub(crate) mod names;
#[allow(dead_code, reason = "the plugin side follows")]
pub(crate) mod raw;
pub mod types;
