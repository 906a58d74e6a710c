//! Abstract numbers: [`Tnum`] (known bits), [`Range`] (bounds) and [`Scalar`], which keeps both in step at
//! 64 and 32 bits. Every operation is tested against its meaning in `tests.rs`.

pub(crate) mod range;
pub(crate) mod scalar;
#[cfg(test)]
mod tests;
pub(crate) mod tnum;

pub(crate) use scalar::{Rel, Scalar};
pub(crate) use tnum::Tnum;
