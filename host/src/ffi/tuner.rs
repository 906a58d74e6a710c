//! The tuner plugin: [`ncclTunerPlugin_v2`] to [`ncclTunerPlugin_v6`], the data symbols that NCCL looks up.
//!
//! NCCL probes from its highest version down and uses one of them; they share everything behind the signatures.
//! Whatever happens, each entry returns success, and NCCL's table and channel count stay untouched unless a
//! policy decided and its decision passed [`CostTable::apply`].
//!
//! Pointers are checked for null and alignment before use: NCCL never passes such, but a crash would be the
//! training job's.

use super::chain_tuner::{ChainTuner, raw_logger};
use super::guard::enter;
use super::handles::Handles;
use super::logger::NcclLogger;
use super::types::{
    Logger, NcclResult, NvlDomainInfo, SUCCESS, TunerConstants, TunerV2, TunerV3, TunerV4, TunerV5, TunerV6,
};
use crate::chunk::ChunkRequest;
use crate::comm::{Communicator, Request};
use crate::decision::{Applied, CommInfo, CostTable, PAIRS};
use ringfence_guest::abi::{algo, func, proto};
use std::ffi::{c_int, c_void};
use std::num::NonZeroU32;
use std::ptr::null_mut;

static COMMS: Handles<Communicator> = Handles::new();

/// Largest number of rows or columns that is believed; NCCL has 7 and 3.
const MAX_SIDE: c_int = 64;

macro_rules! export {
    ($(#[$doc:meta])* $symbol:ident: $ty:ident { $($field:ident: $value:expr),* $(,)? }) => {
        $(#[$doc])*
        #[allow(non_upper_case_globals)]
        #[unsafe(no_mangle)]
        pub static $symbol: $ty = $ty { name: c"Ringfence".as_ptr(), $($field: $value,)* };
    };
}

export!(
    /// For NCCL 2.21.
    ncclTunerPlugin_v2: TunerV2 { init: init_v2, get_coll_info: get_coll_info_v2, destroy: finalize }
);
export!(
    /// For NCCL 2.22 and 2.23.
    ncclTunerPlugin_v3: TunerV3 { init: init_v2, get_coll_info: get_coll_info_v3, destroy: finalize }
);
export!(
    /// For NCCL 2.24 to 2.27.
    ncclTunerPlugin_v4: TunerV4 { init: init_v2, get_coll_info: get_coll_info_v4, destroy: finalize }
);
export!(
    /// For NCCL 2.28 and 2.29.
    ncclTunerPlugin_v5: TunerV5 { init: init_v5, get_coll_info: get_coll_info_v4, finalize: finalize }
);
export!(
    /// For NCCL 2.30 and later.
    ncclTunerPlugin_v6: TunerV6 {
        init: init_v5,
        get_coll_info: get_coll_info_v4,
        finalize: finalize,
        get_chunk_size: Some(get_chunk_size),
    }
);

unsafe extern "C" fn init_v2(
    n_ranks: usize,
    n_nodes: usize,
    logger: Option<Logger>,
    context: *mut *mut c_void,
) -> NcclResult {
    // SAFETY: NCCL's arguments, passed on as they are.
    unsafe { init(context, 0, n_ranks, n_nodes, logger, None, null_mut()) }
}

unsafe extern "C" fn init_v5(
    context: *mut *mut c_void,
    comm_id: u64,
    n_ranks: usize,
    n_nodes: usize,
    logger: Option<Logger>,
    nvl: *mut NvlDomainInfo,
    constants: *mut TunerConstants,
) -> NcclResult {
    let nvl = if nvl.is_null() || !nvl.is_aligned() {
        None
    } else {
        // SAFETY: NCCL's pointer is valid during init; it is neither null nor misaligned.
        Some(unsafe { nvl.read() })
    };
    // SAFETY: NCCL's arguments, passed on as they are.
    unsafe { init(context, comm_id, n_ranks, n_nodes, logger, nvl, constants) }
}

/// # Safety
/// `context` is null or points to a pointer; `logger` is NCCL's; `constants` is null, misaligned, or points to NCCL's constants,
/// which nobody else touches during `init`.
unsafe fn init(
    context: *mut *mut c_void,
    comm_id: u64,
    n_ranks: usize,
    n_nodes: usize,
    logger: Option<Logger>,
    nvl: Option<NvlDomainInfo>,
    constants: *mut TunerConstants,
) -> NcclResult {
    if context.is_null() || !context.is_aligned() {
        return SUCCESS;
    }
    // Whatever happens next, NCCL holds something that the other entries understand: null passes through.
    // SAFETY: NCCL's pointer to its context field.
    unsafe { context.write(null_mut()) };
    enter(|| {
        let nvl = nvl.unwrap_or_default();
        let info = CommInfo {
            comm_id,
            n_ranks: saturate(n_ranks),
            n_nodes: saturate(n_nodes),
            n_nvl_domains: non_negative(nvl.n_nvl_domains),
            min_ranks_per_nvl_domain: non_negative(nvl.min_ranks_per_nvl_domain),
            max_ranks_per_nvl_domain: non_negative(nvl.max_ranks_per_nvl_domain),
            max_channels: crate::decision::MAX_CHANNELS,
        };
        // SAFETY: NCCL passed its own logger, and keeps itself loaded while it has communicators.
        let logger = unsafe { NcclLogger::new(logger) };
        let mut communicator = Communicator::join(info, logger);
        let mut none = TunerConstants::ZERO;
        let told = !constants.is_null() && constants.is_aligned();
        // SAFETY: as the caller promises.
        let constants = if told { unsafe { &mut *constants } } else { &mut none };
        let newest = if told { 6 } else { 4 };
        communicator.chain(ChainTuner::begin(&info, newest, raw_logger(logger), nvl, constants));
        if told {
            communicator.edit_constants(constants);
        }
        match COMMS.insert(communicator) {
            // SAFETY: as above.
            Ok(handle) => unsafe { context.write(handle) },
            Err(communicator) => communicator.leave(),
        }
    })
}

unsafe extern "C" fn finalize(context: *mut c_void) -> NcclResult {
    enter(|| {
        if let Some(communicator) = COMMS.remove(context) {
            communicator.leave();
        }
    })
}

#[inline]
unsafe extern "C" fn get_coll_info_v4(
    context: *mut c_void,
    func: c_int,
    n_bytes: usize,
    num_pipe_ops: c_int,
    table: *mut *mut f32,
    num_algo: c_int,
    num_proto: c_int,
    reg_buff: c_int,
    n_channels: *mut c_int,
) -> NcclResult {
    // `move`: by reference, every argument would go through memory twice.
    enter(move || {
        // SAFETY: NCCL's table has the size that NCCL says, and is ours until we return.
        let Some(mut table) = (unsafe { view(table, num_algo, num_proto) }) else { return };
        let Some(request) = Request::new(func, n_bytes, num_pipe_ops, reg_buff != 0) else { return };
        let applied = COMMS.with(context, |communicator| communicator.decide(&request, &mut table));
        if let Some(Applied { channels: Some(channels), .. }) = applied {
            // SAFETY: NCCL's pointer to its channel count.
            unsafe { write_channels(n_channels, channels) };
        }
    })
}

unsafe extern "C" fn get_coll_info_v3(
    context: *mut c_void,
    func: c_int,
    n_bytes: usize,
    num_pipe_ops: c_int,
    table: *mut *mut f32,
    num_algo: c_int,
    num_proto: c_int,
    n_channels: *mut c_int,
) -> NcclResult {
    // SAFETY: NCCL's arguments, passed on; version 3 does not tell whether buffers are registered.
    unsafe {
        get_coll_info_v4(context, func, n_bytes, num_pipe_ops, table, num_algo, num_proto, 0, n_channels)
    }
}

/// Version 2 shows no table and takes the answer as it is, so a table is made up of what is certain to be there.
unsafe extern "C" fn get_coll_info_v2(
    context: *mut c_void,
    func: c_int,
    n_bytes: usize,
    coll_net_support: c_int,
    nvls_support: c_int,
    num_pipe_ops: c_int,
    algorithm: *mut c_int,
    protocol: *mut c_int,
    n_channels: *mut c_int,
) -> NcclResult {
    enter(|| {
        let Some(request) = Request::new(func, n_bytes, num_pipe_ops, false) else { return };
        let applied = COMMS.with(context, |communicator| {
            let nodes = communicator.info().n_nodes;
            let mut costs = certain(request.func, coll_net_support != 0, nvls_support != 0, nodes);
            let mut table = CostTable::new(&mut costs, algo::COUNT, proto::COUNT)?;
            Some(communicator.decide(&request, &mut table))
        });
        let Some(Applied { route, channels }) = applied.flatten() else { return };
        let usable = |p: *mut c_int| !p.is_null() && p.is_aligned();
        if let Some((algo, proto)) = route
            && usable(algorithm)
            && usable(protocol)
        {
            // SAFETY: NCCL's pointers, neither null nor misaligned.
            unsafe {
                algorithm.write(algo.number() as c_int);
                protocol.write(proto.number() as c_int);
            }
        }
        if let Some(channels) = channels {
            // SAFETY: NCCL's pointer to its channel count.
            unsafe { write_channels(n_channels, channels) };
        }
    })
}

/// NCCL reads the member at each call, so a static table must have it always; without a policy on `tuner/chunk` NCCL's chunk
/// size stays as it is.
unsafe extern "C" fn get_chunk_size(
    context: *mut c_void,
    func: c_int,
    n_bytes: usize,
    algorithm: c_int,
    protocol: c_int,
    n_channels: c_int,
    chunk_size: *mut usize,
) -> NcclResult {
    enter(move || {
        if chunk_size.is_null() || !chunk_size.is_aligned() {
            return;
        }
        // SAFETY: NCCL's pointer to its chunk size, neither null nor misaligned.
        let nccl = unsafe { chunk_size.read() } as u64;
        let numbers = [func, algorithm, protocol, n_channels].map(u32::try_from);
        let [Ok(func), Ok(algo), Ok(proto), Ok(channels)] = numbers else { return };
        let request =
            ChunkRequest { func, n_bytes: n_bytes as u64, algo, proto, channels, nccl, so_far: nccl };
        if let Some(Some(wanted)) = COMMS.with(context, |communicator| communicator.chunk_size(&request)) {
            // SAFETY: as above. `chunk::ask` bounded the value to an int.
            unsafe { chunk_size.write(wanted as usize) };
        }
    })
}

/// NCCL's table: declared `float **`, in truth one contiguous `float[numAlgo][numProto]`.
///
/// # Safety
/// `table` is null, misaligned, or points to `num_algo * num_proto` floats that nobody else touches during `'a`.
#[inline]
unsafe fn view<'a>(table: *mut *mut f32, num_algo: c_int, num_proto: c_int) -> Option<CostTable<'a>> {
    let floats = table.cast::<f32>();
    let sides = 1..=MAX_SIDE;
    if floats.is_null() || !floats.is_aligned() || !sides.contains(&num_algo) || !sides.contains(&num_proto) {
        return None;
    }
    let (algos, protos) = (num_algo as u32, num_proto as u32);
    // SAFETY: as the caller promises; the product is at most MAX_SIDE squared.
    let values = unsafe { std::slice::from_raw_parts_mut(floats, (algos * protos) as usize) };
    CostTable::new(values, algos, protos)
}

/// # Safety
/// `n_channels` is null, misaligned, or points to an int.
#[inline]
unsafe fn write_channels(n_channels: *mut c_int, channels: NonZeroU32) {
    if !n_channels.is_null() && n_channels.is_aligned() {
        // SAFETY: as the caller promises; `CostTable::apply` bounded the value to 1..=64.
        unsafe { n_channels.write(channels.get() as c_int) };
    }
}

/// What NCCL 2.21 surely offers for a collective. It does not check the answer of a version 2 tuner, so only this
/// is safe to answer: Ring everywhere and Tree for AllReduce, with LL and Simple (LL128 corrupts data on links
/// that do not keep 128-byte stores whole, and NCCL does not tell); CollNet and NVLS with Simple where it says so. Costs
/// are unknown; all are 1 µs.
fn certain(function: u32, coll_net: bool, nvls: bool, n_nodes: u32) -> [f32; PAIRS] {
    let mut costs = [-1.0; PAIRS];
    let mut offer = |algo: u32, proto: u32| costs[(algo * proto::COUNT + proto) as usize] = 1.0;
    for proto in [proto::LL, proto::SIMPLE] {
        offer(algo::RING, proto);
        if function == func::ALL_REDUCE {
            offer(algo::TREE, proto);
        }
    }
    if function == func::ALL_REDUCE && coll_net {
        offer(algo::COLLNET_DIRECT, proto::SIMPLE);
    }
    if function == func::ALL_REDUCE && nvls {
        offer(if n_nodes > 1 { algo::NVLS_TREE } else { algo::NVLS }, proto::SIMPLE);
    }
    costs
}

fn saturate(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

fn non_negative(n: c_int) -> u32 {
    u32::try_from(n).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered(costs: [f32; PAIRS]) -> Vec<(u32, u32)> {
        let all = (0..PAIRS as u32).map(|i| (i / 3, i % 3));
        all.filter(|(a, p)| costs[(a * 3 + p) as usize] >= 0.0).collect()
    }

    #[test]
    fn version_2_offers_what_is_certain() {
        let ring = [(1, 0), (1, 2)];
        assert_eq!(offered(certain(func::ALL_GATHER, true, true, 1)), ring);
        assert_eq!(offered(certain(func::BROADCAST, true, true, 2)), ring);
        let reduce = [(0, 0), (0, 2), (1, 0), (1, 2)];
        assert_eq!(offered(certain(func::ALL_REDUCE, false, false, 1)), reduce);
        assert_eq!(offered(certain(func::ALL_REDUCE, true, false, 2))[4..], [(2, 2)]);
        assert_eq!(offered(certain(func::ALL_REDUCE, false, true, 1))[4..], [(4, 2)]);
        assert_eq!(offered(certain(func::ALL_REDUCE, false, true, 2))[4..], [(5, 2)]);
    }

    #[test]
    fn impossible_tables_are_refused() {
        let mut floats = [1.0f32; 22];
        let table = floats.as_mut_ptr().cast::<*mut f32>();
        let odd = floats.as_mut_ptr().cast::<u8>().wrapping_add(1).cast::<*mut f32>();
        // SAFETY: only the last of these is looked into, and there are 21 floats.
        unsafe {
            assert!(view(null_mut(), 7, 3).is_none());
            assert!(view(odd, 7, 3).is_none());
            for (algos, protos) in [(0, 3), (7, 0), (-1, 3), (7, -3), (65, 3), (c_int::MAX, c_int::MAX)] {
                assert!(view(table, algos, protos).is_none(), "{algos} {protos}");
            }
            assert!(view(table, 7, 3).is_some());
        }
    }
}
