//! [`CostModel`]: cost tables as NCCL hands them to a tuner, from a small latency and bandwidth model.
//!
//! The numbers are ours, fitted by eye to all-reduce on two H200 (11 us for small sizes, 330 GB/s for large
//! ones) and to eight 400 Gb/s adapters a node. What matters here is the shape: which entries exist, and
//! that the best one moves from LL over LL128 to Simple as sizes grow.

use ringfence_guest::abi::{algo, func, proto};

/// Rows of the table (`NCCL_NUM_ALGORITHMS` since NCCL 2.23).
pub(crate) const ROWS: usize = algo::COUNT as usize;
/// Columns of the table.
pub(crate) const COLS: usize = proto::COUNT as usize;
/// NCCL's mark for "not available".
pub(crate) const IGNORE: f32 = -1.0;

/// The costs of one collective in microseconds, row by algorithm, column by protocol.
pub(crate) type Costs = [f32; ROWS * COLS];

/// Start-up cost in microseconds, by protocol.
const BASE_US: [f32; COLS] = [6.6, 9.5, 10.5];
/// Cost of one hop inside a node in microseconds, by protocol.
const HOP_US: [f32; COLS] = [0.6, 1.3, 3.2];
/// Cost of one hop between nodes in microseconds, by protocol.
const NET_HOP_US: [f32; COLS] = [2.7, 4.0, 13.0];
/// Share of the wire that carries data, by protocol.
const EFFICIENCY: [f32; COLS] = [0.22, 0.92, 1.0];
/// Bandwidth of the ring in bytes per microsecond: inside a node, and between nodes.
const RING_BW: [f32; 2] = [340_000.0, 190_000.0];
/// Bandwidth of the tree relative to the ring: inside a node, and between nodes.
const TREE_SHARE: [f32; 2] = [0.88, 0.96];

/// Size of a communicator, for cost tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CostModel {
    /// Ranks, at least 1.
    pub(crate) n_ranks: u32,
    /// Nodes, at least 1.
    pub(crate) n_nodes: u32,
}

/// How one pair does its work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parts {
    /// Start-up and hops, in microseconds.
    pub(crate) latency_us: f32,
    /// Part of the link's bandwidth that carries data, 0 to 1.
    pub(crate) share: f32,
}

impl CostModel {
    /// The table for one collective of `bytes`, as NCCL fills it: CollNet and NVLS are not available, Tree only
    /// for AllReduce, PAT only with one rank per node for AllGather and ReduceScatter.
    pub(crate) fn costs(&self, func: u32, bytes: u64) -> Costs {
        let mut costs = [IGNORE; ROWS * COLS];
        for (i, cost) in costs.iter_mut().enumerate() {
            if let Some(us) = self.cost(func, bytes, (i / COLS) as u32, (i % COLS) as u32) {
                *cost = us;
            }
        }
        costs
    }

    /// Microseconds for one pair; `None` where NCCL does not offer it.
    fn cost(&self, func: u32, bytes: u64, algo: u32, proto: u32) -> Option<f32> {
        let parts = self.parts(func, algo, proto)?;
        Some(
            parts.latency_us
                + self.moved(func, bytes) / (RING_BW[usize::from(self.n_nodes > 1)] * parts.share),
        )
    }

    /// What one pair costs whatever the size, and how it uses the wire; `None` where NCCL does not offer it.
    pub(crate) fn parts(&self, func: u32, algo: u32, proto: u32) -> Option<Parts> {
        let multi = self.n_nodes > 1;
        let col = *[0usize, 1, 2].get(proto as usize)?;
        let (hops, net_hops, share) = match algo {
            algo::RING => {
                let rounds = if func == func::ALL_REDUCE { 2.0 } else { 1.0 };
                let net = if multi { self.n_nodes as f32 } else { 0.0 };
                (rounds * (self.n_ranks as f32 - 1.0 - net).max(1.0), rounds * net, 1.0)
            }
            algo::TREE if func == func::ALL_REDUCE => {
                let local = (self.n_ranks / self.n_nodes.max(1)).max(1) as f32;
                let net = 2.0 * (self.n_nodes as f32).log2().ceil();
                (2.0 * (local - 1.0), net, TREE_SHARE[usize::from(multi)])
            }
            algo::PAT if self.pat(func) && proto == proto::SIMPLE => {
                (0.0, (self.n_nodes as f32).log2().ceil(), 0.75)
            }
            _ => return None,
        };
        let latency_us = BASE_US[col] + hops * HOP_US[col] + net_hops * NET_HOP_US[col];
        Some(Parts { latency_us, share: share * EFFICIENCY[col] })
    }

    /// Bytes that each link carries.
    pub(crate) fn moved(&self, func: u32, bytes: u64) -> f32 {
        bytes as f32 * self.traffic(func)
    }

    fn pat(&self, func: u32) -> bool {
        let one_rank_a_node = self.n_nodes > 1 && self.n_ranks == self.n_nodes;
        one_rank_a_node && matches!(func, func::ALL_GATHER | func::REDUCE_SCATTER)
    }

    /// Bytes that each link carries per byte of the collective (the "bus bandwidth" factor).
    fn traffic(&self, func: u32) -> f32 {
        let n = self.n_ranks.max(1) as f32;
        match func {
            func::ALL_REDUCE => 2.0 * (n - 1.0) / n,
            func::ALL_GATHER | func::REDUCE_SCATTER => (n - 1.0) / n,
            _ => 1.0,
        }
    }
}

/// The pair that NCCL takes: the first smallest entry that is not negative, algorithm by algorithm.
pub(crate) fn pick(costs: &[f32]) -> Option<(u32, u32)> {
    let mut best: Option<(usize, f32)> = None;
    for (i, &us) in costs.iter().enumerate() {
        if us >= 0.0 && best.is_none_or(|(_, b)| us < b) {
            best = Some((i, us));
        }
    }
    best.map(|(i, _)| ((i / COLS) as u32, (i % COLS) as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Index of a pair.
    const fn cell(algo: u32, proto: u32) -> usize {
        (algo * proto::COUNT + proto) as usize
    }

    #[test]
    fn the_best_pair_moves_with_the_size() {
        let m = CostModel { n_ranks: 8, n_nodes: 1 };
        let at = |bytes| pick(&m.costs(func::ALL_REDUCE, bytes)).map(|(_, p)| p);
        assert_eq!(at(1 << 10), Some(proto::LL));
        assert_eq!(at(4 << 20), Some(proto::LL128));
        assert_eq!(at(1 << 30), Some(proto::SIMPLE));
    }

    #[test]
    fn availability_is_that_of_nccl() {
        let one = CostModel { n_ranks: 8, n_nodes: 1 }.costs(func::ALL_GATHER, 1 << 20);
        let spread = CostModel { n_ranks: 8, n_nodes: 8 }.costs(func::ALL_GATHER, 1 << 20);
        for proto in 0..3 {
            for algo in [algo::TREE, algo::COLLNET_DIRECT, algo::NVLS, algo::PAT] {
                assert_eq!(one[cell(algo, proto)], IGNORE);
            }
            assert!(one[cell(algo::RING, proto)] > 0.0);
        }
        assert!(spread[cell(algo::PAT, proto::SIMPLE)] > 0.0);
        assert_eq!(spread[cell(algo::PAT, proto::LL)], IGNORE);
    }

    #[test]
    fn every_entry_is_a_cost_or_ignored() {
        for (n_ranks, n_nodes) in [(1, 1), (2, 1), (8, 1), (16, 2), (4, 4), (1024, 128)] {
            for func in 0..5 {
                for bytes in [0, 1, 1 << 20, u64::MAX] {
                    let costs = CostModel { n_ranks, n_nodes }.costs(func, bytes);
                    assert!(costs.iter().all(|c| *c == IGNORE || (c.is_finite() && *c > 0.0)));
                    assert!(pick(&costs).is_some());
                }
            }
        }
    }

    #[test]
    fn ties_go_to_the_lowest_pair_and_negatives_never_win() {
        let mut costs = [IGNORE; ROWS * COLS];
        assert_eq!(pick(&costs), None);
        costs[cell(1, 2)] = 5.0;
        costs[cell(1, 1)] = 5.0;
        costs[cell(0, 0)] = f32::NAN;
        costs[cell(6, 2)] = -2.0;
        assert_eq!(pick(&costs), Some((1, 1)));
    }
}
