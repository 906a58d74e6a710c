//! The instruction set of RFC 9669: [`Insn`] is one instruction, [`ops`] the table that decoding, encoding and the text form
//! derive from.
pub(crate) mod decode;
pub(crate) mod insn;
pub mod ops;
pub use insn::*;
