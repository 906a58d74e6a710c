//! [`Inputs`]: the inputs of one decision, set by the names of the hook's context fields.

use super::{names, number};
use crate::decision::{Algo, CommInfo, Decision, MAX_CHANNELS, Proto};
use crate::hooks::Hook;
use anyhow::{Context, bail};
use ringfence_guest::abi::{UNSET, func};
use std::num::NonZeroU32;

/// Fields of the tuner's context that can be set.
const TUNER: [&str; 15] = [
    "n_bytes",
    "comm_id",
    "func",
    "n_ranks",
    "n_nodes",
    "num_pipe_ops",
    "reg_buff",
    "max_channels",
    "n_nvl_domains",
    "min_ranks_per_nvl_domain",
    "max_ranks_per_nvl_domain",
    "call_seq",
    "decision_algo",
    "decision_proto",
    "decision_channels",
];
/// Fields of NCCLbpf's context that can be set.
const NCCLBPF: [&str; 8] = [
    "n_bytes",
    "call_count",
    "coll_type",
    "num_pipe_ops",
    "reg_buff",
    "n_ranks",
    "n_nodes",
    "current_channels",
];

/// Everything that a decision depends on, but NCCL's cost table.
#[derive(Clone, Debug)]
pub(super) struct Inputs {
    pub(super) comm: CommInfo,
    pub(super) func: u32,
    pub(super) n_bytes: u64,
    pub(super) num_pipe_ops: u32,
    pub(super) reg_buff: bool,
    pub(super) call_seq: u64,
    algo: u32,
    proto: u32,
    channels: u32,
}

impl Default for Inputs {
    /// An AllReduce of 1 MiB on eight ranks of one node.
    fn default() -> Inputs {
        Inputs {
            comm: CommInfo {
                comm_id: 1,
                n_ranks: 8,
                n_nodes: 1,
                max_channels: MAX_CHANNELS,
                ..CommInfo::default()
            },
            func: func::ALL_REDUCE,
            n_bytes: 1 << 20,
            num_pipe_ops: 1,
            reg_buff: false,
            call_seq: 0,
            algo: UNSET,
            proto: UNSET,
            channels: 0,
        }
    }
}

impl Inputs {
    /// The defaults with `NAME=VALUE` settings applied in order.
    pub(super) fn parse(hook: Hook, settings: &[String]) -> anyhow::Result<Inputs> {
        let known: &[&str] = if hook == Hook::NcclBpf { &NCCLBPF } else { &TUNER };
        let mut inputs = Inputs::default();
        for setting in settings {
            let (name, value) =
                setting.split_once('=').with_context(|| format!("\"{setting}\" is not NAME=VALUE"))?;
            if !known.contains(&name) {
                let derived = hook.env().ctx.fields().iter().any(|f| f.name == name);
                let why = if derived { "is filled by the host" } else { "is no field" };
                bail!("\"{name}\" {why} of hook {hook}; set any of {}", known.join(", "));
            }
            inputs.set(name, value).with_context(|| format!("{name}={value}"))?;
        }
        inputs.default_nvl_domains();
        Ok(inputs)
    }

    /// NVLink domains as NCCL fills them today: one per node.
    fn default_nvl_domains(&mut self) {
        let comm = &mut self.comm;
        let per_node = comm.n_ranks / comm.n_nodes.max(1);
        for (field, value) in [
            (&mut comm.n_nvl_domains, comm.n_nodes),
            (&mut comm.min_ranks_per_nvl_domain, per_node),
            (&mut comm.max_ranks_per_nvl_domain, per_node),
        ] {
            if *field == 0 {
                *field = value;
            }
        }
    }

    fn set(&mut self, name: &str, value: &str) -> anyhow::Result<()> {
        match name {
            "n_bytes" => self.n_bytes = number::parse(value)?,
            "comm_id" => self.comm.comm_id = number::parse(value)?,
            "call_seq" | "call_count" => self.call_seq = number::parse(value)?,
            "reg_buff" => self.reg_buff = small(value)? != 0,
            "func" | "coll_type" => self.func = named(value, names::func_by_name)?,
            "decision_algo" => self.algo = named(value, algo_by_name)?,
            "decision_proto" => self.proto = named(value, proto_by_name)?,
            "decision_channels" | "current_channels" => self.channels = small(value)?,
            "n_ranks" => self.comm.n_ranks = small(value)?,
            "n_nodes" => self.comm.n_nodes = small(value)?,
            "num_pipe_ops" => self.num_pipe_ops = small(value)?,
            "max_channels" => self.comm.max_channels = small(value)?,
            "n_nvl_domains" => self.comm.n_nvl_domains = small(value)?,
            "min_ranks_per_nvl_domain" => self.comm.min_ranks_per_nvl_domain = small(value)?,
            "max_ranks_per_nvl_domain" => self.comm.max_ranks_per_nvl_domain = small(value)?,
            _ => bail!("no such field"),
        }
        Ok(())
    }

    /// The decision of earlier policies of the chain.
    pub(super) fn so_far(&self) -> Decision {
        Decision {
            route: Algo::new(self.algo).zip(Proto::new(self.proto)),
            channels: NonZeroU32::new(self.channels),
        }
    }
}

fn small(value: &str) -> anyhow::Result<u32> {
    u32::try_from(number::parse(value)?).context("does not fit into 32 bits")
}

/// A name, or the number behind it.
fn named(value: &str, by_name: fn(&str) -> anyhow::Result<u32>) -> anyhow::Result<u32> {
    if value.starts_with(|c: char| c.is_ascii_digit()) { small(value) } else { by_name(value) }
}

fn algo_by_name(text: &str) -> anyhow::Result<u32> {
    let all = Algo::ALL.map(Algo::name).join(", ");
    Algo::parse(text).map(Algo::number).with_context(|| format!("no such algorithm (one of {all})"))
}

fn proto_by_name(text: &str) -> anyhow::Result<u32> {
    let all = Proto::ALL.map(Proto::name).join(", ");
    Proto::parse(text).map(Proto::number).with_context(|| format!("no such protocol (one of {all})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(hook: Hook, settings: &[&str]) -> anyhow::Result<Inputs> {
        Inputs::parse(hook, &settings.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn every_listed_field_is_one_of_the_hook_and_can_be_set() {
        for (hook, names) in [(Hook::Tuner, &TUNER[..]), (Hook::NcclBpf, &NCCLBPF)] {
            let env = hook.env();
            for name in names {
                assert!(env.ctx.fields().iter().any(|f| f.name == *name), "{name}");
                parse(hook, &[&format!("{name}=1")]).unwrap();
            }
        }
    }

    #[test]
    fn values_arrive() {
        let i = parse(Hook::Tuner, &["n_bytes=4M", "func=allgather", "n_ranks=16", "n_nodes=2"]).unwrap();
        assert_eq!((i.n_bytes, i.func, i.comm.n_ranks, i.comm.n_nodes), (4 << 20, func::ALL_GATHER, 16, 2));
        assert_eq!((i.comm.n_nvl_domains, i.comm.min_ranks_per_nvl_domain), (2, 8));
        let i = parse(Hook::Tuner, &["decision_algo=nvls", "decision_proto=simple", "decision_channels=4"])
            .unwrap();
        assert_eq!(i.so_far().to_string(), "NVLS/Simple channels=4");
        assert_eq!(
            parse(Hook::NcclBpf, &["coll_type=4", "current_channels=3"])
                .unwrap()
                .so_far()
                .channels
                .map(u32::from),
            Some(3)
        );
    }

    #[test]
    fn unknown_and_derived_fields_are_told_apart() {
        let text = |s| format!("{:#}", parse(Hook::Tuner, &[s]).unwrap_err());
        assert!(text("n_bites=1").contains("is no field of hook tuner; set any of n_bytes, "));
        assert!(text("cost_ns=1").contains("is filled by the host"));
        assert!(text("n_ranks=4G").contains("32 bits"));
    }
}
