//! NCCL's structures as its headers lay them out: [`TunerV2`] to [`TunerV6`], [`NvlDomainInfo`],
//! [`TunerConstants`], [`Logger`] and the result codes. Every size and offset is asserted at compile time
//! (sources: `src/include/plugin/tuner/tuner_v*.h` and `nccl_common.h` of NCCL 2.30.7, x86-64, LP64).

use std::ffi::{c_char, c_int, c_ulong, c_void};
use std::mem::{offset_of, size_of};

/// `ncclResult_t`.
pub type NcclResult = c_int;

/// `ncclSuccess`, the only code that the tuner ever returns: any other fails the collective or the
/// communicator (`enqueue.cc:2147`, `init.cc:1641`), whatever the headers promise.
pub const SUCCESS: NcclResult = 0;

/// `ncclSystemError`.
pub const SYSTEM_ERROR: NcclResult = 2;
/// `ncclInternalError`.
pub const INTERNAL_ERROR: NcclResult = 3;

/// `ncclDebugLogger_t`, a C variadic. It is called only as `(level, flags, file, line, "%s", text)`.
pub type Logger = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...);

/// Log levels (`ncclDebugLogLevel`).
pub mod level {
    #![allow(missing_docs)]
    use std::ffi::c_int;
    pub const WARN: c_int = 2;
    pub const INFO: c_int = 3;
    pub const TRACE: c_int = 5;
}

/// Subsystem flags (`ncclDebugLogSubSys`).
pub mod subsys {
    #![allow(missing_docs)]
    use std::ffi::c_ulong;
    pub const INIT: c_ulong = 0x1;
    pub const TUNING: c_ulong = 0x40;
}

/// `ncclNvlDomainInfo_v5_t`: how the ranks are spread over NVLink domains.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NvlDomainInfo {
    /// Domains.
    pub n_nvl_domains: c_int,
    /// Fewest ranks in one.
    pub min_ranks_per_nvl_domain: c_int,
    /// Most ranks in one.
    pub max_ranks_per_nvl_domain: c_int,
}

/// `ncclTunerConstants_v5_t`: NCCL's cost model, which a tuner may edit in `init`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct TunerConstants {
    pub base_latencies: [[f64; 3]; 7],
    pub hw_latencies: [[[f64; 3]; 7]; 3],
    pub ll_max_bws: [[f64; 3]; 4],
    pub per_ch_max_ring_ll128_bws: [[f64; 3]; 4],
    pub per_ch_max_tree_ll128_bws: [[f64; 3]; 4],
    pub per_ch_max_tree_bws: [[f64; 3]; 4],
    pub per_ch_max_nvls_tree_bws: [[f64; 3]; 4],
}

impl TunerConstants {
    /// All constants 0.
    pub const ZERO: TunerConstants = TunerConstants {
        base_latencies: [[0.0; 3]; 7],
        hw_latencies: [[[0.0; 3]; 7]; 3],
        ll_max_bws: [[0.0; 3]; 4],
        per_ch_max_ring_ll128_bws: [[0.0; 3]; 4],
        per_ch_max_tree_ll128_bws: [[0.0; 3]; 4],
        per_ch_max_tree_bws: [[0.0; 3]; 4],
        per_ch_max_nvls_tree_bws: [[0.0; 3]; 4],
    };
}

/// `init` of versions 2 to 4.
pub type InitV2 = unsafe extern "C" fn(usize, usize, Option<Logger>, *mut *mut c_void) -> NcclResult;
/// `init` of versions 5 and 6.
pub type InitV5 = unsafe extern "C" fn(
    *mut *mut c_void,
    u64,
    usize,
    usize,
    Option<Logger>,
    *mut NvlDomainInfo,
    *mut TunerConstants,
) -> NcclResult;
/// `getCollInfo` of version 2: `(ctx, func, nBytes, collNet, nvls, numPipeOps, &algo, &proto, &nChannels)`.
pub type GetCollInfoV2 = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    usize,
    c_int,
    c_int,
    c_int,
    *mut c_int,
    *mut c_int,
    *mut c_int,
) -> NcclResult;
/// `getCollInfo` of version 3: `(ctx, func, nBytes, numPipeOps, table, numAlgo, numProto, &nChannels)`.
/// The table is declared `float **` but is one contiguous `float[numAlgo][numProto]`.
pub type GetCollInfoV3 = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    usize,
    c_int,
    *mut *mut f32,
    c_int,
    c_int,
    *mut c_int,
) -> NcclResult;
/// `getCollInfo` of versions 4 to 6: version 3 with `regBuff` before `nChannels`.
pub type GetCollInfoV4 = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    usize,
    c_int,
    *mut *mut f32,
    c_int,
    c_int,
    c_int,
    *mut c_int,
) -> NcclResult;
/// `destroy` (versions 2 to 4) and `finalize` (5 and 6).
pub type Finalize = unsafe extern "C" fn(*mut c_void) -> NcclResult;
/// `getChunkSize`: `(ctx, func, nBytes, algo, proto, nChannels, &chunkSize)`.
pub type GetChunkSize =
    unsafe extern "C" fn(*mut c_void, c_int, usize, c_int, c_int, c_int, *mut usize) -> NcclResult;

macro_rules! vtable {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $ty:ty),* $(,)? }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        #[allow(missing_docs)]
        pub struct $name {
            pub name: *const c_char,
            $(pub $field: $ty,)*
        }

        // SAFETY: the structure is never written; `name` points to a string literal, or (in a plugin that
        // was opened by the driver) to one of a library that stays loaded as long as the structure is used.
        unsafe impl Sync for $name {}
        // SAFETY: as above.
        unsafe impl Send for $name {}
    };
}

vtable!(
    /// `ncclTuner_v2_t`.
    TunerV2 { init: InitV2, get_coll_info: GetCollInfoV2, destroy: Finalize }
);
vtable!(
    /// `ncclTuner_v3_t`.
    TunerV3 { init: InitV2, get_coll_info: GetCollInfoV3, destroy: Finalize }
);
vtable!(
    /// `ncclTuner_v4_t`.
    TunerV4 { init: InitV2, get_coll_info: GetCollInfoV4, destroy: Finalize }
);
vtable!(
    /// `ncclTuner_v5_t`.
    TunerV5 { init: InitV5, get_coll_info: GetCollInfoV4, finalize: Finalize }
);
vtable!(
    /// `ncclTuner_v6_t`. NCCL accepts a null `getChunkSize`.
    TunerV6 {
        init: InitV5,
        get_coll_info: GetCollInfoV4,
        finalize: Finalize,
        get_chunk_size: Option<GetChunkSize>,
    }
);

const _: () = {
    assert!(size_of::<TunerV2>() == 32);
    assert!(size_of::<TunerV3>() == 32);
    assert!(size_of::<TunerV4>() == 32);
    assert!(size_of::<TunerV5>() == 32);
    assert!(size_of::<TunerV6>() == 40);
    assert!(offset_of!(TunerV2, init) == 8 && offset_of!(TunerV2, destroy) == 24);
    assert!(offset_of!(TunerV3, get_coll_info) == 16 && offset_of!(TunerV4, get_coll_info) == 16);
    assert!(offset_of!(TunerV5, finalize) == 24);
    assert!(offset_of!(TunerV6, get_coll_info) == 16);
    assert!(offset_of!(TunerV6, finalize) == 24 && offset_of!(TunerV6, get_chunk_size) == 32);
    assert!(size_of::<NvlDomainInfo>() == 12);
    assert!(offset_of!(NvlDomainInfo, max_ranks_per_nvl_domain) == 8);
    assert!(size_of::<TunerConstants>() == 1152);
    assert!(offset_of!(TunerConstants, hw_latencies) == 168);
    assert!(offset_of!(TunerConstants, ll_max_bws) == 672);
    assert!(offset_of!(TunerConstants, per_ch_max_ring_ll128_bws) == 768);
    assert!(offset_of!(TunerConstants, per_ch_max_tree_ll128_bws) == 864);
    assert!(offset_of!(TunerConstants, per_ch_max_tree_bws) == 960);
    assert!(offset_of!(TunerConstants, per_ch_max_nvls_tree_bws) == 1056);
};
