//! The profiler's state machine, without pointers: [`event`] has what NCCL tells.

pub mod event;
