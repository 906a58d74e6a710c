//! [`Kind`]: the program types of the kernel that have a context which our [`CtxLayout`] can say, and their
//! environments. Offsets and rights are those of the kernel's `is_valid_access` callbacks.

use ringfence_translator::Env;
use ringfence_translator::verify::{CtxField, CtxLayout, RankLabel, ReturnRule, Rights};

/// A program type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `BPF_PROG_TYPE_SOCKET_FILTER`
    Socket,
    /// `KPROBE`, with uprobes
    Kprobe,
    /// `SCHED_CLS` and `SCHED_ACT`
    Tc,
    /// `TRACEPOINT`
    Tracepoint,
    /// `XDP`
    Xdp,
    /// `PERF_EVENT`
    PerfEvent,
    /// `CGROUP_SKB`
    CgroupSkb,
    /// `LWT_IN`, `LWT_OUT`, `LWT_XMIT`
    Lwt,
    /// `RAW_TRACEPOINT`
    RawTracepoint,
    /// `SYSCALL`
    Syscall,
    /// Any other.
    Other,
}

/// Loads of pointers that the kernel gives a type of their own: bytes from the context's start and width.
const SKB_POINTERS: &[(i16, u32)] = &[(76, 4), (80, 4), (140, 4), (144, 8), (168, 8)];
const XDP_POINTERS: &[(i16, u32)] = &[(0, 4), (4, 4), (8, 4)];

/// `spin_lock`, `spin_unlock`, `ktime_get_coarse_ns`.
const NOT_FOR_TRACING: [u32; 3] = [93, 94, 160];

impl Kind {
    /// By the name of the ELF section, as libbpf reads it.
    pub fn of_section(section: &str) -> Kind {
        let section = section.trim_start_matches('?');
        let stem = section.split('/').next().unwrap_or(section);
        match stem {
            "socket" => Kind::Socket,
            "kprobe" | "kretprobe" | "uprobe" | "uretprobe" | "uprobe.s" => Kind::Kprobe,
            "tc" | "tcx" | "classifier" | "action" => Kind::Tc,
            "tracepoint" | "tp" => Kind::Tracepoint,
            "xdp" => Kind::Xdp,
            "perf_event" => Kind::PerfEvent,
            "cgroup" if section == "cgroup/skb" => Kind::CgroupSkb,
            "lwt_in" | "lwt_out" | "lwt_xmit" => Kind::Lwt,
            "raw_tp" | "raw_tracepoint" => Kind::RawTracepoint,
            "syscall" => Kind::Syscall,
            _ => Kind::Other,
        }
    }

    /// By `enum bpf_prog_type`.
    pub fn of_number(n: u64) -> Kind {
        match n {
            1 => Kind::Socket,
            2 => Kind::Kprobe,
            3 | 4 => Kind::Tc,
            5 => Kind::Tracepoint,
            6 => Kind::Xdp,
            7 => Kind::PerfEvent,
            8 => Kind::CgroupSkb,
            10..=12 => Kind::Lwt,
            17 => Kind::RawTracepoint,
            31 => Kind::Syscall,
            _ => Kind::Other,
        }
    }

    /// Pointers in the context that point to something that we do not have: packets, sockets, flow keys.
    pub fn typed_pointers(self) -> &'static [(i16, u32)] {
        match self {
            Kind::Socket | Kind::Tc | Kind::CgroupSkb | Kind::Lwt => SKB_POINTERS,
            Kind::Xdp => XDP_POINTERS,
            _ => &[],
        }
    }

    /// Offsets where the kernel takes writes of any width (`cb`); an element of our contexts has one.
    pub fn any_width(self) -> std::ops::Range<i16> {
        match self {
            Kind::Socket | Kind::Tc | Kind::CgroupSkb | Kind::Lwt => 48..68,
            _ => 0..0,
        }
    }

    /// What to verify such a program against; `None` for types that are out of scope.
    pub fn env(self) -> Option<Env> {
        let ctx = match self {
            Kind::Other => return None,
            Kind::Socket | Kind::Tc | Kind::CgroupSkb | Kind::Lwt => skb(self),
            Kind::Kprobe => fields(168, vec![input("regs", 0, 8, 21)]),
            Kind::Tracepoint => fields(8192, vec![input("data", 8, 8, 1023)]),
            Kind::Xdp => fields(24, vec![input("queue", 12, 4, 3)]),
            Kind::PerfEvent => fields(184, vec![input("regs", 0, 8, 21), input("sample", 168, 8, 2)]),
            Kind::RawTracepoint => fields(96, vec![input("args", 0, 8, 12)]),
            Kind::Syscall => CtxLayout::Buffer { size: 65535 },
        };
        let mut helpers = Env::kernel_like_helpers();
        helpers.retain(|h| !(self.traces() && NOT_FOR_TRACING.contains(&h.id)));
        Some(Env { hook: "kernel", ctx, helpers, ret: ReturnRule::Any, ..Env::generic(0) })
    }

    fn traces(self) -> bool {
        matches!(self, Kind::Kprobe | Kind::Tracepoint | Kind::PerfEvent | Kind::RawTracepoint)
    }

    /// A context as the kernel's BPF_PROG_TEST_RUN makes it of a packet of 64 bytes; `None` where it does not run such
    /// programs (and the tests' return values mean nothing).
    pub fn test_context(self) -> Option<Vec<u8>> {
        let mut bytes = vec![0; self.env()?.ctx.size() as usize];
        // The length, with the Ethernet header only for traffic control; the index of the loopback device.
        let (at, word) = match self {
            Kind::Tc => (0, 64),
            Kind::Socket | Kind::CgroupSkb | Kind::Lwt => (0, 50),
            Kind::Xdp => (12, 1),
            Kind::RawTracepoint | Kind::Syscall => (0, 0),
            Kind::Kprobe | Kind::Tracepoint | Kind::PerfEvent | Kind::Other => return None,
        };
        bytes[at..at + 4].copy_from_slice(&u32::to_le_bytes(word));
        Some(bytes)
    }
}

fn input(name: &'static str, offset: u32, width: u32, count: u32) -> CtxField {
    CtxField { name, offset, width, count, rights: Rights::Read, label: RankLabel::RankLocal }
}

fn fields(size: u32, fields: Vec<CtxField>) -> CtxLayout {
    CtxLayout::Fields { size, fields }
}

/// `struct __sk_buff` without its pointers.
fn skb(kind: Kind) -> CtxLayout {
    let all = [
        ("len", 0, 4, 1),
        ("pkt_type", 4, 4, 1),
        ("mark", 8, 4, 1),
        ("queue_mapping", 12, 4, 1),
        ("protocol", 16, 4, 1),
        ("vlan", 20, 4, 3),
        ("priority", 32, 4, 1),
        ("ifindex", 36, 4, 2),
        ("tc_index", 44, 4, 1),
        ("cb", 48, 4, 5),
        ("hash", 68, 4, 1),
        ("tc_classid", 72, 4, 1),
        ("napi_id", 84, 4, 1),
        ("addresses", 88, 4, 13),
        ("tstamp", 152, 8, 1),
        ("wire_len", 160, 4, 1),
        ("gso_segs", 164, 4, 1),
        ("gso_size", 176, 4, 1),
        ("tstamp_type", 180, 1, 1),
        ("hwtstamp", 184, 8, 1),
    ];
    let (hidden, writable): (&[&str], &[&str]) = match kind {
        Kind::Tc => {
            (&["addresses"], &["mark", "queue_mapping", "priority", "tc_index", "cb", "tc_classid", "tstamp"])
        }
        Kind::CgroupSkb => (&["tc_classid", "wire_len"], &["mark", "priority", "cb", "tstamp"]),
        Kind::Lwt => {
            (&["tc_classid", "addresses", "tstamp", "wire_len", "hwtstamp"], &["mark", "priority", "cb"])
        }
        _ => (&["tc_classid", "addresses", "tstamp", "wire_len", "hwtstamp"], &["cb"]),
    };
    let field = |&(name, offset, width, count): &(&'static str, u32, u32, u32)| CtxField {
        rights: if writable.contains(&name) { Rights::ReadWrite } else { Rights::Read },
        ..input(name, offset, width, count)
    };
    fields(192, all.iter().filter(|f| !hidden.contains(&f.0)).map(field).collect())
}
