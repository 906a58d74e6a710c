//! The pure part of the net wrapper: [`Conn`]s and [`Scope`]s behind NCCL's pointers, the [`Requests`] under way, and what of all that a
//! policy on the hook `net` hears ([`watch`]).
//!
//! The calls themselves and NCCL's structures are in [`crate::ffi::net`]. Nothing here waits on the data path: look-ups take no lock,
//! and with no policy on the hook a transfer costs one of them and two loads.

mod conn;
mod requests;
mod scope;
mod table;
mod watch;

pub(crate) use conn::{CONNS, Conn};
pub(crate) use requests::Request;
pub(crate) use scope::{SCOPES, Scope};
pub(crate) use table::{Found, address, pointer};
pub(crate) use watch::{Call, asked, began, consumed, established, finished, request, told};
