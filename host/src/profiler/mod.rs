//! The profiler's state machine, without pointers and without `unsafe`: `Profilers` has the communicators of a process,
//! [`event`] what NCCL tells, [`ProfilerCounters`] every oddity of it, [`Needs`] which events policies need.
//!
//! The ffi side decodes NCCL's structures and calls `Profilers::start`, `stop` and `state` from whatever thread NCCL is on. A handle
//! names its communicator's place ([`comm`]); an operation's events meet in a fixed ring ([`ops`]); a finished one goes to the policies
//! ([`seat`]). Memory is allocated when a communicator starts, and never again.

pub(crate) mod comm;
mod counters;
pub mod event;
pub(crate) mod handle;
mod mask;
mod ops;
pub(crate) mod pairs;
mod policies;
pub(crate) mod seat;
pub(crate) mod summary;
mod table;
mod ticker;
mod work;

pub use comm::CommFacts;
pub(crate) use counters::Count;
pub use counters::ProfilerCounters;
pub use mask::{DEFAULT_EVENTS, DEFAULT_OPS, Needs, SAMPLE_VAR, Sampling};
pub(crate) use policies::parse_events;
pub(crate) use table::{PROFILERS, note_pid};
pub use table::{RING_VAR, counters};

#[cfg(test)]
mod tests;
