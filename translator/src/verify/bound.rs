//! [`longest`]: the most instructions that a run of a proved program executes, from what the second pass walked.
//!
//! Kept states are taken by rising rank. From each, a run goes on until it ends, or until it comes back to an invariant of a
//! higher rank: [`Cost`] has the most instructions for either. An invariant adds the longest lap, as often as its
//! counter has room.

use super::explore::Node;
use super::ghost::Progress;
use crate::isa::Pc;
use std::collections::BTreeMap;

/// What a walk from one kept state found.
#[derive(Default)]
pub(super) struct Segment {
    pub(super) edges: Vec<Edge>,
    /// Most instructions on a path that exits, if one does.
    pub(super) exit: Option<u64>,
}

/// A path to the next kept state.
pub(super) struct Edge {
    pub(super) to: u32,
    pub(super) insns: u64,
}

/// Most instructions of a run from a kept state.
#[derive(Clone, Default)]
struct Cost {
    /// Until it ends.
    end: Option<u64>,
    /// Until it comes back to the invariant of that rank.
    back: BTreeMap<u32, u64>,
}

impl Cost {
    /// Takes in a run of `insns` instructions that then costs `more`.
    fn take(&mut self, insns: u64, more: &Cost) {
        if let Some(end) = more.end {
            self.end = self.end.max(Some(insns.saturating_add(end)));
        }
        for (rank, cost) in &more.back {
            let slot = self.back.entry(*rank).or_default();
            *slot = (*slot).max(insns.saturating_add(*cost));
        }
    }
}

struct Graph<'a> {
    nodes: &'a [Node],
    by_rank: Vec<usize>,
    costs: Vec<Cost>,
}

/// What [`longest`] finds.
#[derive(Debug)]
pub(super) struct Bound {
    /// Most instructions that a run executes (saturating).
    pub(super) insns: u64,
    /// Head of the loop with an invariant that takes the most of them, and its most laps.
    pub(super) busiest: Option<(Pc, u64)>,
}

/// The bound for a run from the first state; `None` unless the ranks are 1, 2, .. in some order.
pub(super) fn longest(nodes: &[Node], segments: &[Segment], laps: &[Option<Progress>]) -> Option<Bound> {
    let mut busiest: Option<(u64, Pc, u64)> = None;
    let by_rank = order(nodes)?;
    let mut g = Graph { nodes, by_rank, costs: vec![Cost::default(); nodes.len()] };
    for at in 0..nodes.len() {
        let id = g.by_rank[at];
        let (node, segment) = (&nodes[id], &segments[id]);
        let mut all = Cost { end: segment.exit, back: BTreeMap::new() };
        for e in &segment.edges {
            all.take(e.insns, &g.through(e, node.rank));
        }
        let lap = all.back.remove(&node.rank).unwrap_or(0);
        let room = match (&node.invariant, laps[id]) {
            (Some(inv), Some(p)) => node.state.counter(inv.counter).map_or(u64::MAX, |n| p.laps(n.s)),
            _ => 0,
        };
        let all_laps = lap.saturating_mul(room);
        if room > 0 && busiest.is_none_or(|b| b.0 < all_laps) {
            busiest = Some((all_laps, node.pc, room));
        }
        g.costs[id].take(all_laps, &all);
    }
    let insns = g.costs.first()?.end.unwrap_or(0);
    Some(Bound { insns, busiest: busiest.map(|(_, pc, room)| (pc, room)) })
}

/// Indices by rank.
fn order(nodes: &[Node]) -> Option<Vec<usize>> {
    let mut by_rank = vec![None; nodes.len()];
    for (id, n) in nodes.iter().enumerate() {
        let slot = by_rank.get_mut((n.rank as usize).checked_sub(1)?)?;
        if slot.replace(id).is_some() {
            return None;
        }
    }
    by_rank.into_iter().collect()
}

impl Graph<'_> {
    /// Cost from the end of an edge, for a start of that rank.
    fn through(&self, e: &Edge, rank: u32) -> Cost {
        let to = e.to as usize;
        if self.nodes[to].rank >= rank {
            return Cost { end: None, back: BTreeMap::from([(self.nodes[to].rank, 0)]) };
        }
        let mut c = self.costs[to].clone();
        // A return to an invariant below the start goes on from there.
        while let Some(low) = c.back.first_entry().filter(|b| *b.key() < rank) {
            let (low, insns) = low.remove_entry();
            c.take(insns, &self.costs[self.by_rank[low as usize - 1]]);
        }
        c
    }
}
