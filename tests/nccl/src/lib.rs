//! Stock NCCL releases call our plugin, on machines without a GPU.
//!
//! The principal types: a [`Scenario`] runs in a [`Lab`] (one NCCL library, our `.so`, the command line, the policies) and returns
//! [`Findings`], facts about that NCCL. It starts [`Job`]s: worker processes that open `libnccl.so.2`, put the fake GPU under it
//! ([`nccl::Nccl`]) and carry out a [`Script`]. What they leave is a [`Run`]: NCCL's results step by step, NCCL's own log, what our
//! plugin says in it.
//!
//! A scenario fails if our plugin or NCCL did not do what must be so. What is so *by version* goes into the findings, which are
//! held against the committed [`record`]; [`report`] makes `docs/nccl-behaviour.md` of it.

pub mod demo;
pub mod job;
pub mod log;
pub mod native;
pub mod nccl;
pub mod record;
pub mod report;
pub mod scenario;
pub mod scenarios;
pub mod script;
mod shm;
pub mod versions;
pub mod worker;

pub use job::{End, Job, Run};
pub use scenario::{Findings, Lab, Scenario};
pub use script::{Report, Script, Step};
