//! The control file of a process: how `ringfence map` reads and writes the maps of a running job. [`frame`] is its layout, [`message`]
//! what is said, `server` the process's side, [`Client`] the tool's.

pub(crate) mod answer;
#[cfg(feature = "cli")]
mod client;
mod frame;
pub mod message;
mod server;

#[cfg(feature = "cli")]
pub use client::{CallError, Client};
pub(crate) use frame::identity_in;
pub(crate) use server::Server;
