//! libringfence: the C API by which any library asks policies for decisions of its own.
//!
//! [`table`] is the API as data: every type and function of `include/ringfence_host.h`, once. [`header`] makes that file from it,
//! and a test compares the two. [`border`] is behind the functions: it turns C's pointers into checked values, and has all of
//! the crate's `unsafe`. What happens then is [`ringfence_host::client`].
//!
//! The library also exports NCCL's plugin symbols, so that one process can use it for both: policies on NCCL's hooks and on a
//! library's share maps only within one library and one policy source.
#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod border;
mod ctype;
mod error;
#[cfg(test)]
mod header;
mod table;

pub use border::*;
pub use table::*;
