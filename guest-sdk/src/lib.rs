//! Guest SDK for Ringfence policies: everything that a policy in Rust needs, `no_std` and without dependencies.
//!
//! - [`tuner!`] places a function on the `tuner` hook; it gets a [`TunerCtx`] and returns a [`Verdict`].
//! - [`profiler!`] and [`profiler_event!`] do the same for NCCL's profiler, with a [`ProfilerCtx`] or a [`ProfilerEventCtx`].
//! - [`net!`] and [`env!`] place one on the hooks of those names, with a [`NetCtx`] or an [`EnvCtx`].
//! - [`hook!`] does it for the hook of any library, whose context comes from its schema.
//! - [`maps!`] declares a [`HashMap`], an [`Array`], a [`RingBuf`] and so on; [`plain!`] and [`shared!`] make types for their keys and values.
//! - [`helpers`] holds the clock and the like, [`telemetry`] the types that the shipped policies share,
//!   [`abi`] the layouts and numbers underneath, which the host and the C header use too.
//!
//! ```
//! use ringfence_guest::{Algo, Func, Proto, Verdict, license, tuner};
//!
//! tuner! {
//!     fn ring_for_large(ctx) {
//!         if ctx.func() == Some(Func::AllReduce) && ctx.n_bytes() >= 4 << 20 {
//!             ctx.choose(Algo::Ring, Proto::Simple);
//!         }
//!         Verdict::Submit
//!     }
//! }
//! license!("Dual MIT/GPL");
//! ```
//!
//! `ringfence-bpf-build` turns such a crate into an eBPF object; `policies/README.md` says how, and which Rust
//! a policy can use. Built any other way (unit tests, say) the same code runs natively and every map is empty:
//! see [`helpers`].
#![cfg_attr(not(test), no_std)]

pub mod abi;
mod ctx;
mod decision;
mod env;
pub mod helpers;
mod macros;
mod maps;
mod net;
mod profiler;
pub mod raw;
pub mod telemetry;

pub use ctx::TunerCtx;
pub use decision::{Algo, Decision, Func, Proto, Verdict};
pub use env::{EnvCtx, EnvName, EnvText, EnvValue};
pub use maps::{Array, HashMap, LruHashMap, MapError, PerCpuArray, PerCpuHashMap, Record, RingBuf, Update};
pub use net::NetCtx;
pub use profiler::{Action, ProfilerCtx, ProfilerEventCtx, Timing};
pub use raw::{Plain, Shared, load, store};
