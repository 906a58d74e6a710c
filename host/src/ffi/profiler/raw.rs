//! [`Raw`]: an event with everything that any version tells, and [`Version`]: how each version lays it out. Decoding goes from
//! NCCL's structure to a `Raw`, encoding back to the structure of any version, so that a downstream profiler of an older version
//! and the driver are served by the same code.
//!
//! Strings stay NCCL's pointers; version 1's codes become pointers to our own static strings. Handles (`parent`, `parent_group`)
//! are numbers here, never followed.

use super::names;
use super::types::*;
use crate::profiler::event::{Kind, state};
use std::ffi::{c_char, c_int, c_void};
use std::ptr::{null, null_mut, with_exposed_provenance_mut, without_provenance_mut};

/// An event of NCCL in the widest form.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Raw {
    pub(crate) kind: Kind,
    /// The parent's handle, as NCCL holds it.
    pub(crate) parent: usize,
    pub(crate) rank: c_int,
    pub(crate) body: Body,
}

/// What an event of each type tells. Types without a variant tell nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Body {
    Nothing,
    Coll(Coll),
    P2p(P2p),
    ProxyOp(ProxyOp),
    ProxyStep { step: c_int },
    KernelCh { channel: u8, timer: u64 },
    NetPlugin { id: i64, data: *mut c_void },
    GroupApi { graph_captured: u8, depth: c_int },
    Api(Api),
    KernelLaunch { stream: *mut c_void },
    CeColl(CeColl),
    CeSync { is_complete: u8, n_ranks: c_int },
    CeBatch { num_ops: c_int, total_bytes: usize, use_intra_sync: u8 },
    KernelPhase { channel: u8, phase: u8, name: *const c_char, timer: u64 },
}

/// A collective. `comm_name` and `comm_hash` come with versions 1 to 3, `traffic_bytes` with 1 and 2.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Coll {
    pub(crate) comm_name: *const c_char,
    pub(crate) comm_hash: u64,
    pub(crate) seq: u64,
    pub(crate) func: *const c_char,
    pub(crate) send: *const c_void,
    pub(crate) recv: *mut c_void,
    pub(crate) count: usize,
    pub(crate) root: c_int,
    pub(crate) datatype: *const c_char,
    pub(crate) traffic_bytes: usize,
    pub(crate) channels: u8,
    pub(crate) warps: u8,
    pub(crate) algo: *const c_char,
    pub(crate) proto: *const c_char,
    pub(crate) parent_group: usize,
    pub(crate) kernel_variant: *const c_char,
    pub(crate) is_sym: u8,
    pub(crate) user_tag: u64,
}

/// A send or receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct P2p {
    pub(crate) comm_name: *const c_char,
    pub(crate) comm_hash: u64,
    pub(crate) func: *const c_char,
    pub(crate) buff: *mut c_void,
    pub(crate) datatype: *const c_char,
    pub(crate) count: usize,
    pub(crate) peer: c_int,
    pub(crate) channels: u8,
    pub(crate) parent_group: usize,
    pub(crate) user_tag: u64,
}

/// A call of the API: `collApi` or `p2pApi`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Api {
    pub(crate) func: *const c_char,
    pub(crate) count: usize,
    pub(crate) datatype: *const c_char,
    pub(crate) root: c_int,
    pub(crate) stream: *mut c_void,
    pub(crate) graph_captured: u8,
    pub(crate) user_tag: u64,
}

/// A collective by copy engines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CeColl {
    pub(crate) base: CeCollV6,
    pub(crate) user_tag: u64,
}

impl Default for Coll {
    fn default() -> Coll {
        Coll {
            comm_name: null(),
            comm_hash: 0,
            seq: 0,
            func: null(),
            send: null(),
            recv: null_mut(),
            count: 0,
            root: 0,
            datatype: null(),
            traffic_bytes: 0,
            channels: 0,
            warps: 0,
            algo: null(),
            proto: null(),
            parent_group: 0,
            kernel_variant: null(),
            is_sym: 0,
            user_tag: 0,
        }
    }
}

impl Default for P2p {
    fn default() -> P2p {
        P2p {
            comm_name: null(),
            comm_hash: 0,
            func: null(),
            buff: null_mut(),
            datatype: null(),
            count: 0,
            peer: 0,
            channels: 0,
            parent_group: 0,
            user_tag: 0,
        }
    }
}

/// A version of the interface: its structures, and the way from and to [`Raw`].
pub(crate) trait Version: 'static {
    /// `N` of `ncclProfiler_vN`.
    const NUMBER: u32;
    type Init: Copy + Send + Sync + 'static;
    type Descr: Copy + 'static;
    type Args: Copy + 'static;

    /// The type of an event.
    fn event_bits(descr: &Self::Descr) -> u64;

    /// The event that NCCL describes; `None` for a type that this version does not have.
    ///
    /// # Safety
    /// NCCL filled the member of the body that the type names.
    unsafe fn decode(descr: &Self::Descr) -> Option<Raw>;

    /// The event as this version lays it out; `None` if it has no such event.
    fn encode(raw: &Raw) -> Option<Self::Descr>;

    /// What the arguments of a state record say.
    ///
    /// # Safety
    /// NCCL filled the member that the state names.
    unsafe fn decode_args(number: c_int, args: &Self::Args) -> u64;

    /// The arguments of a state record; `None` if this version does not have that state.
    fn encode_args(number: c_int, value: u64) -> Option<Self::Args>;

    /// Calls `init`, which keeps `mask`.
    ///
    /// # Safety
    /// `init` is a plugin's own; `context` may be written, and `mask` stays valid as long as the plugin may use it.
    unsafe fn call_init(
        init: Self::Init,
        context: *mut *mut c_void,
        mask: *mut c_int,
        facts: &InitFacts,
    ) -> c_int;
}

/// What `init` is told.
#[derive(Clone, Copy)]
pub(crate) struct InitFacts {
    pub(crate) comm_id: u64,
    pub(crate) name: *const c_char,
    pub(crate) n_nodes: c_int,
    pub(crate) n_ranks: c_int,
    pub(crate) rank: c_int,
    pub(crate) logger: Option<super::super::types::Logger>,
}

fn opaque<T>(at: *mut T) -> usize {
    at.addr()
}

impl Coll {
    fn of_v4(c: &CollV4) -> Coll {
        Coll {
            seq: c.seq,
            func: c.func,
            send: c.send,
            recv: c.recv,
            count: c.count,
            root: c.root,
            datatype: c.datatype,
            channels: c.n_channels,
            warps: c.n_warps,
            algo: c.algo,
            proto: c.proto,
            ..Coll::default()
        }
    }

    fn of_v5(c: &CollV5) -> Coll {
        Coll { parent_group: opaque(c.parent_group), ..Coll::of_v4(&c.base) }
    }

    fn v4(&self) -> CollV4 {
        CollV4 {
            seq: self.seq,
            func: self.func,
            send: self.send,
            recv: self.recv,
            count: self.count,
            root: self.root,
            datatype: self.datatype,
            n_channels: self.channels,
            n_warps: self.warps,
            algo: self.algo,
            proto: self.proto,
        }
    }

    fn v5(&self) -> CollV5 {
        CollV5 { base: self.v4(), parent_group: without_provenance_mut(self.parent_group) }
    }
}

impl P2p {
    fn of_v4(p: &P2pV4) -> P2p {
        P2p {
            func: p.func,
            buff: p.buff,
            datatype: p.datatype,
            count: p.count,
            peer: p.peer,
            channels: p.n_channels,
            ..P2p::default()
        }
    }

    fn of_v5(p: &P2pV5) -> P2p {
        P2p { parent_group: opaque(p.parent_group), ..P2p::of_v4(&p.base) }
    }

    fn of_v2(p: &P2pV2) -> P2p {
        P2p {
            comm_name: p.name,
            comm_hash: p.comm_hash,
            func: p.func,
            buff: p.buff,
            datatype: p.datatype,
            count: p.count,
            peer: p.peer,
            ..P2p::default()
        }
    }

    fn v4(&self) -> P2pV4 {
        P2pV4 {
            func: self.func,
            buff: self.buff,
            datatype: self.datatype,
            count: self.count,
            peer: self.peer,
            n_channels: self.channels,
        }
    }

    fn v5(&self) -> P2pV5 {
        P2pV5 { base: self.v4(), parent_group: without_provenance_mut(self.parent_group) }
    }

    fn v2(&self) -> P2pV2 {
        P2pV2 {
            name: self.comm_name,
            comm_hash: self.comm_hash,
            func: self.func,
            buff: self.buff,
            datatype: self.datatype,
            count: self.count,
            peer: self.peer,
        }
    }
}

impl Api {
    fn of_coll(a: &CollApiV5) -> Api {
        Api {
            func: a.func,
            count: a.count,
            datatype: a.datatype,
            root: a.root,
            stream: a.stream,
            graph_captured: a.graph_captured,
            user_tag: 0,
        }
    }

    fn of_p2p(a: &P2pApiV5) -> Api {
        Api {
            func: a.func,
            count: a.count,
            datatype: a.datatype,
            root: 0,
            stream: a.stream,
            graph_captured: a.graph_captured,
            user_tag: 0,
        }
    }

    fn coll(&self) -> CollApiV5 {
        CollApiV5 {
            func: self.func,
            count: self.count,
            datatype: self.datatype,
            root: self.root,
            stream: self.stream,
            graph_captured: self.graph_captured,
        }
    }

    fn p2p(&self) -> P2pApiV5 {
        P2pApiV5 {
            func: self.func,
            count: self.count,
            datatype: self.datatype,
            stream: self.stream,
            graph_captured: self.graph_captured,
        }
    }
}

/// A version's numbers and its two tables: `decode` gives a [`Body`] for each kind it has, `encode` the union's member.
macro_rules! version {
    (
        $(#[$doc:meta])*
        $name:ident = $number:literal: $init:ty, $descr:ident<$ty:ty, $body:ident>, $args:ident, $old:literal;
        call_init $call:expr;
        decode $d:ident { $($kind:ident => $from:expr,)* }
        encode $e:ident { $($pattern:pat $(if $guard:expr)? => $to:expr,)* }
        args $a:ident { decode $dec:expr; encode $enc:expr; }
    ) => {
        $(#[$doc])*
        pub(crate) struct $name;

        impl Version for $name {
            const NUMBER: u32 = $number;
            type Init = $init;
            type Descr = $descr<$ty, $body>;
            type Args = $args;

            #[inline]
            fn event_bits(descr: &Self::Descr) -> u64 {
                u64::from(descr.event)
            }

            #[inline]
            unsafe fn decode(descr: &Self::Descr) -> Option<Raw> {
                let kind = Kind::of_bit(u64::from(descr.event))?;
                let $d = &descr.body;
                let _ = $d;
                // SAFETY: the caller promises that the member that the type names is filled; the others are not read.
                let body = unsafe {
                    match kind {
                        Kind::Group | Kind::ProxyCtrl => Body::Nothing,
                        $(Kind::$kind => $from,)*
                        #[allow(unreachable_patterns)]
                        _ => return None,
                    }
                };
                Some(Raw { kind, parent: descr.parent.addr(), rank: descr.rank, body })
            }

            fn encode(raw: &Raw) -> Option<Self::Descr> {
                let $e = raw;
                let _ = $e;
                let body = match &raw.body {
                    Body::Nothing if matches!(raw.kind, Kind::Group | Kind::ProxyCtrl) => {
                        $body { proxy_step: ProxyStep { step: 0 } }
                    }
                    $($pattern $(if $guard)? => $to,)*
                    #[allow(unreachable_patterns)]
                    _ => return None,
                };
                // Up to version 4 a collective's parent is its group.
                let parent = match &raw.body {
                    Body::Coll(c) if $old && c.parent_group != 0 => c.parent_group,
                    Body::P2p(p) if $old && p.parent_group != 0 => p.parent_group,
                    _ => raw.parent,
                };
                Some(Descr {
                    event: raw.kind.bit() as $ty,
                    parent: without_provenance_mut(parent),
                    rank: raw.rank,
                    body,
                })
            }

            #[inline]
            unsafe fn decode_args(number: c_int, $a: &Self::Args) -> u64 {
                let decode: fn(c_int, &Self::Args) -> u64 = $dec;
                decode(number, $a)
            }

            fn encode_args(number: c_int, value: u64) -> Option<Self::Args> {
                let encode: fn(c_int, u64) -> Option<Self::Args> = $enc;
                encode(number, value)
            }

            unsafe fn call_init(init: $init, context: *mut *mut c_void, mask: *mut c_int, facts: &InitFacts) -> c_int {
                let call: unsafe fn($init, *mut *mut c_void, *mut c_int, &InitFacts) -> c_int = $call;
                // SAFETY: as the caller promises.
                unsafe { call(init, context, mask, facts) }
            }
        }
    };
}

unsafe fn init_v1(init: InitV1, context: *mut *mut c_void, mask: *mut c_int, _: &InitFacts) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { init(context, mask) }
}

unsafe fn init_v4(init: InitV4, context: *mut *mut c_void, mask: *mut c_int, f: &InitFacts) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { init(context, mask, f.name, f.comm_id, f.n_nodes, f.n_ranks, f.rank, f.logger) }
}

unsafe fn init_v5(init: InitV5, context: *mut *mut c_void, mask: *mut c_int, f: &InitFacts) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { init(context, f.comm_id, mask, f.name, f.n_nodes, f.n_ranks, f.rank, f.logger) }
}

/// Arguments of versions 1 to 3: every state of a proxy operation comes with bytes, the control states with a count.
fn args_of_v1(number: c_int, args: &ArgsV1) -> u64 {
    match number {
        // SAFETY: the member that the state names; all are integers.
        state::PROXY_OP_FIRST..=state::PROXY_OP_LAST => unsafe { args.proxy_op.trans_size as u64 },
        // SAFETY: as above.
        state::CTRL_FIRST..=state::CTRL_LAST => unsafe { args.appended_proxy_ops as u64 },
        _ => 0,
    }
}

fn args_v1(number: c_int, value: u64) -> Option<ArgsV1> {
    match number {
        state::PROXY_OP_FIRST..=state::PROXY_OP_LAST => {
            Some(ArgsV1 { proxy_op: ProxyOpState { trans_size: value as usize, steps: 0 } })
        }
        // Steps carry no bytes before version 4.
        state::STEP_FIRST..=state::STEP_LAST => {
            Some(ArgsV1 { proxy_op: ProxyOpState { trans_size: 0, steps: 0 } })
        }
        state::CTRL_FIRST..=state::CTRL_LAST => Some(ArgsV1 { appended_proxy_ops: value as c_int }),
        _ => None,
    }
}

/// Arguments since version 4: all members lie at 0.
fn args_of_v4(number: c_int, args: &ArgsV4) -> u64 {
    match number {
        // SAFETY: the member that the state names; all are integers, or an address that is only passed on.
        state::STEP_FIRST..=state::STEP_LAST | state::STEP_SEND_PEER_WAIT => unsafe {
            args.trans_size as u64
        },
        // SAFETY: as above.
        state::CTRL_FIRST..=state::CTRL_LAST => unsafe { args.appended_proxy_ops as u64 },
        // SAFETY: as above.
        state::NET_PLUGIN_UPDATE => unsafe { args.net_data.expose_provenance() as u64 },
        // SAFETY: as above.
        state::KERNEL_CH_STOP | state::KERNEL_PHASE_STOP => unsafe { args.timer },
        _ => 0,
    }
}

fn args_v4(number: c_int, value: u64, last: c_int) -> Option<ArgsV4> {
    match number {
        n if n > last || n < state::STEP_FIRST => None,
        state::CTRL_FIRST..=state::CTRL_LAST => Some(ArgsV4 { appended_proxy_ops: value as c_int }),
        state::NET_PLUGIN_UPDATE => Some(ArgsV4 { net_data: with_exposed_provenance_mut(value as usize) }),
        _ => Some(ArgsV4 { timer: value }),
    }
}

version! {
    /// For NCCL 2.23.
    V1 = 1: InitV1, Descr<u8, BodyV1>, ArgsV1, true;
    call_init init_v1;
    decode d {
        Coll => {
            let c = &d.coll;
            Body::Coll(Coll {
                comm_name: c.name, comm_hash: c.comm_hash, seq: c.seq, func: names::func_text(c.func.into()),
                send: c.send, recv: c.recv, count: c.count, root: c.root,
                datatype: names::datatype_text(c.datatype.into()), traffic_bytes: c.traffic_bytes,
                channels: c.n_max_channels, warps: c.n_warps, algo: names::algo_text(c.algo.into()),
                proto: names::proto_text(c.proto.into()), ..Coll::default()
            })
        },
        P2p => {
            let p = &d.p2p;
            Body::P2p(P2p {
                comm_name: p.name, comm_hash: p.comm_hash, func: names::func_text(p.func.into()), buff: p.buff,
                datatype: names::datatype_text(p.datatype.into()), count: p.count, peer: p.peer, ..P2p::default()
            })
        },
        ProxyOp => Body::ProxyOp(d.proxy_op),
        ProxyStep => Body::ProxyStep { step: d.proxy_step.step },
    }
    encode raw {
        Body::Coll(c) => BodyV1 { coll: CollV1 {
            name: c.comm_name, comm_hash: c.comm_hash, seq: c.seq, func: names::code(names::func_id(c.func)),
            send: c.send, recv: c.recv, count: c.count, root: c.root,
            datatype: names::code(names::datatype_id(c.datatype)), op: 0, traffic_bytes: c.traffic_bytes,
            n_max_channels: c.channels, n_warps: c.warps, algo: names::code(names::algo_id(c.algo)),
            proto: names::code(names::proto_id(c.proto)), is_collnet: 0, is_nvls: 0,
        } },
        Body::P2p(p) => BodyV1 { p2p: P2pV1 {
            name: p.comm_name, comm_hash: p.comm_hash, func: names::code(names::func_id(p.func)), buff: p.buff,
            datatype: names::code(names::datatype_id(p.datatype)), count: p.count, peer: p.peer,
        } },
        Body::ProxyOp(p) => BodyV1 { proxy_op: *p },
        Body::ProxyStep { step } => BodyV1 { proxy_step: ProxyStep { step: *step } },
    }
    args a { decode args_of_v1; encode args_v1; }
}

version! {
    /// For NCCL 2.24 and 2.25.
    V2 = 2: InitV1, Descr<u8, BodyV2>, ArgsV1, true;
    call_init init_v1;
    decode d {
        Coll => {
            let c = &d.coll;
            Body::Coll(Coll {
                comm_name: c.name, comm_hash: c.comm_hash, seq: c.seq, func: c.func, send: c.send, recv: c.recv,
                count: c.count, root: c.root, datatype: c.datatype, traffic_bytes: c.traffic_bytes,
                channels: c.n_max_channels, warps: c.n_warps, algo: c.algo, proto: c.proto, ..Coll::default()
            })
        },
        P2p => Body::P2p(P2p::of_v2(&d.p2p)),
        ProxyOp => Body::ProxyOp(d.proxy_op),
        ProxyStep => Body::ProxyStep { step: d.proxy_step.step },
    }
    encode raw {
        Body::Coll(c) => BodyV2 { coll: CollV2 {
            name: c.comm_name, comm_hash: c.comm_hash, seq: c.seq, func: c.func, send: c.send, recv: c.recv,
            count: c.count, root: c.root, datatype: c.datatype, traffic_bytes: c.traffic_bytes,
            n_max_channels: c.channels, n_warps: c.warps, algo: c.algo, proto: c.proto,
        } },
        Body::P2p(p) => BodyV2 { p2p: p.v2() },
        Body::ProxyOp(p) => BodyV2 { proxy_op: *p },
        Body::ProxyStep { step } => BodyV2 { proxy_step: ProxyStep { step: *step } },
    }
    args a { decode args_of_v1; encode args_v1; }
}

version! {
    /// For NCCL 2.26.
    V3 = 3: InitV1, Descr<u8, BodyV3>, ArgsV1, true;
    call_init init_v1;
    decode d {
        Coll => {
            let c = &d.coll;
            Body::Coll(Coll {
                comm_name: c.name, comm_hash: c.comm_hash, seq: c.seq, func: c.func, send: c.send, recv: c.recv,
                count: c.count, root: c.root, datatype: c.datatype, channels: c.n_max_channels, warps: c.n_warps,
                algo: c.algo, proto: c.proto, ..Coll::default()
            })
        },
        P2p => Body::P2p(P2p::of_v2(&d.p2p)),
        ProxyOp => Body::ProxyOp(d.proxy_op),
        ProxyStep => Body::ProxyStep { step: d.proxy_step.step },
        KernelCh => Body::KernelCh { channel: d.kernel_ch.channel, timer: 0 },
        NetPlugin => Body::NetPlugin { id: d.net_plugin.id, data: d.net_plugin.data },
    }
    encode raw {
        Body::Coll(c) => BodyV3 { coll: CollV3 {
            name: c.comm_name, comm_hash: c.comm_hash, seq: c.seq, func: c.func, send: c.send, recv: c.recv,
            count: c.count, root: c.root, datatype: c.datatype, n_max_channels: c.channels, n_warps: c.warps,
            algo: c.algo, proto: c.proto,
        } },
        Body::P2p(p) => BodyV3 { p2p: p.v2() },
        Body::ProxyOp(p) => BodyV3 { proxy_op: *p },
        Body::ProxyStep { step } => BodyV3 { proxy_step: ProxyStep { step: *step } },
        Body::KernelCh { channel, .. } => BodyV3 { kernel_ch: KernelChV3 { channel: *channel } },
        Body::NetPlugin { id, data } => BodyV3 { net_plugin: NetPlugin { id: *id, data: *data } },
    }
    args a { decode args_of_v1; encode args_v1; }
}

version! {
    /// For NCCL 2.27.
    V4 = 4: InitV4, Descr<u8, BodyV4>, ArgsV4, true;
    call_init init_v4;
    decode d {
        Coll => Body::Coll(Coll::of_v4(&d.coll)),
        P2p => Body::P2p(P2p::of_v4(&d.p2p)),
        ProxyOp => Body::ProxyOp(d.proxy_op),
        ProxyStep => Body::ProxyStep { step: d.proxy_step.step },
        KernelCh => Body::KernelCh { channel: d.kernel_ch.channel, timer: d.kernel_ch.timer },
        NetPlugin => Body::NetPlugin { id: d.net_plugin.id, data: d.net_plugin.data },
    }
    encode raw {
        Body::Coll(c) => BodyV4 { coll: c.v4() },
        Body::P2p(p) => BodyV4 { p2p: p.v4() },
        Body::ProxyOp(p) => BodyV4 { proxy_op: *p },
        Body::ProxyStep { step } => BodyV4 { proxy_step: ProxyStep { step: *step } },
        Body::KernelCh { channel, timer } => BodyV4 { kernel_ch: KernelChV4 { channel: *channel, timer: *timer } },
        Body::NetPlugin { id, data } => BodyV4 { net_plugin: NetPlugin { id: *id, data: *data } },
    }
    args a { decode args_of_v4; encode |n, v| args_v4(n, v, state::KERNEL_CH_STOP); }
}

version! {
    /// For NCCL 2.28 to 2.29.1.
    V5 = 5: InitV5, Descr<u64, BodyV5>, ArgsV4, false;
    call_init init_v5;
    decode d {
        Coll => Body::Coll(Coll::of_v5(&d.coll)),
        P2p => Body::P2p(P2p::of_v5(&d.p2p)),
        ProxyOp => Body::ProxyOp(d.proxy_op),
        ProxyStep => Body::ProxyStep { step: d.proxy_step.step },
        KernelCh => Body::KernelCh { channel: d.kernel_ch.channel, timer: d.kernel_ch.timer },
        NetPlugin => Body::NetPlugin { id: d.net_plugin.id, data: d.net_plugin.data },
        GroupApi => group_api(&d.group_api),
        CollApi => Body::Api(Api::of_coll(&d.coll_api)),
        P2pApi => Body::Api(Api::of_p2p(&d.p2p_api)),
        KernelLaunch => Body::KernelLaunch { stream: d.kernel_launch.stream },
    }
    encode raw {
        Body::Coll(c) => BodyV5 { coll: c.v5() },
        Body::P2p(p) => BodyV5 { p2p: p.v5() },
        Body::ProxyOp(p) => BodyV5 { proxy_op: *p },
        Body::ProxyStep { step } => BodyV5 { proxy_step: ProxyStep { step: *step } },
        Body::KernelCh { channel, timer } => BodyV5 { kernel_ch: KernelChV4 { channel: *channel, timer: *timer } },
        Body::NetPlugin { id, data } => BodyV5 { net_plugin: NetPlugin { id: *id, data: *data } },
        Body::GroupApi { graph_captured, depth } => BodyV5 { group_api: GroupApi {
            graph_captured: *graph_captured, depth: *depth,
        } },
        Body::Api(a) if raw.kind == Kind::CollApi => BodyV5 { coll_api: a.coll() },
        Body::Api(a) => BodyV5 { p2p_api: a.p2p() },
        Body::KernelLaunch { stream } => BodyV5 { kernel_launch: KernelLaunch { stream: *stream } },
    }
    args a { decode args_of_v4; encode |n, v| args_v4(n, v, state::GROUP_END_API_START); }
}

version! {
    /// For NCCL 2.29.2 to 2.30.
    V6 = 6: InitV5, Descr<u64, BodyV6>, ArgsV4, false;
    call_init init_v5;
    decode d {
        Coll => Body::Coll(Coll::of_v5(&d.coll)),
        P2p => Body::P2p(P2p::of_v5(&d.p2p)),
        ProxyOp => Body::ProxyOp(d.proxy_op),
        ProxyStep => Body::ProxyStep { step: d.proxy_step.step },
        KernelCh => Body::KernelCh { channel: d.kernel_ch.channel, timer: d.kernel_ch.timer },
        NetPlugin => Body::NetPlugin { id: d.net_plugin.id, data: d.net_plugin.data },
        GroupApi => group_api(&d.group_api),
        CollApi => Body::Api(Api::of_coll(&d.coll_api)),
        P2pApi => Body::Api(Api::of_p2p(&d.p2p_api)),
        KernelLaunch => Body::KernelLaunch { stream: d.kernel_launch.stream },
        CeColl => Body::CeColl(CeColl { base: d.ce_coll, user_tag: 0 }),
        CeSync => ce_sync(&d.ce_sync),
        CeBatch => ce_batch(&d.ce_batch),
    }
    encode raw {
        Body::Coll(c) => BodyV6 { coll: c.v5() },
        Body::P2p(p) => BodyV6 { p2p: p.v5() },
        Body::ProxyOp(p) => BodyV6 { proxy_op: *p },
        Body::ProxyStep { step } => BodyV6 { proxy_step: ProxyStep { step: *step } },
        Body::KernelCh { channel, timer } => BodyV6 { kernel_ch: KernelChV4 { channel: *channel, timer: *timer } },
        Body::NetPlugin { id, data } => BodyV6 { net_plugin: NetPlugin { id: *id, data: *data } },
        Body::GroupApi { graph_captured, depth } => BodyV6 { group_api: GroupApi {
            graph_captured: *graph_captured, depth: *depth,
        } },
        Body::Api(a) if raw.kind == Kind::CollApi => BodyV6 { coll_api: a.coll() },
        Body::Api(a) => BodyV6 { p2p_api: a.p2p() },
        Body::KernelLaunch { stream } => BodyV6 { kernel_launch: KernelLaunch { stream: *stream } },
        Body::CeColl(c) => BodyV6 { ce_coll: c.base },
        Body::CeSync { is_complete, n_ranks } => BodyV6 { ce_sync: CeSync {
            is_complete: *is_complete, n_ranks: *n_ranks,
        } },
        Body::CeBatch { num_ops, total_bytes, use_intra_sync } => BodyV6 { ce_batch: CeBatch {
            num_ops: *num_ops, total_bytes: *total_bytes, use_intra_sync: *use_intra_sync,
        } },
    }
    args a { decode args_of_v4; encode |n, v| args_v4(n, v, state::CE_BATCH_COMPLETE); }
}

version! {
    /// For NCCL 2.31 and later.
    V7 = 7: InitV5, Descr<u64, BodyV7>, ArgsV4, false;
    call_init init_v5;
    decode d {
        Coll => {
            let c = &d.coll;
            Body::Coll(Coll {
                kernel_variant: c.kernel_variant, is_sym: c.is_sym_coll, user_tag: c.user_tag,
                ..Coll::of_v5(&c.base)
            })
        },
        P2p => Body::P2p(P2p { user_tag: d.p2p.user_tag, ..P2p::of_v5(&d.p2p.base) }),
        ProxyOp => Body::ProxyOp(d.proxy_op),
        ProxyStep => Body::ProxyStep { step: d.proxy_step.step },
        KernelCh => Body::KernelCh { channel: d.kernel_ch.channel, timer: d.kernel_ch.timer },
        NetPlugin => Body::NetPlugin { id: d.net_plugin.id, data: d.net_plugin.data },
        GroupApi => group_api(&d.group_api),
        CollApi => Body::Api(Api { user_tag: d.coll_api.user_tag, ..Api::of_coll(&d.coll_api.base) }),
        P2pApi => Body::Api(Api { user_tag: d.p2p_api.user_tag, ..Api::of_p2p(&d.p2p_api.base) }),
        KernelLaunch => Body::KernelLaunch { stream: d.kernel_launch.stream },
        CeColl => Body::CeColl(CeColl { base: d.ce_coll.base, user_tag: d.ce_coll.user_tag }),
        CeSync => ce_sync(&d.ce_sync),
        CeBatch => ce_batch(&d.ce_batch),
        KernelPhase => {
            let k = &d.kernel_phase;
            Body::KernelPhase { channel: k.channel, phase: k.phase, name: k.name, timer: k.timer }
        },
    }
    encode raw {
        Body::Coll(c) => BodyV7 { coll: CollV7 {
            base: c.v5(), kernel_variant: c.kernel_variant, is_sym_coll: c.is_sym, user_tag: c.user_tag,
        } },
        Body::P2p(p) => BodyV7 { p2p: P2pV7 { base: p.v5(), user_tag: p.user_tag } },
        Body::ProxyOp(p) => BodyV7 { proxy_op: *p },
        Body::ProxyStep { step } => BodyV7 { proxy_step: ProxyStep { step: *step } },
        Body::KernelCh { channel, timer } => BodyV7 { kernel_ch: KernelChV4 { channel: *channel, timer: *timer } },
        Body::NetPlugin { id, data } => BodyV7 { net_plugin: NetPlugin { id: *id, data: *data } },
        Body::GroupApi { graph_captured, depth } => BodyV7 { group_api: GroupApi {
            graph_captured: *graph_captured, depth: *depth,
        } },
        Body::Api(a) if raw.kind == Kind::CollApi => {
            BodyV7 { coll_api: CollApiV7 { base: a.coll(), user_tag: a.user_tag } }
        },
        Body::Api(a) => BodyV7 { p2p_api: P2pApiV7 { base: a.p2p(), user_tag: a.user_tag } },
        Body::KernelLaunch { stream } => BodyV7 { kernel_launch: KernelLaunch { stream: *stream } },
        Body::CeColl(c) => BodyV7 { ce_coll: CeCollV7 { base: c.base, user_tag: c.user_tag } },
        Body::CeSync { is_complete, n_ranks } => BodyV7 { ce_sync: CeSync {
            is_complete: *is_complete, n_ranks: *n_ranks,
        } },
        Body::CeBatch { num_ops, total_bytes, use_intra_sync } => BodyV7 { ce_batch: CeBatch {
            num_ops: *num_ops, total_bytes: *total_bytes, use_intra_sync: *use_intra_sync,
        } },
        Body::KernelPhase { channel, phase, name, timer } => BodyV7 { kernel_phase: KernelPhase {
            channel: *channel, phase: *phase, name: *name, timer: *timer,
        } },
    }
    args a { decode args_of_v4; encode |n, v| args_v4(n, v, state::KERNEL_PHASE_STOP); }
}

fn group_api(g: &GroupApi) -> Body {
    Body::GroupApi { graph_captured: g.graph_captured, depth: g.depth }
}

fn ce_sync(s: &CeSync) -> Body {
    Body::CeSync { is_complete: s.is_complete, n_ranks: s.n_ranks }
}

fn ce_batch(b: &CeBatch) -> Body {
    Body::CeBatch { num_ops: b.num_ops, total_bytes: b.total_bytes, use_intra_sync: b.use_intra_sync }
}
