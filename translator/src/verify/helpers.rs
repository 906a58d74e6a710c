//! [`all`]: the signature of each helper that the verifier knows, as the kernel has them (kernel/bpf/helpers.c,
//! net/core/filter.c, kernel/trace/bpf_trace.c). Which of them a hook offers is its [`Env`](super::Env)'s to say.

use super::env::ArgKind::{self, *};
use super::env::HelperSig;
use super::env::RankLabel::{self, RankLocal as Local, Uniform};
use super::env::RetKind::{self, Length, MapValueOrNull, RecordOrNull, Void};

/// `map_lookup_elem`
pub(crate) const MAP_LOOKUP: u32 = 1;
/// `map_update_elem`
pub(crate) const MAP_UPDATE: u32 = 2;
/// `map_delete_elem`
pub(crate) const MAP_DELETE: u32 = 3;
/// `trace_printk`
pub(crate) const TRACE_PRINTK: u32 = 6;
/// `tail_call`
pub(crate) const TAIL_CALL: u32 = 12;
/// `spin_lock`
pub(crate) const SPIN_LOCK: u32 = 93;
/// `spin_unlock`
pub(crate) const SPIN_UNLOCK: u32 = 94;
/// `ringbuf_submit`
pub(crate) const RINGBUF_SUBMIT: u32 = 132;
/// `ringbuf_discard`
pub(crate) const RINGBUF_DISCARD: u32 = 133;
/// `for_each_map_elem`
pub(crate) const FOR_EACH_MAP_ELEM: u32 = 164;
/// `loop`
pub(crate) const LOOP: u32 = 181;
/// `map_lookup_percpu_elem`
pub(crate) const MAP_LOOKUP_PERCPU: u32 = 195;

/// Does the helper call back into the program?
pub(crate) const fn calls_back(id: u32) -> bool {
    matches!(id, FOR_EACH_MAP_ELEM | LOOP)
}

/// Does the helper take whatever lies in the registers behind the arguments of its signature? Nobody looks at what they hold
/// (Linux `ARG_DONTCARE`): the helper must take it as numbers.
pub(crate) const fn is_variadic(id: u32) -> bool {
    id == TRACE_PRINTK
}

type Row = (u32, &'static str, &'static [ArgKind], RetKind, RankLabel);

const NUMBER: RetKind = RetKind::Scalar;

/// By number. What a clock, a map or a callback says may differ between ranks.
const ROWS: &[Row] = &[
    (MAP_LOOKUP, "map_lookup_elem", &[MapObject, MapKey], MapValueOrNull, Uniform),
    (MAP_UPDATE, "map_update_elem", &[MapObject, MapKey, MapValue, Scalar], NUMBER, Uniform),
    (MAP_DELETE, "map_delete_elem", &[MapObject, MapKey], NUMBER, Uniform),
    (4, "probe_read", &[UninitMem, SizeOrZero, Any], NUMBER, Local),
    (5, "ktime_get_ns", &[], NUMBER, Local),
    (TRACE_PRINTK, "trace_printk", &[Mem, Size], NUMBER, Local),
    (7, "get_prandom_u32", &[], NUMBER, Local),
    (8, "get_smp_processor_id", &[], NUMBER, Local),
    (9, "skb_store_bytes", &[Ctx, Scalar, Mem, Size, Scalar], NUMBER, Local),
    (TAIL_CALL, "tail_call", &[Ctx, MapObject, Scalar], Void, Local),
    (14, "get_current_pid_tgid", &[], NUMBER, Local),
    (15, "get_current_uid_gid", &[], NUMBER, Local),
    (16, "get_current_comm", &[UninitMem, Size], NUMBER, Local),
    (26, "skb_load_bytes", &[Ctx, Scalar, UninitMem, Size], NUMBER, Local),
    (28, "csum_diff", &[MemOrNull, SizeOrZero, MemOrNull, SizeOrZero, Scalar], NUMBER, Local),
    (34, "get_hash_recalc", &[Ctx], NUMBER, Local),
    (35, "get_current_task", &[], NUMBER, Local),
    (39, "skb_pull_data", &[Ctx, Scalar], NUMBER, Local),
    (42, "get_numa_node_id", &[], NUMBER, Local),
    (45, "probe_read_str", &[UninitMem, SizeOrZero, Any], Length, Local),
    (46, "get_socket_cookie", &[Ctx], NUMBER, Local),
    (67, "get_stack", &[Ctx, UninitMem, SizeOrZero, Scalar], Length, Local),
    (80, "get_current_cgroup_id", &[], NUMBER, Local),
    (SPIN_LOCK, "spin_lock", &[SpinLock], Void, Uniform),
    (SPIN_UNLOCK, "spin_unlock", &[SpinLock], Void, Uniform),
    (112, "probe_read_user", &[UninitMem, SizeOrZero, Any], NUMBER, Local),
    (113, "probe_read_kernel", &[UninitMem, SizeOrZero, Any], NUMBER, Local),
    (114, "probe_read_user_str", &[UninitMem, SizeOrZero, Any], Length, Local),
    (115, "probe_read_kernel_str", &[UninitMem, SizeOrZero, Any], Length, Local),
    (118, "jiffies64", &[], NUMBER, Local),
    (125, "ktime_get_boot_ns", &[], NUMBER, Local),
    (130, "ringbuf_output", &[MapObject, Mem, SizeOrZero, Scalar], NUMBER, Local),
    (131, "ringbuf_reserve", &[MapObject, ConstSize, Scalar], RecordOrNull, Local),
    (RINGBUF_SUBMIT, "ringbuf_submit", &[Record, Scalar], Void, Uniform),
    (RINGBUF_DISCARD, "ringbuf_discard", &[Record, Scalar], Void, Uniform),
    (134, "ringbuf_query", &[MapObject, Scalar], NUMBER, Local),
    (160, "ktime_get_coarse_ns", &[], NUMBER, Local),
    (FOR_EACH_MAP_ELEM, "for_each_map_elem", &[MapObject, Callback, StackOrNull, Scalar], NUMBER, Local),
    (LOOP, "loop", &[Scalar, Callback, StackOrNull, Scalar], NUMBER, Local),
    (MAP_LOOKUP_PERCPU, "map_lookup_percpu_elem", &[MapObject, MapKey, Scalar], MapValueOrNull, Uniform),
    (208, "ktime_get_tai_ns", &[], NUMBER, Local),
];

/// All of them, by number.
pub(super) fn all() -> Vec<HelperSig> {
    let sig = |&(id, name, args, ret, label): &Row| HelperSig { id, name, args: args.to_vec(), ret, label };
    ROWS.iter().map(sig).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_ordered_and_make_sense() {
        assert!(ROWS.windows(2).all(|w| w[0].0 < w[1].0));
        for (id, name, args, ret, _) in ROWS {
            assert!(args.len() <= 5, "{name}");
            for (i, arg) in args.iter().enumerate() {
                let sized = matches!(arg, Mem | MemOrNull | UninitMem);
                let size = matches!(args.get(i + 1), Some(Size | SizeOrZero));
                assert_eq!(sized, size, "{name}: memory and its size go together");
                let of_map = matches!(arg, MapKey | MapValue);
                assert!(!of_map || args[..i].contains(&MapObject), "{name}: whose key?");
            }
            let needs_map = matches!(ret, MapValueOrNull | RecordOrNull);
            assert!(!needs_map || args.contains(&MapObject), "{name}");
            assert!(*ret != Length || args.contains(&UninitMem), "{name}: the length of what?");
            assert_eq!(calls_back(*id), args.contains(&Callback), "{name}");
        }
    }
}
