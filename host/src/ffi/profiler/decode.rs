//! [`event`]: what the state machine takes of a [`Raw`] event: numbers instead of names, no pointers.

use super::names;
use super::raw::{Body, Coll, P2p, Raw};
use crate::profiler::event::{Detail, Event, Op};
use ringfence_guest::abi::UNSET;
use std::ffi::c_int;

/// The event without pointers. `version` says what can be relied on.
#[inline]
pub(super) fn event(raw: &Raw, version: u32) -> Event {
    let detail = match &raw.body {
        Body::Coll(c) => Detail::Op(coll(c, version)),
        Body::P2p(p) => Detail::Op(p2p(p, version)),
        Body::ProxyOp(o) => Detail::ProxyOp {
            pid: o.pid as u32,
            channel: o.channel.into(),
            peer: rank(o.peer),
            chunk_bytes: u64::try_from(o.chunk_size).unwrap_or(0),
        },
        Body::ProxyStep { step } => Detail::Step(u64::try_from(*step).unwrap_or(0)),
        Body::KernelCh { channel, timer } => Detail::Kernel { channel: (*channel).into(), timer: *timer },
        Body::KernelPhase { channel, timer, .. } => {
            Detail::Kernel { channel: (*channel).into(), timer: *timer }
        }
        Body::Api(a) => Detail::Call {
            func: names::func_id(a.func),
            amount: bytes(a.count, names::datatype_id(a.datatype)),
            seq: 0,
        },
        Body::CeColl(c) => Detail::Call {
            func: names::func_id(c.base.func),
            amount: bytes(c.base.count, names::datatype_id(c.base.datatype)),
            seq: c.base.seq,
        },
        Body::CeBatch { total_bytes, .. } => {
            Detail::Call { func: UNSET, amount: *total_bytes as u64, seq: 0 }
        }
        Body::Nothing
        | Body::NetPlugin { .. }
        | Body::GroupApi { .. }
        | Body::KernelLaunch { .. }
        | Body::CeSync { .. } => Detail::Nothing,
    };
    // Up to version 4 the group is the parent; since then it stands beside it, and the API call is the parent.
    let parent = raw.parent as u64;
    Event { kind: raw.kind, parent, rank: rank(raw.rank), detail }
}

fn coll(c: &Coll, version: u32) -> Op {
    Op {
        func: names::func_id(c.func),
        algo: names::algo_id(c.algo),
        proto: names::proto_id(c.proto),
        peer: UNSET,
        count: c.count as u64,
        datatype_bytes: datatype_bytes(names::datatype_id(c.datatype)),
        channels: c.channels.into(),
        // Kernel events came with version 3.
        kernels: if version >= 3 { c.channels.into() } else { 0 },
        seq: Some(c.seq),
        comm_hash: c.comm_hash,
    }
}

fn p2p(p: &P2p, version: u32) -> Op {
    // Before version 4 nothing says how many channels a send or receive has.
    let channels = if version >= 4 { p.channels.into() } else { 0 };
    Op {
        func: names::func_id(p.func),
        algo: UNSET,
        proto: UNSET,
        peer: rank(p.peer),
        count: p.count as u64,
        datatype_bytes: datatype_bytes(names::datatype_id(p.datatype)),
        channels,
        kernels: channels,
        seq: None,
        comm_hash: p.comm_hash,
    }
}

/// A rank, or unset for what is none.
fn rank(number: c_int) -> u32 {
    u32::try_from(number).unwrap_or(UNSET)
}

fn bytes(count: usize, datatype: u32) -> u64 {
    (count as u64).saturating_mul(datatype_bytes(datatype).into())
}

/// Bytes of an element of `ncclDataType_t`; 0 for none.
fn datatype_bytes(datatype: u32) -> u32 {
    match datatype {
        0 | 1 | 10 | 11 => 1,
        6 | 9 => 2,
        2 | 3 | 7 => 4,
        4 | 5 | 8 => 8,
        _ => 0,
    }
}

/// Kinds whose handles NCCL gives as parents beside [`Raw::parent`].
pub(super) fn parent_group(raw: &mut Raw) -> Option<&mut usize> {
    match &mut raw.body {
        Body::Coll(c) => Some(&mut c.parent_group),
        Body::P2p(p) => Some(&mut p.parent_group),
        _ => None,
    }
}
