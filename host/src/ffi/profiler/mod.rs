//! The profiler plugin: [`ncclProfiler_v1`] to [`ncclProfiler_v7`], the data symbols that NCCL looks up, and the way from NCCL's
//! structures ([`types`]) to the state machine in [`crate::profiler`].
//!
//! NCCL probes from its highest version down and uses one of them; they share everything behind the signatures. Whatever happens, each
//! entry returns success. Pointers are checked for null and alignment before use; handles are numbers and are never followed.

mod calls;
mod chain;
mod decode;
pub(crate) mod names;
pub(crate) mod raw;
pub mod types;

pub use calls::PROFILER_VERSIONS;
#[cfg(feature = "cli")]
pub(crate) use calls::{Calls, probe};
pub use chain::CHAIN_VAR;

use super::guard::enter;
use super::logger::NcclLogger;
use super::types::{Logger, NcclResult, SUCCESS};
use crate::decision::{CommInfo, MAX_CHANNELS};
use crate::endpoint::{Endpoint, Role};
use crate::profiler::event::Kind;
use crate::profiler::handle::Handle;
use crate::profiler::{CommFacts, Count, PROFILERS, note_pid};
use raw::{InitFacts, V1, V2, V3, V4, V5, V6, V7, Version};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{null, null_mut, without_provenance_mut};
use std::sync::atomic::AtomicI32;
use types::{Profiler, ProfilerV1, ProfilerV2, ProfilerV3, ProfilerV4, ProfilerV5, ProfilerV6, ProfilerV7};

macro_rules! export {
    ($($(#[$doc:meta])* $symbol:ident: $ty:ident of $version:ident, $init:ident;)*) => {$(
        $(#[$doc])*
        #[allow(non_upper_case_globals)]
        #[unsafe(no_mangle)]
        pub static $symbol: $ty = Profiler {
            name: c"Ringfence".as_ptr(),
            init: Some($init::<$version>),
            start_event: Some(start_event::<$version>),
            stop_event: Some(stop_event),
            record_event_state: Some(record_event_state::<$version>),
            finalize: Some(finalize),
        };
    )*};
}

export! {
    /// For NCCL 2.23.
    ncclProfiler_v1: ProfilerV1 of V1, init_v1;
    /// For NCCL 2.24 and 2.25.
    ncclProfiler_v2: ProfilerV2 of V2, init_v1;
    /// For NCCL 2.26.
    ncclProfiler_v3: ProfilerV3 of V3, init_v1;
    /// For NCCL 2.27.
    ncclProfiler_v4: ProfilerV4 of V4, init_v4;
    /// For NCCL 2.28 to 2.29.1.
    ncclProfiler_v5: ProfilerV5 of V5, init_v5;
    /// For NCCL 2.29.2 to 2.30.
    ncclProfiler_v6: ProfilerV6 of V6, init_v5;
    /// For NCCL 2.31 and later.
    ncclProfiler_v7: ProfilerV7 of V7, init_v5;
}

/// The address of one of the symbols above, as dlsym would find it.
#[cfg(feature = "cli")]
pub(crate) fn symbol(name: &CStr) -> Option<*const c_void> {
    macro_rules! find {
        ($($symbol:ident)*) => {
            match name.to_str().ok()? {
                $(stringify!($symbol) => Some(std::ptr::from_ref(&$symbol).cast()),)*
                _ => None,
            }
        };
    }
    find!(ncclProfiler_v1 ncclProfiler_v2 ncclProfiler_v3 ncclProfiler_v4 ncclProfiler_v5 ncclProfiler_v6 ncclProfiler_v7)
}

unsafe extern "C" fn init_v1<V: Version>(context: *mut *mut c_void, mask: *mut c_int) -> NcclResult {
    let facts = InitFacts { comm_id: 0, name: null(), n_nodes: 0, n_ranks: 0, rank: 0, logger: None };
    // SAFETY: NCCL's arguments, passed on as they are.
    unsafe { init(context, mask, &facts, V::NUMBER) }
}

unsafe extern "C" fn init_v4<V: Version>(
    context: *mut *mut c_void,
    mask: *mut c_int,
    name: *const c_char,
    comm_id: u64,
    n_nodes: c_int,
    n_ranks: c_int,
    rank: c_int,
    logger: Option<Logger>,
) -> NcclResult {
    let facts = InitFacts { comm_id, name, n_nodes, n_ranks, rank, logger };
    // SAFETY: NCCL's arguments, passed on as they are.
    unsafe { init(context, mask, &facts, V::NUMBER) }
}

unsafe extern "C" fn init_v5<V: Version>(
    context: *mut *mut c_void,
    comm_id: u64,
    mask: *mut c_int,
    name: *const c_char,
    n_nodes: c_int,
    n_ranks: c_int,
    rank: c_int,
    logger: Option<Logger>,
) -> NcclResult {
    let facts = InitFacts { comm_id, name, n_nodes, n_ranks, rank, logger };
    // SAFETY: NCCL's arguments, passed on as they are.
    unsafe { init(context, mask, &facts, V::NUMBER) }
}

/// # Safety
/// `context` is null or points to a pointer; `mask` is null or points to NCCL's mask, which lives as long as NCCL is loaded; the name is
/// null or a C string; the logger is NCCL's.
unsafe fn init(context: *mut *mut c_void, mask: *mut c_int, facts: &InitFacts, version: u32) -> NcclResult {
    if context.is_null() || !context.is_aligned() {
        return SUCCESS;
    }
    // Whatever happens next, NCCL holds something that the other entries understand.
    // SAFETY: NCCL's pointer to its context field.
    unsafe { context.write(null_mut()) };
    if mask.is_null() || !mask.is_aligned() {
        return SUCCESS;
    }
    enter(|| {
        // SAFETY: NCCL's mask is a static of its library, which NCCL reads with atomic loads. It is used from init to the finalize of the
        // last communicator that was given it, and NCCL stays loaded at least that long.
        let word: &'static AtomicI32 = unsafe { AtomicI32::from_ptr(mask) };
        // SAFETY: NCCL passed its own logger, and keeps itself loaded while it has communicators.
        let logger = unsafe { NcclLogger::new(facts.logger) };
        // SAFETY: null or a C string of NCCL's.
        let name = unsafe { first_bytes(facts.name) };
        let pid = note_pid();
        let endpoint = Endpoint::join(Role::Profiler, comm_info(facts), logger);
        let chain = chain::open(version);
        let facts_of_comm = CommFacts {
            comm_id: facts.comm_id,
            rank: non_negative(facts.rank),
            n_ranks: non_negative(facts.n_ranks),
            n_nodes: non_negative(facts.n_nodes),
            name,
            pid,
        };
        match PROFILERS.open(&facts_of_comm, Box::new(endpoint), word) {
            Ok(handle) => {
                if let Some(chain) = chain {
                    chain.init(handle, facts);
                }
                // SAFETY: as above.
                unsafe { context.write(pointer(handle)) };
            }
            Err(policies) => policies.leave(),
        }
    })
}

fn comm_info(facts: &InitFacts) -> CommInfo {
    CommInfo {
        comm_id: facts.comm_id,
        n_ranks: non_negative(facts.n_ranks),
        n_nodes: non_negative(facts.n_nodes),
        n_nvl_domains: 0,
        min_ranks_per_nvl_domain: 0,
        max_ranks_per_nvl_domain: 0,
        max_channels: MAX_CHANNELS,
    }
}

unsafe extern "C" fn finalize(context: *mut c_void) -> NcclResult {
    enter(|| {
        let handle = bits(context);
        if PROFILERS.close(handle)
            && let Some(chain) = chain::chain()
        {
            chain.finalize(handle);
        }
    })
}

unsafe extern "C" fn start_event<V: Version>(
    context: *mut c_void,
    handle: *mut *mut c_void,
    descr: *mut V::Descr,
) -> NcclResult {
    enter(move || {
        if handle.is_null() || !handle.is_aligned() {
            return PROFILERS.count(Count::NullEvent);
        }
        // SAFETY: NCCL's event, on the caller's stack.
        let given = unsafe { start::<V>(bits(context), descr) };
        // SAFETY: NCCL's place for the handle. Never null: NCCL would leave out the event's children (#1544).
        unsafe { handle.write(pointer(given)) };
    })
}

/// # Safety
/// `descr` is null or NCCL's event, filled as its type says.
#[inline]
unsafe fn start<V: Version>(context: u64, descr: *mut V::Descr) -> u64 {
    if descr.is_null() || !descr.is_aligned() {
        PROFILERS.count(Count::NullEvent);
        return Handle::Ignored.bits();
    }
    // SAFETY: as the caller promises; nobody writes it during the call.
    let descr = unsafe { &*descr };
    let Some(kind) = Kind::of_bit(V::event_bits(descr)) else {
        PROFILERS.count(Count::Unknown);
        return Handle::Ignored.bits();
    };
    let chain = chain::chain();
    if chain.is_none() && !PROFILERS.wanted().has(kind) {
        return Handle::Ignored.bits();
    }
    // SAFETY: as the caller promises.
    let Some(raw) = (unsafe { V::decode(descr) }) else {
        PROFILERS.count(Count::Unknown);
        return Handle::Ignored.bits();
    };
    match chain {
        None => PROFILERS.start(context, &decode::event(&raw, V::NUMBER)),
        Some(chain) => chain.start(context, &raw, V::NUMBER),
    }
}

unsafe extern "C" fn stop_event(handle: *mut c_void) -> NcclResult {
    enter(move || match (Handle::of_bits(bits(handle)), chain::chain()) {
        (Some(Handle::Pair { slot, generation }), Some(chain)) => chain.stop(slot, generation),
        _ => PROFILERS.stop(bits(handle)),
    })
}

unsafe extern "C" fn record_event_state<V: Version>(
    handle: *mut c_void,
    number: c_int,
    args: *mut V::Args,
) -> NcclResult {
    enter(move || {
        let value = if args.is_null() || !args.is_aligned() {
            None
        } else {
            // SAFETY: NCCL's arguments, on the caller's stack, filled as the state says.
            Some(unsafe { V::decode_args(number, &*args) })
        };
        match (Handle::of_bits(bits(handle)), chain::chain()) {
            (Some(Handle::Pair { slot, generation }), Some(chain)) => {
                chain.state(slot, generation, number, value);
            }
            _ => PROFILERS.state(bits(handle), number, value),
        }
    })
}

#[inline]
fn bits(pointer: *mut c_void) -> u64 {
    pointer.addr() as u64
}

#[inline]
fn pointer(bits: u64) -> *mut c_void {
    without_provenance_mut(bits as usize)
}

fn non_negative(n: c_int) -> u32 {
    u32::try_from(n).unwrap_or(0)
}

/// The first 32 bytes of a name, padded with NUL.
///
/// # Safety
/// `name` is null or a C string.
unsafe fn first_bytes(name: *const c_char) -> [u64; 4] {
    let mut bytes = [0u8; 32];
    if !name.is_null() {
        // SAFETY: as the caller promises.
        let name = unsafe { CStr::from_ptr(name) }.to_bytes();
        let n = name.len().min(bytes.len());
        bytes[..n].copy_from_slice(&name[..n]);
    }
    std::array::from_fn(|i| u64::from_le_bytes(std::array::from_fn(|j| bytes[8 * i + j])))
}
