//! The instruction set of RFC 9669: [`Insn`] is one instruction, [`ops`] the table that decoding, encoding and the text form
//! derive from.
#[cfg(feature = "asm")]
pub mod asm;
pub(crate) mod decode;
pub(crate) mod display;
pub(crate) mod encode;
pub(crate) mod insn;
pub mod ops;
pub mod semantics;
pub use display::InsnText;
pub use insn::*;
