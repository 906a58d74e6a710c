//! [`Event`]: what NCCL tells of a starting event, without pointers; [`Kind`]: its type; [`state`]: the numbers of state records.

use std::fmt;

/// Type of an event: NCCL's bit is `1 << kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Kind {
    Group = 0,
    Coll = 1,
    P2p = 2,
    ProxyOp = 3,
    ProxyStep = 4,
    ProxyCtrl = 5,
    KernelCh = 6,
    NetPlugin = 7,
    GroupApi = 8,
    CollApi = 9,
    P2pApi = 10,
    KernelLaunch = 11,
    CeColl = 12,
    CeSync = 13,
    CeBatch = 14,
    KernelPhase = 15,
}

impl Kind {
    /// All kinds, by number.
    pub const ALL: [Kind; 16] = [
        Kind::Group,
        Kind::Coll,
        Kind::P2p,
        Kind::ProxyOp,
        Kind::ProxyStep,
        Kind::ProxyCtrl,
        Kind::KernelCh,
        Kind::NetPlugin,
        Kind::GroupApi,
        Kind::CollApi,
        Kind::P2pApi,
        Kind::KernelLaunch,
        Kind::CeColl,
        Kind::CeSync,
        Kind::CeBatch,
        Kind::KernelPhase,
    ];

    /// NCCL's bit of the event mask.
    #[inline]
    pub const fn bit(self) -> u32 {
        1 << self as u32
    }

    /// The kind that a descriptor's type names: exactly one known bit.
    #[inline]
    pub fn of_bit(bit: u64) -> Option<Kind> {
        if bit.is_power_of_two() { Kind::of_number(bit.trailing_zeros()) } else { None }
    }

    /// The kind of that number.
    #[inline]
    pub fn of_number(number: u32) -> Option<Kind> {
        Kind::ALL.get(number as usize).copied()
    }

    /// The name in manifests, logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Group => "group",
            Kind::Coll => "coll",
            Kind::P2p => "p2p",
            Kind::ProxyOp => "proxy_op",
            Kind::ProxyStep => "proxy_step",
            Kind::ProxyCtrl => "proxy_ctrl",
            Kind::KernelCh => "kernel_ch",
            Kind::NetPlugin => "net_plugin",
            Kind::GroupApi => "group_api",
            Kind::CollApi => "coll_api",
            Kind::P2pApi => "p2p_api",
            Kind::KernelLaunch => "kernel_launch",
            Kind::CeColl => "ce_coll",
            Kind::CeSync => "ce_sync",
            Kind::CeBatch => "ce_batch",
            Kind::KernelPhase => "kernel_phase",
        }
    }

    /// The kind of that name.
    pub fn parse(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|k| k.name() == name)
    }

    /// Types whose request makes NCCL start this type as well, itself included, as `src/plugin/profiler.cc` of 2.30.7 has it:
    /// who asks for a child gets its ancestors.
    pub const fn started_by(self) -> u32 {
        const PROXY: u32 = Kind::ProxyOp.bit() | Kind::ProxyStep.bit() | Kind::NetPlugin.bit();
        const KERNEL: u32 = Kind::KernelCh.bit() | Kind::KernelPhase.bit();
        const CE: u32 = Kind::CeColl.bit() | Kind::CeSync.bit() | Kind::CeBatch.bit();
        const TASK: u32 = PROXY | KERNEL;
        const GROUP: u32 = TASK | Kind::Group.bit() | Kind::Coll.bit() | Kind::P2p.bit();
        const API: u32 = Kind::CollApi.bit() | Kind::P2pApi.bit() | Kind::KernelLaunch.bit();
        match self {
            Kind::Group => GROUP,
            Kind::Coll => TASK | Kind::Coll.bit(),
            Kind::P2p => TASK | Kind::P2p.bit(),
            Kind::ProxyOp => PROXY,
            Kind::ProxyStep => Kind::ProxyStep.bit() | Kind::NetPlugin.bit(),
            Kind::KernelCh => KERNEL,
            Kind::GroupApi => GROUP | CE | API | Kind::GroupApi.bit(),
            Kind::CollApi => TASK | CE | Kind::CollApi.bit() | Kind::Coll.bit(),
            Kind::P2pApi => TASK | Kind::P2pApi.bit() | Kind::P2p.bit(),
            Kind::CeColl => CE,
            Kind::ProxyCtrl
            | Kind::NetPlugin
            | Kind::KernelLaunch
            | Kind::CeSync
            | Kind::CeBatch
            | Kind::KernelPhase => self.bit(),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Numbers of state records (`ncclProfilerEventState_t`) that matter here.
#[allow(missing_docs)]
pub mod state {
    pub const PROXY_OP_FIRST: i32 = 0;
    pub const PROXY_OP_LAST: i32 = 7;
    pub const STEP_FIRST: i32 = 8;
    pub const STEP_LAST: i32 = 12;
    pub const CTRL_FIRST: i32 = 13;
    pub const CTRL_LAST: i32 = 18;
    pub const PROXY_OP_IN_PROGRESS: i32 = 19;
    pub const STEP_SEND_PEER_WAIT: i32 = 20;
    pub const NET_PLUGIN_UPDATE: i32 = 21;
    pub const KERNEL_CH_STOP: i32 = 22;
    pub const GROUP_START_API_STOP: i32 = 23;
    pub const GROUP_END_API_START: i32 = 24;
    pub const CE_COLL_START: i32 = 25;
    pub const CE_BATCH_COMPLETE: i32 = 30;
    pub const KERNEL_PHASE_STOP: i32 = 31;
}

/// A collective or a send or receive, as its event tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// `ncclFunc_t`, or [`UNSET`](ringfence_guest::abi::UNSET).
    pub func: u32,
    /// Algorithm, or unset.
    pub algo: u32,
    /// Protocol, or unset.
    pub proto: u32,
    /// The other side of a send or receive, or unset.
    pub peer: u32,
    /// Elements, as the caller of NCCL counts them.
    pub count: u64,
    /// Bytes of an element; 0 if unknown.
    pub datatype_bytes: u32,
    /// Channels, as NCCL tells.
    pub channels: u32,
    /// Kernels to expect, one a channel; 0: none will tell of its end.
    pub kernels: u32,
    /// NCCL's sequence number; `None` for sends and receives, which have none.
    pub seq: Option<u64>,
    /// The communicator's hash, which versions 1 to 3 tell here; 0 else.
    pub comm_hash: u64,
}

/// A starting event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Type.
    pub kind: Kind,
    /// The parent's handle as NCCL passed it; 0 for none.
    pub parent: u64,
    /// Rank that the event belongs to.
    pub rank: u32,
    /// What depends on the type.
    pub detail: Detail,
}

/// What an event tells beyond its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Nothing of use here.
    Nothing,
    /// A collective, send or receive.
    Op(Op),
    /// A proxy operation.
    ProxyOp {
        /// Process that started it; another one's with PXN.
        pid: u32,
        /// Channel.
        channel: u32,
        /// Peer.
        peer: u32,
        /// Bytes of a step.
        chunk_bytes: u64,
    },
    /// A step of a proxy operation.
    Step(u64),
    /// A kernel on a channel, or a phase of one, with the GPU's timer; 0: no timer.
    Kernel {
        /// Channel.
        channel: u32,
        /// Nanoseconds of the GPU's global timer.
        timer: u64,
    },
    /// A call of the API, a copy-engine collective or batch: what it does and how many bytes or elements.
    Call {
        /// `ncclFunc_t`, or unset.
        func: u32,
        /// Elements or bytes.
        amount: u64,
        /// Sequence number, or 0.
        seq: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_their_bits() {
        for (number, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, number);
            assert_eq!(Kind::of_bit(1 << number), Some(kind));
            assert_eq!(Kind::parse(kind.name()), Some(kind));
            assert!(kind.started_by() & kind.bit() != 0, "{kind}");
        }
        for bits in [0, 3, 1 << 16, 1 << 63, u64::MAX] {
            assert_eq!(Kind::of_bit(bits), None, "{bits:#x}");
        }
    }

    #[test]
    fn who_asks_for_a_child_gets_its_ancestors() {
        let chain =
            [Kind::GroupApi, Kind::CollApi, Kind::Coll, Kind::ProxyOp, Kind::ProxyStep, Kind::NetPlugin];
        for (depth, child) in chain.iter().enumerate() {
            for (other, kind) in chain.iter().enumerate() {
                assert_eq!(kind.started_by() & child.bit() != 0, other <= depth, "{child} starts {kind}");
            }
        }
        assert_eq!(Kind::ProxyCtrl.started_by(), Kind::ProxyCtrl.bit());
    }
}
