//! [`Hook`]: the places where a policy can stand. Each is a [`Schema`], which says what a policy sees there and may decide.

use crate::schema::Schema;
use ringfence_translator::verify::Env;
use ringfence_translator::wasm::layout::CTX_MAX;
use std::fmt;
use std::sync::Arc;

/// A place where a policy can stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Hook {
    /// NCCL's tuner, with [`CollContext`](ringfence_guest::abi::CollContext).
    Tuner,
    /// The chunk size of a collective (tuner v6), with [`ChunkContext`](ringfence_guest::abi::ChunkContext).
    TunerChunk,
    /// The constants of NCCL's cost model, once per communicator (tuner v5 and later), with
    /// [`TunerInitContext`](ringfence_guest::abi::TunerInitContext).
    TunerInit,
    /// NCCL's tuner, for objects built for NCCLbpf: [`NcclBpfContext`](ringfence_guest::abi::NcclBpfContext) in, a packed action
    /// in r0 out.
    NcclBpf,
    /// A collective that has finished, with [`ProfilerContext`](ringfence_guest::abi::ProfilerContext).
    Profiler,
    /// An event of NCCL's profiler interface, with [`ProfilerEventContext`](ringfence_guest::abi::ProfilerEventContext).
    ProfilerEvent,
    /// A call of the net plugin below, with [`NetContext`](ringfence_guest::abi::NetContext).
    Net,
    /// A look-up of one of NCCL's settings, with [`EnvContext`](ringfence_guest::abi::EnvContext).
    Env,
    /// Any program over a byte buffer; not reachable from NCCL.
    Generic,
    /// A hook of some library, which brought its schema.
    Custom(&'static Schema),
}

impl Hook {
    /// All hooks but those that libraries bring.
    pub const ALL: [Hook; 9] = [
        Hook::Tuner,
        Hook::TunerChunk,
        Hook::TunerInit,
        Hook::NcclBpf,
        Hook::Profiler,
        Hook::ProfilerEvent,
        Hook::Net,
        Hook::Env,
        Hook::Generic,
    ];

    /// The hooks that a policy set may use: NCCL's, and those that libraries have brought into this process.
    pub fn offered() -> impl Iterator<Item = Hook> {
        let custom = Schema::all_custom().into_iter().map(Hook::Custom);
        Hook::ALL.into_iter().filter(|h| *h != Hook::Generic).chain(custom)
    }

    /// The name: that of the section, of `--hook` and of [`Env::hook`].
    pub fn name(self) -> &'static str {
        match self {
            Hook::Tuner => "tuner",
            Hook::TunerChunk => "tuner/chunk",
            Hook::TunerInit => "tuner/init",
            Hook::NcclBpf => "uprobe",
            Hook::Profiler => "profiler",
            Hook::ProfilerEvent => "profiler/event",
            Hook::Net => "net",
            Hook::Env => "env",
            Hook::Generic => "generic",
            Hook::Custom(schema) => schema.name(),
        }
    }

    /// The hook of that name, as `--hook` takes it; `ncclbpf` is another name for `uprobe`.
    pub fn parse(name: &str) -> Option<Hook> {
        match name {
            "ncclbpf" => Some(Hook::NcclBpf),
            _ => {
                let known = Hook::ALL.into_iter().find(|h| h.name() == name);
                known.or_else(|| Schema::custom(name).map(Hook::Custom))
            }
        }
    }

    /// The hook that an ELF section names: its name, or its name and `/ANYTHING`. The longest name counts, so `tuner/init/x` is
    /// of `tuner/init` and `tuner/x` of `tuner`.
    pub fn from_section(section: &str) -> Option<Hook> {
        if section == Hook::Generic.name() {
            return Some(Hook::Generic);
        }
        let named = |hook: &Hook| {
            let rest = section.strip_prefix(hook.name());
            rest.is_some_and(|rest| rest.is_empty() || rest.len() > 1 && rest.starts_with('/'))
        };
        let nccl =
            Hook::ALL.into_iter().filter(|h| *h != Hook::Generic && named(h)).max_by_key(|h| h.name().len());
        nccl.or_else(|| Schema::custom_of_section(section).map(Hook::Custom))
    }

    /// The hook as data; `None` for [`Hook::Generic`], whose context is a buffer of any size.
    pub fn schema(self) -> Option<&'static Schema> {
        match self {
            Hook::Custom(schema) => Some(schema),
            _ => Schema::builtin(self.name()),
        }
    }

    /// The environment that programs of this hook are verified against. For [`Hook::Generic`] the buffer has the
    /// largest size that fits; use [`Env::generic`] where the size is known.
    pub fn env(self) -> Arc<Env> {
        self.schema().map_or_else(|| Arc::new(Env::generic(CTX_MAX)), Schema::env)
    }

    /// Does this hook answer NCCL's tuner?
    #[inline]
    pub const fn decides(self) -> bool {
        matches!(self, Hook::Tuner | Hook::NcclBpf)
    }
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_name_hooks() {
        for (section, want) in [
            ("tuner", Some(Hook::Tuner)),
            ("tuner/size_aware", Some(Hook::Tuner)),
            ("tuner/chunk", Some(Hook::TunerChunk)),
            ("tuner/init", Some(Hook::TunerInit)),
            ("tuner/init/x", Some(Hook::TunerInit)),
            ("tuner/initial", Some(Hook::Tuner)),
            ("profiler", Some(Hook::Profiler)),
            ("profiler/latency", Some(Hook::Profiler)),
            ("profiler/event", Some(Hook::ProfilerEvent)),
            ("net/count", Some(Hook::Net)),
            ("env", Some(Hook::Env)),
            ("control", None),
            ("tuner/", None),
            ("tuners", None),
            ("uprobe", Some(Hook::NcclBpf)),
            ("uprobe/x", Some(Hook::NcclBpf)),
            ("generic", Some(Hook::Generic)),
            ("generic/x", None),
            ("xdp", None),
            ("", None),
        ] {
            assert_eq!(Hook::from_section(section), want, "{section}");
        }
    }

    #[test]
    fn names_parse() {
        for hook in Hook::ALL {
            assert_eq!(Hook::parse(hook.name()), Some(hook));
            assert_eq!(hook.env().hook, hook.name());
        }
        assert_eq!(Hook::parse("ncclbpf"), Some(Hook::NcclBpf));
        assert_eq!(Hook::parse("control"), None);
    }

    /// The fields of each schema are those of the ABI's struct: same names, places and widths, and the documented padding between.
    #[test]
    fn schemas_are_the_abi() {
        use ringfence_guest::abi::*;
        macro_rules! abi {
            ($ctx:ty { $($field:ident),* $(,)? } pad { $($pad:ident),* }) => {{
                fn size_of_field<F>(_: fn(&$ctx) -> &F) -> u32 { size_of::<F>() as u32 }
                let fields = vec![$((stringify!($field), std::mem::offset_of!($ctx, $field) as u32, size_of_field(|c: &$ctx| &c.$field))),*];
                let pads: Vec<u32> = vec![$(size_of_field(|c: &$ctx| &c.$pad)),*];
                (size_of::<$ctx>() as u32, fields, pads.iter().sum::<u32>())
            }};
        }
        let all = [
            (
                Hook::Tuner,
                abi!(CollContext { n_bytes, comm_id, func, n_ranks, n_nodes, num_pipe_ops, reg_buff, num_algo,
                num_proto, max_channels, available, n_nvl_domains, min_ranks_per_nvl_domain, max_ranks_per_nvl_domain,
                decision_algo, decision_proto, decision_channels, call_seq, cost_ns } pad { _pad0, _pad1 }),
            ),
            (
                Hook::TunerChunk,
                abi!(ChunkContext { comm_id, n_bytes, nccl_chunk_size, chunk_size, grain, func, algo, proto,
                channels, n_ranks, n_nodes } pad { _pad }),
            ),
            (
                Hook::TunerInit,
                abi!(TunerInitContext { comm_id, n_ranks, n_nodes, n_nvl_domains, min_ranks_per_nvl_domain,
                max_ranks_per_nvl_domain, base_latency_ns, hw_latency_ns, ll_max_bw, ring_ll128_max_bw, tree_ll128_max_bw,
                tree_max_bw, nvls_tree_max_bw } pad { _pad }),
            ),
            (
                Hook::NcclBpf,
                abi!(NcclBpfContext { n_bytes, last_latency_ns, avg_latency_ns, rolling_p99_ns, call_count,
                coll_type, num_pipe_ops, reg_buff, n_ranks, n_nodes, current_channels, reserved } pad { _pad }),
            ),
            (
                Hook::Profiler,
                abi!(ProfilerContext { comm_id, n_bytes, duration_ns, seq, end_ns, func, algo, proto, channels,
                rank, n_ranks, n_nodes, timing, datatype_bytes, peer, flags, comm_name } pad { _pad }),
            ),
            (
                Hook::ProfilerEvent,
                abi!(ProfilerEventContext { comm_id, time_ns, handle, parent, value, seq, action, event,
                state, channel, peer, pid, rank, func } pad { }),
            ),
            (
                Hook::Net,
                abi!(NetContext { comm_id, conn, size, time_ns, latency_ns, op, dev, tag, count, in_flight, result,
                attr_op, attr_algo, attr_proto, verdict } pad { }),
            ),
            (Hook::Env, abi!(EnvContext { name, name_len, nccl_version, action, value_len, value } pad { })),
        ];
        assert_eq!(all.len() + 1, Hook::ALL.len());
        for (hook, (size, fields, padding)) in all {
            let env = hook.env();
            assert_eq!((env.hook, env.ctx.size()), (hook.name(), size), "{hook}");
            let got: Vec<_> = env.ctx.fields().iter().map(|f| (f.name, f.offset, f.bytes())).collect();
            assert_eq!(got, fields, "{hook}");
            assert_eq!(fields.iter().map(|f| f.2).sum::<u32>() + padding, size, "{hook}");
        }
    }
}
