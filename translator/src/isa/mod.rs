//! The instruction set of RFC 9669.
pub(crate) mod insn;
pub use insn::*;
