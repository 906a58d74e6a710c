//! The border to NCCL, and the only place outside the runtime's guest memory with `unsafe`.
//!
//! [`types`] lays out NCCL's structures, [`tuner`] exports `ncclTunerPlugin_v2` to `_v6`, [`net`] `ncclNetPlugin_v6` to `_v12`, [`env`](mod@env) `ncclEnvPlugin_v1` and `_v2`, [`guard`] stops panics,
//! `handles` turns NCCL's context pointers into checked handles, each behind a `lock`, `library` opens other plugins, [`logger`] calls NCCL's logger,
//! `sys` wraps a few system calls, and [`driver`] is NCCL's side, for tools and tests.

pub(crate) mod chain_tuner;
#[cfg(feature = "cli")]
pub mod driver;
pub mod env;
pub mod guard;
pub mod handles;
pub(crate) mod library;
pub(crate) mod lock;
pub mod logger;
pub mod net;
pub mod profiler;
pub(crate) mod sys;
pub mod tuner;
mod tuner_calls;
pub mod types;
