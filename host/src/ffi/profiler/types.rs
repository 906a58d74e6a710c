//! NCCL's profiler structures as its headers lay them out: [`Profiler`] (the vtable), [`Descr`] (an event), its bodies, and the
//! arguments of a state record, in versions 1 to 7. Every size and offset is asserted at compile time (sources:
//! `src/include/plugin/profiler/profiler_v1.h` to `_v6.h` of NCCL 2.30.7; version 7 from the debug information of 2.32.3).
//!
//! `bool` members are `u8` here: what NCCL left there is not ours to trust.

use super::super::types::{Logger, NcclResult};
use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};

/// `init` of versions 1 to 3: `(&context, &mask)`.
pub type InitV1 = unsafe extern "C" fn(*mut *mut c_void, *mut c_int) -> NcclResult;
/// `init` of version 4: `(&context, &mask, commName, commHash, nNodes, nRanks, rank, logger)`.
pub type InitV4 = unsafe extern "C" fn(
    *mut *mut c_void,
    *mut c_int,
    *const c_char,
    u64,
    c_int,
    c_int,
    c_int,
    Option<Logger>,
) -> NcclResult;
/// `init` of versions 5 to 7: `(&context, commId, &mask, commName, nNodes, nRanks, rank, logger)`.
pub type InitV5 = unsafe extern "C" fn(
    *mut *mut c_void,
    u64,
    *mut c_int,
    *const c_char,
    c_int,
    c_int,
    c_int,
    Option<Logger>,
) -> NcclResult;

/// `ncclProfiler_vN_t`. NCCL calls every member; a null one in a plugin that we call is treated as absent.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct Profiler<Init, Descr, Args> {
    pub name: *const c_char,
    pub init: Option<Init>,
    pub start_event: Option<unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *mut Descr) -> NcclResult>,
    pub stop_event: Option<unsafe extern "C" fn(*mut c_void) -> NcclResult>,
    pub record_event_state: Option<unsafe extern "C" fn(*mut c_void, c_int, *mut Args) -> NcclResult>,
    pub finalize: Option<unsafe extern "C" fn(*mut c_void) -> NcclResult>,
}

// SAFETY: the structure is never written; `name` points to a string literal, or (in a plugin that was opened) to one of a library
// that stays loaded as long as the structure is used.
unsafe impl<Init, Descr, Args> Sync for Profiler<Init, Descr, Args> {}
// SAFETY: as above.
unsafe impl<Init, Descr, Args> Send for Profiler<Init, Descr, Args> {}

/// `ncclProfilerEventDescr_vN_t`: an event that starts. `Type` is a byte up to version 4.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct Descr<Type, Body> {
    pub event: Type,
    pub parent: *mut c_void,
    pub rank: c_int,
    pub body: Body,
}

/// Declares plain structures of NCCL: `Copy`, in C's layout.
macro_rules! plain {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $ty:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        #[allow(missing_docs)]
        pub struct $name { $(pub $field: $ty,)* }
    )*};
}

plain! {
    /// `coll` of version 1: codes instead of names.
    CollV1 {
        name: *const c_char, comm_hash: u64, seq: u64, func: u8, send: *const c_void, recv: *mut c_void,
        count: usize, root: c_int, datatype: u8, op: u32, traffic_bytes: usize, n_max_channels: u8, n_warps: u8,
        algo: u8, proto: u8, is_collnet: c_int, is_nvls: c_int,
    }
    /// `coll` of version 2.
    CollV2 {
        name: *const c_char, comm_hash: u64, seq: u64, func: *const c_char, send: *const c_void,
        recv: *mut c_void, count: usize, root: c_int, datatype: *const c_char, traffic_bytes: usize,
        n_max_channels: u8, n_warps: u8, algo: *const c_char, proto: *const c_char,
    }
    /// `coll` of version 3.
    CollV3 {
        name: *const c_char, comm_hash: u64, seq: u64, func: *const c_char, send: *const c_void,
        recv: *mut c_void, count: usize, root: c_int, datatype: *const c_char,
        n_max_channels: u8, n_warps: u8, algo: *const c_char, proto: *const c_char,
    }
    /// `coll` of version 4.
    CollV4 {
        seq: u64, func: *const c_char, send: *const c_void, recv: *mut c_void, count: usize, root: c_int,
        datatype: *const c_char, n_channels: u8, n_warps: u8, algo: *const c_char, proto: *const c_char,
    }
    /// `coll` of versions 5 and 6.
    CollV5 { base: CollV4, parent_group: *mut c_void }
    /// `coll` of version 7.
    CollV7 { base: CollV5, kernel_variant: *const c_char, is_sym_coll: u8, user_tag: u64 }
    /// `p2p` of version 1.
    P2pV1 {
        name: *const c_char, comm_hash: u64, func: u8, buff: *mut c_void, datatype: u8, count: usize, peer: c_int,
    }
    /// `p2p` of versions 2 and 3.
    P2pV2 {
        name: *const c_char, comm_hash: u64, func: *const c_char, buff: *mut c_void, datatype: *const c_char,
        count: usize, peer: c_int,
    }
    /// `p2p` of version 4.
    P2pV4 {
        func: *const c_char, buff: *mut c_void, datatype: *const c_char, count: usize, peer: c_int, n_channels: u8,
    }
    /// `p2p` of versions 5 and 6.
    P2pV5 { base: P2pV4, parent_group: *mut c_void }
    /// `p2p` of version 7.
    P2pV7 { base: P2pV5, user_tag: u64 }
    /// `proxyOp`, all versions.
    ProxyOp { pid: i32, channel: u8, peer: c_int, n_steps: c_int, chunk_size: c_int, is_send: c_int }
    /// `proxyStep`, all versions.
    ProxyStep { step: c_int }
    /// `kernelCh` of version 3.
    KernelChV3 { channel: u8 }
    /// `kernelCh` of version 4 and later.
    KernelChV4 { channel: u8, timer: u64 }
    /// `netPlugin`, version 3 and later.
    NetPlugin { id: i64, data: *mut c_void }
    /// `groupApi`, version 5 and later.
    GroupApi { graph_captured: u8, depth: c_int }
    /// `collApi` of versions 5 and 6.
    CollApiV5 {
        func: *const c_char, count: usize, datatype: *const c_char, root: c_int, stream: *mut c_void,
        graph_captured: u8,
    }
    /// `collApi` of version 7.
    CollApiV7 { base: CollApiV5, user_tag: u64 }
    /// `p2pApi` of versions 5 and 6.
    P2pApiV5 {
        func: *const c_char, count: usize, datatype: *const c_char, stream: *mut c_void, graph_captured: u8,
    }
    /// `p2pApi` of version 7.
    P2pApiV7 { base: P2pApiV5, user_tag: u64 }
    /// `kernelLaunch`, version 5 and later.
    KernelLaunch { stream: *mut c_void }
    /// `ceColl` of version 6.
    CeCollV6 {
        seq: u64, func: *const c_char, send: *const c_void, recv: *mut c_void, count: usize, root: c_int,
        datatype: *const c_char, sync_strategy: *const c_char, intra_batch_sync: u8, batch_size: u32,
        num_batches: u32, ce_seq: u32, stream: *mut c_void,
    }
    /// `ceColl` of version 7.
    CeCollV7 { base: CeCollV6, user_tag: u64 }
    /// `ceCollSync`, version 6 and later.
    CeSync { is_complete: u8, n_ranks: c_int }
    /// `ceCollBatch`, version 6 and later.
    CeBatch { num_ops: c_int, total_bytes: usize, use_intra_sync: u8 }
    /// `kernelPhase` of version 7.
    KernelPhase { channel: u8, phase: u8, name: *const c_char, timer: u64 }
    /// State arguments `proxyOp` of versions 1 to 3.
    ProxyOpState { trans_size: usize, steps: c_int }
}

/// Declares the union of bodies of a version. NCCL fills the member that the event's type names.
macro_rules! body {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $ty:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        #[allow(missing_docs)]
        pub union $name { $(pub $field: $ty,)* }
    )*};
}

body! {
    /// Version 1.
    BodyV1 { coll: CollV1, p2p: P2pV1, proxy_op: ProxyOp, proxy_step: ProxyStep }
    /// Version 2.
    BodyV2 { coll: CollV2, p2p: P2pV2, proxy_op: ProxyOp, proxy_step: ProxyStep }
    /// Version 3.
    BodyV3 {
        coll: CollV3, p2p: P2pV2, proxy_op: ProxyOp, proxy_step: ProxyStep, kernel_ch: KernelChV3,
        net_plugin: NetPlugin,
    }
    /// Version 4.
    BodyV4 {
        coll: CollV4, p2p: P2pV4, proxy_op: ProxyOp, proxy_step: ProxyStep, kernel_ch: KernelChV4,
        net_plugin: NetPlugin,
    }
    /// Version 5.
    BodyV5 {
        coll: CollV5, p2p: P2pV5, proxy_op: ProxyOp, proxy_step: ProxyStep, kernel_ch: KernelChV4,
        net_plugin: NetPlugin, group_api: GroupApi, coll_api: CollApiV5, p2p_api: P2pApiV5,
        kernel_launch: KernelLaunch,
    }
    /// Version 6.
    BodyV6 {
        coll: CollV5, p2p: P2pV5, proxy_op: ProxyOp, proxy_step: ProxyStep, kernel_ch: KernelChV4,
        net_plugin: NetPlugin, group_api: GroupApi, coll_api: CollApiV5, p2p_api: P2pApiV5,
        kernel_launch: KernelLaunch, ce_coll: CeCollV6, ce_sync: CeSync, ce_batch: CeBatch,
    }
    /// Version 7.
    BodyV7 {
        coll: CollV7, p2p: P2pV7, proxy_op: ProxyOp, proxy_step: ProxyStep, kernel_ch: KernelChV4,
        net_plugin: NetPlugin, group_api: GroupApi, coll_api: CollApiV7, p2p_api: P2pApiV7,
        kernel_launch: KernelLaunch, ce_coll: CeCollV7, ce_sync: CeSync, ce_batch: CeBatch,
        kernel_phase: KernelPhase,
    }
    /// Arguments of a state record, versions 1 to 3.
    ArgsV1 { proxy_op: ProxyOpState, appended_proxy_ops: c_int }
    /// Arguments of a state record, version 4 and later.
    ArgsV4 { trans_size: usize, appended_proxy_ops: c_int, net_data: *mut c_void, timer: u64 }
}

/// An event of version 1.
pub type DescrV1 = Descr<u8, BodyV1>;
/// An event of version 2.
pub type DescrV2 = Descr<u8, BodyV2>;
/// An event of version 3.
pub type DescrV3 = Descr<u8, BodyV3>;
/// An event of version 4.
pub type DescrV4 = Descr<u8, BodyV4>;
/// An event of version 5.
pub type DescrV5 = Descr<u64, BodyV5>;
/// An event of version 6.
pub type DescrV6 = Descr<u64, BodyV6>;
/// An event of version 7.
pub type DescrV7 = Descr<u64, BodyV7>;
/// `ncclProfiler_v1_t`.
pub type ProfilerV1 = Profiler<InitV1, DescrV1, ArgsV1>;
/// `ncclProfiler_v2_t`.
pub type ProfilerV2 = Profiler<InitV1, DescrV2, ArgsV1>;
/// `ncclProfiler_v3_t`.
pub type ProfilerV3 = Profiler<InitV1, DescrV3, ArgsV1>;
/// `ncclProfiler_v4_t`.
pub type ProfilerV4 = Profiler<InitV4, DescrV4, ArgsV4>;
/// `ncclProfiler_v5_t`.
pub type ProfilerV5 = Profiler<InitV5, DescrV5, ArgsV4>;
/// `ncclProfiler_v6_t`.
pub type ProfilerV6 = Profiler<InitV5, DescrV6, ArgsV4>;
/// `ncclProfiler_v7_t`.
pub type ProfilerV7 = Profiler<InitV5, DescrV7, ArgsV4>;

/// Where the body of every version starts.
const BODY: usize = 24;

/// Offsets of members from the start of the event, as the table in NCCL's terms gives them.
macro_rules! at {
    ($($ty:ty { $($offset:literal: $($field:ident).+),+ $(,)? })*) => {
        const _: () = {$($(assert!(BODY + offset_of!($ty, $($field).+) == $offset);)+)*};
    };
}

at! {
    CollV1 {
        24: name, 32: comm_hash, 40: seq, 48: func, 56: send, 64: recv, 72: count, 80: root, 84: datatype, 88: op,
        96: traffic_bytes, 104: n_max_channels, 105: n_warps, 106: algo, 107: proto, 108: is_collnet, 112: is_nvls,
    }
    CollV2 {
        24: name, 32: comm_hash, 40: seq, 48: func, 56: send, 64: recv, 72: count, 80: root, 88: datatype,
        96: traffic_bytes, 104: n_max_channels, 105: n_warps, 112: algo, 120: proto,
    }
    CollV3 {
        24: name, 32: comm_hash, 40: seq, 48: func, 56: send, 64: recv, 72: count, 80: root, 88: datatype,
        96: n_max_channels, 97: n_warps, 104: algo, 112: proto,
    }
    CollV4 {
        24: seq, 32: func, 40: send, 48: recv, 56: count, 64: root, 72: datatype, 80: n_channels, 81: n_warps,
        88: algo, 96: proto,
    }
    CollV5 { 24: base.seq, 96: base.proto, 104: parent_group }
    CollV7 { 104: base.parent_group, 112: kernel_variant, 120: is_sym_coll, 128: user_tag }
    P2pV1 { 24: name, 32: comm_hash, 40: func, 48: buff, 56: datatype, 64: count, 72: peer }
    P2pV2 { 24: name, 32: comm_hash, 40: func, 48: buff, 56: datatype, 64: count, 72: peer }
    P2pV4 { 24: func, 32: buff, 40: datatype, 48: count, 56: peer, 60: n_channels }
    P2pV5 { 60: base.n_channels, 64: parent_group }
    P2pV7 { 64: base.parent_group, 72: user_tag }
    ProxyOp { 24: pid, 28: channel, 32: peer, 36: n_steps, 40: chunk_size, 44: is_send }
    ProxyStep { 24: step }
    KernelChV3 { 24: channel }
    KernelChV4 { 24: channel, 32: timer }
    NetPlugin { 24: id, 32: data }
    GroupApi { 24: graph_captured, 28: depth }
    CollApiV5 { 24: func, 32: count, 40: datatype, 48: root, 56: stream, 64: graph_captured }
    CollApiV7 { 64: base.graph_captured, 72: user_tag }
    P2pApiV5 { 24: func, 32: count, 40: datatype, 48: stream, 56: graph_captured }
    P2pApiV7 { 56: base.graph_captured, 64: user_tag }
    KernelLaunch { 24: stream }
    CeCollV6 {
        24: seq, 32: func, 40: send, 48: recv, 56: count, 64: root, 72: datatype, 80: sync_strategy,
        88: intra_batch_sync, 92: batch_size, 96: num_batches, 100: ce_seq, 104: stream,
    }
    CeCollV7 { 104: base.stream, 112: user_tag }
    CeSync { 24: is_complete, 28: n_ranks }
    CeBatch { 24: num_ops, 32: total_bytes, 40: use_intra_sync }
    KernelPhase { 24: channel, 25: phase, 32: name, 40: timer }
}

macro_rules! sizes {
    ($($descr:ty => $size:literal, $vtable:ty, $args:ty => $args_size:literal;)*) => {
        const _: () = {$(
            assert!(size_of::<$descr>() == $size);
            assert!(offset_of!($descr, event) == 0 && offset_of!($descr, parent) == 8);
            assert!(offset_of!($descr, rank) == 16 && offset_of!($descr, body) == BODY);
            assert!(size_of::<$args>() == $args_size);
            assert!(size_of::<$vtable>() == 48 && offset_of!($vtable, name) == 0);
            assert!(offset_of!($vtable, init) == 8 && offset_of!($vtable, start_event) == 16);
            assert!(offset_of!($vtable, stop_event) == 24 && offset_of!($vtable, record_event_state) == 32);
            assert!(offset_of!($vtable, finalize) == 40);
        )*};
    };
}

sizes! {
    DescrV1 => 120, ProfilerV1, ArgsV1 => 16;
    DescrV2 => 128, ProfilerV2, ArgsV1 => 16;
    DescrV3 => 120, ProfilerV3, ArgsV1 => 16;
    DescrV4 => 104, ProfilerV4, ArgsV4 => 8;
    DescrV5 => 112, ProfilerV5, ArgsV4 => 8;
    DescrV6 => 112, ProfilerV6, ArgsV4 => 8;
    DescrV7 => 136, ProfilerV7, ArgsV4 => 8;
}

const _: () = assert!(offset_of!(ProxyOpState, steps) == 8);
