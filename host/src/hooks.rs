//! [`Hook`]: the places where a policy can stand, each with the environment that it is verified against.

use ringfence_guest::abi::{CollContext, NcclBpfContext};
use ringfence_translator::limits;
use ringfence_translator::verify::{CtxField, CtxLayout, Env, RankLabel, ReturnRule, Rights};
use ringfence_translator::wasm::layout::CTX_MAX;
use std::fmt;
use std::mem::{offset_of, size_of};
use std::sync::Arc;

/// A place where a policy can stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Hook {
    /// NCCL's tuner, with [`CollContext`].
    Tuner,
    /// NCCL's tuner, for objects built for NCCLbpf: [`NcclBpfContext`] in, a packed action in r0 out.
    NcclBpf,
    /// Any program over a byte buffer; not reachable from NCCL.
    Generic,
}

impl Hook {
    /// All hooks.
    pub const ALL: [Hook; 3] = [Hook::Tuner, Hook::NcclBpf, Hook::Generic];

    /// The name: that of the section, of `--hook` and of [`Env::hook`].
    pub const fn name(self) -> &'static str {
        match self {
            Hook::Tuner => "tuner",
            Hook::NcclBpf => "uprobe",
            Hook::Generic => "generic",
        }
    }

    /// The hook of that name, as `--hook` takes it; `ncclbpf` is another name for `uprobe`.
    pub fn parse(name: &str) -> Option<Hook> {
        match name {
            "ncclbpf" => Some(Hook::NcclBpf),
            _ => Hook::ALL.into_iter().find(|h| h.name() == name),
        }
    }

    /// The hook that an ELF section names: `tuner`, `tuner/NAME` (but not `tuner/chunk` and `tuner/init`, which are
    /// interfaces of their own), `uprobe`, `uprobe/NAME`, `generic`.
    pub fn from_section(section: &str) -> Option<Hook> {
        let (head, tail) = section.split_once('/').map_or((section, None), |(h, t)| (h, Some(t)));
        match (head, tail) {
            ("tuner", Some("chunk" | "init" | "")) => None,
            ("tuner", _) => Some(Hook::Tuner),
            ("uprobe", _) => Some(Hook::NcclBpf),
            ("generic", None) => Some(Hook::Generic),
            _ => None,
        }
    }

    /// The environment that programs of this hook are verified against. For [`Hook::Generic`] the buffer has the
    /// largest size that fits; use [`Env::generic`] where the size is known.
    pub fn env(self) -> Arc<Env> {
        Arc::new(match self {
            Hook::Tuner => hook_env(self, size_of::<CollContext>(), tuner_fields()),
            Hook::NcclBpf => hook_env(self, size_of::<NcclBpfContext>(), ncclbpf_fields()),
            Hook::Generic => Env::generic(CTX_MAX),
        })
    }

    /// Does this hook answer NCCL's tuner?
    pub const fn decides(self) -> bool {
        matches!(self, Hook::Tuner | Hook::NcclBpf)
    }
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

fn hook_env(hook: Hook, size: usize, fields: Vec<CtxField>) -> Env {
    Env {
        hook: hook.name(),
        ctx: CtxLayout::Fields { size: size as u32, fields },
        helpers: Env::base_helpers(),
        ret: ReturnRule::Scalar,
        insn_budget: limits::DEFAULT_INSN_BUDGET,
        run_budget: limits::DEFAULT_RUN_BUDGET,
    }
}

/// One field of a context struct: name, width, elements, right, label.
macro_rules! fields {
    ($ctx:ty; $($name:ident: $width:literal x $count:literal $rights:ident $label:ident,)*) => {
        vec![$(CtxField {
            name: stringify!($name),
            offset: offset_of!($ctx, $name) as u32,
            width: $width,
            count: $count,
            rights: Rights::$rights,
            label: RankLabel::$label,
        },)*]
    };
}

fn tuner_fields() -> Vec<CtxField> {
    fields! { CollContext;
        n_bytes: 8 x 1 Read Uniform,
        comm_id: 8 x 1 Read Uniform,
        func: 4 x 1 Read Uniform,
        n_ranks: 4 x 1 Read Uniform,
        n_nodes: 4 x 1 Read Uniform,
        num_pipe_ops: 4 x 1 Read Uniform,
        reg_buff: 4 x 1 Read RankLocal,
        num_algo: 4 x 1 Read Uniform,
        num_proto: 4 x 1 Read Uniform,
        max_channels: 4 x 1 Read Uniform,
        available: 4 x 1 Read Uniform,
        n_nvl_domains: 4 x 1 Read Uniform,
        min_ranks_per_nvl_domain: 4 x 1 Read Uniform,
        max_ranks_per_nvl_domain: 4 x 1 Read Uniform,
        decision_algo: 4 x 1 ReadWrite Uniform,
        decision_proto: 4 x 1 ReadWrite Uniform,
        decision_channels: 4 x 1 ReadWrite Uniform,
        call_seq: 8 x 1 Read RankLocal,
        cost_ns: 4 x 21 Read RankLocal,
    }
}

fn ncclbpf_fields() -> Vec<CtxField> {
    fields! { NcclBpfContext;
        n_bytes: 8 x 1 Read Uniform,
        last_latency_ns: 8 x 1 Read RankLocal,
        avg_latency_ns: 8 x 1 Read RankLocal,
        rolling_p99_ns: 8 x 1 Read RankLocal,
        call_count: 8 x 1 Read RankLocal,
        coll_type: 4 x 1 Read Uniform,
        num_pipe_ops: 4 x 1 Read Uniform,
        reg_buff: 4 x 1 Read RankLocal,
        n_ranks: 4 x 1 Read Uniform,
        n_nodes: 4 x 1 Read Uniform,
        current_channels: 4 x 1 Read Uniform,
        reserved: 4 x 1 Read Uniform,
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
            ("tuner/chunk", None),
            ("tuner/init", None),
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
        assert_eq!(Hook::parse("profiler"), None);
    }

    /// The fields, together with the documented padding, tile each context.
    #[test]
    fn fields_tile_the_contexts() {
        for (hook, padding) in
            [(Hook::Tuner, &[76..80, 172..176][..]), (Hook::NcclBpf, &[68..72, 72..72][..])]
        {
            let env = hook.env();
            let mut covered = vec![0; env.ctx.size() as usize];
            for f in env.ctx.fields() {
                covered[f.offset as usize..(f.offset + f.bytes()) as usize].iter_mut().for_each(|c| *c += 1);
                assert_eq!(f.offset % f.width, 0, "{}", f.name);
            }
            for (at, n) in covered.iter().enumerate() {
                assert_eq!(*n, i32::from(!padding.iter().any(|p| p.contains(&at))), "{hook}+{at}");
            }
        }
    }
}
