//! The C header repeats the ABI that guest-sdk defines: a C program that prints the header's layouts and numbers is
//! compiled with the host's compiler, and its output compared, line by line, with what Rust says.

use ringfence_guest::Verdict;
use ringfence_guest::abi::{
    self, ChunkContext, CollContext, EnvContext, NetContext, ProfilerContext, ProfilerEventContext,
    TunerInitContext, algo, env_action, event_action, func, helper, map_type, net_op, net_verdict,
    profiler_flag, proto, timing, update,
};
use ringfence_guest::telemetry::{SloConfig, TELEMETRY_ENTRIES, Telemetry, TelemetryKey};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// An expression of C, and the value that Rust gives to it.
type Row = (String, u64);

fn size_of_field<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

/// Size and alignment of a struct, and offset and size of each field. A field that is not listed leaves a gap.
macro_rules! layout {
    ($rows:ident, $c:literal = $ty:ident { $($field:ident),+ $(,)? }) => {{
        $rows.push((concat!("sizeof(struct ", $c, ")").to_owned(), size_of::<$ty>() as u64));
        $rows.push((concat!("_Alignof(struct ", $c, ")").to_owned(), align_of::<$ty>() as u64));
        let mut end = 0;
        $(
            let (name, at) = (stringify!($field), std::mem::offset_of!($ty, $field));
            let bytes = size_of_field(|x: &$ty| &x.$field);
            assert_eq!(at, end, concat!("a field before ", $c, ".{} is not listed"), name);
            end = at + bytes;
            $rows.push((format!(concat!("offsetof(struct ", $c, ", {})"), name), at as u64));
            $rows.push((format!(concat!("sizeof(((struct ", $c, " *)0)->{})"), name), bytes as u64));
        )+
        assert_eq!(end, size_of::<$ty>(), concat!("a field at the end of ", $c, " is not listed"));
    }};
}

fn layouts() -> Vec<Row> {
    let mut rows = Vec::new();
    layout!(
        rows,
        "CollContext" = CollContext {
            n_bytes,
            comm_id,
            func,
            n_ranks,
            n_nodes,
            num_pipe_ops,
            reg_buff,
            num_algo,
            num_proto,
            max_channels,
            available,
            n_nvl_domains,
            min_ranks_per_nvl_domain,
            max_ranks_per_nvl_domain,
            decision_algo,
            decision_proto,
            decision_channels,
            _pad0,
            call_seq,
            cost_ns,
            _pad1,
        }
    );
    layout!(
        rows,
        "ChunkContext" = ChunkContext {
            comm_id,
            n_bytes,
            nccl_chunk_size,
            chunk_size,
            grain,
            func,
            algo,
            proto,
            channels,
            n_ranks,
            n_nodes,
            _pad
        }
    );
    layout!(
        rows,
        "TunerInitContext" = TunerInitContext {
            comm_id,
            n_ranks,
            n_nodes,
            n_nvl_domains,
            min_ranks_per_nvl_domain,
            max_ranks_per_nvl_domain,
            _pad,
            base_latency_ns,
            hw_latency_ns,
            ll_max_bw,
            ring_ll128_max_bw,
            tree_ll128_max_bw,
            tree_max_bw,
            nvls_tree_max_bw
        }
    );
    layout!(
        rows,
        "ProfilerContext" = ProfilerContext {
            comm_id,
            n_bytes,
            duration_ns,
            seq,
            end_ns,
            func,
            algo,
            proto,
            channels,
            rank,
            n_ranks,
            n_nodes,
            timing,
            datatype_bytes,
            peer,
            flags,
            _pad,
            comm_name
        }
    );
    layout!(
        rows,
        "ProfilerEventContext" = ProfilerEventContext {
            comm_id,
            time_ns,
            handle,
            parent,
            value,
            seq,
            action,
            event,
            state,
            channel,
            peer,
            pid,
            rank,
            func
        }
    );
    layout!(
        rows,
        "NetContext" = NetContext {
            comm_id,
            conn,
            size,
            time_ns,
            latency_ns,
            op,
            dev,
            tag,
            count,
            in_flight,
            result,
            attr_op,
            attr_algo,
            attr_proto,
            verdict
        }
    );
    layout!(rows, "EnvContext" = EnvContext { name, name_len, nccl_version, action, value_len, value });
    layout!(rows, "rf_telemetry_key" = TelemetryKey { func, n_nodes });
    layout!(
        rows,
        "rf_telemetry" = Telemetry {
            last_latency_ns,
            avg_latency_ns,
            p99_latency_ns,
            last_n_bytes,
            samples,
            recommended_channels,
            applied_samples,
            reserved,
        }
    );
    layout!(rows, "rf_slo_config" = SloConfig { target_p99_ns, min_channels, max_channels, step, reserved });
    rows
}

/// `prefix NAME` in C is `module::NAME` in Rust.
macro_rules! constants {
    ($rows:ident, $prefix:literal, $module:ident: $($name:ident),+) => {
        $rows.extend([$((concat!($prefix, stringify!($name)).to_owned(), u64::from($module::$name))),+]);
    };
}

fn constants() -> Vec<Row> {
    let mut rows = Vec::new();
    constants!(rows, "RF_FUNC_", func: BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE);
    constants!(rows, "RF_FUNC_", func: SEND_RECV, SEND, RECV, ALL_TO_ALL, SCATTER, GATHER, ALL_GATHER_V);
    constants!(rows, "RF_TIMING_", timing: GPU, KERNEL_HOST, ENQUEUE);
    constants!(rows, "RF_PROFILER_", profiler_flag: INCOMPLETE);
    constants!(rows, "RF_EVENT_", event_action: START, STOP, STATE);
    constants!(rows, "RF_NET_", net_op: INIT, LISTEN, CONNECT, ACCEPT, REG_MR, DEREG_MR, ISEND, IRECV, IFLUSH);
    constants!(rows, "RF_NET_", net_op: TEST_DONE, CLOSE_SEND, CLOSE_RECV, CLOSE_LISTEN, FINALIZE, COUNT);
    constants!(rows, "RF_NET_", net_verdict: ALLOW, DENY);
    constants!(rows, "RF_ENV_", env_action: PASS, ANSWER, HIDE);
    constants!(rows, "RF_ALGO_", algo: TREE, RING, COLLNET_DIRECT, COLLNET_CHAIN, NVLS, NVLS_TREE, PAT, COUNT);
    constants!(rows, "RF_PROTO_", proto: LL, LL128, SIMPLE, COUNT);
    constants!(rows, "BPF_MAP_TYPE_", map_type: HASH, ARRAY, PROG_ARRAY, PERCPU_HASH, PERCPU_ARRAY, LRU_HASH, RINGBUF);
    constants!(rows, "BPF_", update: ANY, NOEXIST, EXIST, F_LOCK);
    constants!(rows, "RF_", abi: UNSET);
    rows.push(("RF_SUBMIT".to_owned(), Verdict::Submit as u64));
    rows.push(("RF_KEEP".to_owned(), Verdict::Keep as u64));
    rows.push(("RF_TELEMETRY_ENTRIES".to_owned(), TELEMETRY_ENTRIES as u64));
    rows
}

/// Helpers are functions at the address of their number.
fn helpers() -> Vec<Row> {
    let table = [
        ("bpf_map_lookup_elem", helper::MAP_LOOKUP_ELEM),
        ("bpf_map_update_elem", helper::MAP_UPDATE_ELEM),
        ("bpf_map_delete_elem", helper::MAP_DELETE_ELEM),
        ("bpf_ktime_get_ns", helper::KTIME_GET_NS),
        ("bpf_trace_printk", helper::TRACE_PRINTK),
        ("bpf_get_prandom_u32", helper::GET_PRANDOM_U32),
        ("bpf_get_smp_processor_id", helper::GET_SMP_PROCESSOR_ID),
        ("bpf_tail_call", helper::TAIL_CALL),
        ("bpf_spin_lock", helper::SPIN_LOCK),
        ("bpf_spin_unlock", helper::SPIN_UNLOCK),
        ("bpf_ringbuf_output", helper::RINGBUF_OUTPUT),
        ("bpf_ringbuf_reserve", helper::RINGBUF_RESERVE),
        ("bpf_ringbuf_submit", helper::RINGBUF_SUBMIT),
        ("bpf_ringbuf_discard", helper::RINGBUF_DISCARD),
        ("bpf_ringbuf_query", helper::RINGBUF_QUERY),
        ("bpf_for_each_map_elem", helper::FOR_EACH_MAP_ELEM),
        ("bpf_loop", helper::LOOP),
        ("bpf_map_lookup_percpu_elem", helper::MAP_LOOKUP_PERCPU_ELEM),
    ];
    table.iter().map(|(name, id)| (format!("(unsigned long){name}"), u64::from(*id))).collect()
}

fn repo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// What C says about each expression.
fn evaluate(rows: &[Row]) -> Vec<u64> {
    let dir = tempfile::tempdir().unwrap();
    let (source, program) = (dir.path().join("abi.c"), dir.path().join("abi"));
    let prints: String = rows
        .iter()
        .map(|(expr, _)| format!("\tprintf(\"%llu\\n\", (unsigned long long)({expr}));\n"))
        .collect();
    let text = format!(
        "#include \"ringfence.h\"\n#include <stddef.h>\n#include <stdio.h>\nint main(void)\n{{\n{prints}\treturn 0;\n}}\n"
    );
    std::fs::write(&source, text).unwrap();
    let cc = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let status = Command::new(&cc)
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(repo().join("policies/include"))
        .args([&source, Path::new("-o"), &program])
        .status()
        .unwrap_or_else(|e| panic!("this test needs a C compiler, {cc}: {e}"));
    assert!(status.success());
    let output = Command::new(&program).output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().lines().map(|line| line.parse().unwrap()).collect()
}

#[test]
fn header_and_abi_agree() {
    let rows = [layouts(), constants(), helpers()].concat();
    let got = evaluate(&rows);
    assert_eq!(got.len(), rows.len());
    let wrong: Vec<String> = rows
        .iter()
        .zip(&got)
        .filter(|((_, rust), c)| rust != *c)
        .map(|((expr, rust), c)| format!("{expr}: {c} in C, {rust} in Rust"))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Names that `pattern` introduces at the start of a line of `file`.
fn names<'t>(text: &'t str, pattern: &str) -> BTreeSet<&'t str> {
    let name = |line: &'t str| {
        let rest = line.trim_start().strip_prefix(pattern)?;
        rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next()
    };
    text.lines().filter_map(name).filter(|n| !n.is_empty()).collect()
}

/// The tables above leave nothing out: every number of the header and of the ABI's modules for guests is in them.
#[test]
fn tables_are_complete() {
    let read = |path: &str| std::fs::read_to_string(repo().join(path)).unwrap();
    let (header, rust) = (read("policies/include/ringfence.h"), read("guest-sdk/src/abi.rs"));
    let constants = constants();
    let listed: BTreeSet<&str> = constants.iter().map(|(name, _)| name.as_str()).collect();
    // Macros that are no numbers.
    let other = [
        "RINGFENCE_H",
        "SEC",
        "RF_LICENSE",
        "RF_HELPER",
        "RF_TELEMETRY_MAP",
        "__uint",
        "__type",
        "__array",
        "bpf_printk",
    ];
    let defined: BTreeSet<&str> = names(&header, "#define ")
        .into_iter()
        .filter(|n| !other.contains(n) && *n != "__always_inline")
        .collect();
    assert_eq!(defined, listed);

    // `packed` is of objects built for NCCLbpf, which bring their own header.
    let body = |module: &str| {
        let start =
            rust.find(&format!("pub mod {module} {{")).unwrap_or_else(|| panic!("no module {module}"));
        &rust[start..start + rust[start..].find("\n}").unwrap()]
    };
    let prefixes = [
        ("func", "RF_FUNC_"),
        ("algo", "RF_ALGO_"),
        ("proto", "RF_PROTO_"),
        ("map_type", "BPF_MAP_TYPE_"),
        ("update", "BPF_"),
        ("timing", "RF_TIMING_"),
        ("profiler_flag", "RF_PROFILER_"),
        ("event_action", "RF_EVENT_"),
        ("net_op", "RF_NET_"),
        ("net_verdict", "RF_NET_"),
        ("env_action", "RF_ENV_"),
    ];
    for (module, prefix) in prefixes {
        for name in names(body(module), "pub const ") {
            assert!(
                listed.contains(format!("{prefix}{name}").as_str()),
                "abi::{module}::{name} is not in the header"
            );
        }
    }
    let helpers = helpers();
    let ids: BTreeSet<String> =
        names(body("helper"), "pub const ").iter().map(|n| n.to_lowercase()).collect();
    let declared: BTreeSet<String> =
        helpers.iter().map(|(expr, _)| expr.trim_start_matches("(unsigned long)bpf_").to_owned()).collect();
    assert_eq!(ids, declared);
}
