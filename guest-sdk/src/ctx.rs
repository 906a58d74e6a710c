//! [`TunerCtx`]: typed access to the context of the `tuner` hook.

use crate::abi::{CollContext, UNSET, proto};
use crate::decision::{Algo, Decision, Func, Proto};
use crate::raw;

/// The context of one decision. Getters read inputs, [`choose`](TunerCtx::choose),
/// [`set_channels`](TunerCtx::set_channels) and [`decide`](TunerCtx::decide) write the decision.
///
/// Every call is one access to one field, which the optimiser neither joins with another nor repeats: the
/// verifier allows nothing else. Inputs marked *rank-local* may differ between the ranks of a communicator.
pub struct TunerCtx<'a>(&'a mut CollContext);

macro_rules! inputs {
    ($($(#[$doc:meta])* $name:ident: $ty:ty,)*) => {
        $($(#[$doc])*
        #[inline(always)]
        pub fn $name(&self) -> $ty {
            raw::load(&self.0.$name)
        })*
    };
}

impl<'a> TunerCtx<'a> {
    /// Wraps the memory that the host hands to an entry point; [`tuner!`](crate::tuner) does this.
    #[inline(always)]
    pub fn new(ctx: &'a mut CollContext) -> TunerCtx<'a> {
        TunerCtx(ctx)
    }

    inputs! {
        /// Bytes of the collective (the full buffer for AllGather and ReduceScatter).
        n_bytes: u64,
        /// NCCL's communicator id; 0 for tuner v2 to v4.
        comm_id: u64,
        /// Ranks in the communicator.
        n_ranks: u32,
        /// Nodes in the communicator.
        n_nodes: u32,
        /// Tasks of the group divided by channels, rounded up; normally 1.
        num_pipe_ops: u32,
        /// The most channels that the host lets through.
        max_channels: u32,
        /// NVLink domains; 0 before tuner v5.
        n_nvl_domains: u32,
        /// Fewest ranks in a NVLink domain; 0 before tuner v5.
        min_ranks_per_nvl_domain: u32,
        /// Most ranks in a NVLink domain; 0 before tuner v5.
        max_ranks_per_nvl_domain: u32,
        /// Decisions on this communicator before this one. *Rank-local.*
        call_seq: u64,
    }

    /// The collective; `None` for one that this ABI does not know.
    #[inline(always)]
    pub fn func(&self) -> Option<Func> {
        Func::from_raw(self.func_id())
    }

    /// The collective's number, for use in keys.
    #[inline(always)]
    pub fn func_id(&self) -> u32 {
        raw::load(&self.0.func)
    }

    /// Are the buffers registered? *Rank-local.*
    #[inline(always)]
    pub fn reg_buff(&self) -> bool {
        raw::load(&self.0.reg_buff) != 0
    }

    /// Does NCCL offer this pair?
    #[inline(always)]
    pub fn is_available(&self, algo: Algo, proto: Proto) -> bool {
        raw::load(&self.0.available) >> pair(algo, proto) & 1 != 0
    }

    /// NCCL's estimate for the pair in nanoseconds; `None` where it does not offer it. *Rank-local.*
    #[inline(always)]
    pub fn cost_ns(&self, algo: Algo, proto: Proto) -> Option<u32> {
        let cost = raw::load(self.0.cost_ns.get(pair(algo, proto) as usize)?);
        (cost != UNSET).then_some(cost)
    }

    /// The decision so far: of earlier policies in the chain, and of this one.
    #[inline(always)]
    pub fn decision(&self) -> Decision {
        Decision::from_raw(
            raw::load(&self.0.decision_algo),
            raw::load(&self.0.decision_proto),
            self.channels(),
        )
    }

    /// The channels of the decision so far; 0 leaves the number to NCCL.
    #[inline(always)]
    pub fn channels(&self) -> u32 {
        raw::load(&self.0.decision_channels)
    }

    /// Asks for an algorithm and a protocol. NCCL's own choice stays if it does not offer the pair.
    #[inline(always)]
    pub fn choose(&mut self, algo: Algo, proto: Proto) {
        raw::store(&mut self.0.decision_algo, algo.raw());
        raw::store(&mut self.0.decision_proto, proto.raw());
    }

    /// Asks for a number of channels; 0 leaves it to NCCL. The host lowers it to `max_channels`.
    #[inline(always)]
    pub fn set_channels(&mut self, n: u32) {
        raw::store(&mut self.0.decision_channels, n);
    }

    /// Replaces the decision so far as a whole.
    #[inline(always)]
    pub fn decide(&mut self, decision: Decision) {
        let (algo, proto, channels) = decision.to_raw();
        raw::store(&mut self.0.decision_algo, algo);
        raw::store(&mut self.0.decision_proto, proto);
        raw::store(&mut self.0.decision_channels, channels);
    }
}

/// Bit of a pair in `available`, and its place in `cost_ns`.
#[inline(always)]
fn pair(algo: Algo, proto: Proto) -> u32 {
    algo.raw() * proto::COUNT + proto.raw()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::func;
    use core::num::NonZeroU32;

    fn context() -> CollContext {
        CollContext {
            n_bytes: 1 << 40,
            comm_id: 2,
            func: func::REDUCE_SCATTER,
            n_ranks: 4,
            n_nodes: 5,
            num_pipe_ops: 6,
            reg_buff: 1,
            num_algo: 7,
            num_proto: 3,
            max_channels: 8,
            available: 1 << 5 | 1 << 20,
            n_nvl_domains: 9,
            min_ranks_per_nvl_domain: 10,
            max_ranks_per_nvl_domain: 11,
            decision_algo: UNSET,
            decision_proto: UNSET,
            decision_channels: 0,
            _pad0: 0,
            call_seq: 12,
            cost_ns: core::array::from_fn(|i| if i == 5 { 1000 } else { UNSET }),
            _pad1: 0,
        }
    }

    #[test]
    fn each_getter_reads_its_own_field() {
        let mut raw = context();
        let ctx = TunerCtx::new(&mut raw);
        assert_eq!((ctx.n_bytes(), ctx.comm_id(), ctx.call_seq()), (1 << 40, 2, 12));
        assert_eq!((ctx.n_ranks(), ctx.n_nodes(), ctx.num_pipe_ops(), ctx.max_channels()), (4, 5, 6, 8));
        assert_eq!(
            (ctx.n_nvl_domains(), ctx.min_ranks_per_nvl_domain(), ctx.max_ranks_per_nvl_domain()),
            (9, 10, 11)
        );
        assert_eq!((ctx.func(), ctx.func_id(), ctx.reg_buff()), (Some(Func::ReduceScatter), 3, true));
    }

    #[test]
    fn availability_and_cost_use_the_pair() {
        let mut raw = context();
        let ctx = TunerCtx::new(&mut raw);
        for &a in Algo::ALL {
            for &p in Proto::ALL {
                let (ring, pat) = (Algo::Ring, Algo::Pat);
                let offered = (a == ring || a == pat) && p == Proto::Simple;
                assert_eq!(ctx.is_available(a, p), offered, "{a:?}/{p:?}");
                let cost = (a == ring && p == Proto::Simple).then_some(1000);
                assert_eq!(ctx.cost_ns(a, p), cost, "{a:?}/{p:?}");
            }
        }
    }

    #[test]
    fn writes_reach_the_decision_fields_and_no_other() {
        let mut raw = context();
        let mut ctx = TunerCtx::new(&mut raw);
        ctx.choose(Algo::NvlsTree, Proto::Ll128);
        ctx.set_channels(24);
        let asked = Decision { route: Some((Algo::NvlsTree, Proto::Ll128)), channels: NonZeroU32::new(24) };
        assert_eq!(ctx.decision(), asked);
        ctx.decide(Decision::DEFER);
        assert_eq!(ctx.decision(), Decision::DEFER);
        ctx.decide(asked);
        let (algo, proto, channels) = (raw.decision_algo, raw.decision_proto, raw.decision_channels);
        assert_eq!((algo, proto, channels), (5, 1, 24));
        let (got, want) = (format!("{raw:?}"), format!("{:?}", context()));
        let inputs =
            |s: &str| s.split(", ").filter(|f| !f.starts_with("decision_")).collect::<Vec<_>>().join(", ");
        assert_eq!(inputs(&got), inputs(&want));
    }
}
