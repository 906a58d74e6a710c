//! [`longest`]: the most instructions that a run of a proved program executes, from what the second pass walked.
//!
//! Kept states are taken by rising rank. From each, a run goes on until it ends, or until it comes back to an invariant of a
//! higher rank: [`Cost`] has the most that either takes. An invariant adds the longest lap, as often as its
//! counter has room.

use super::explore::Node;
use super::ghost::Progress;
use crate::isa::Pc;
use std::collections::BTreeMap;

/// What a run takes. Saturating; the longest and the dearest run need not be the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Work {
    /// Executed instructions.
    pub(super) insns: u64,
    /// Fuel, by the [weights](crate::wasm::cost) of the instructions.
    pub(super) fuel: u64,
}

impl Work {
    pub(super) fn plus(self, b: Work) -> Work {
        Work { insns: self.insns.saturating_add(b.insns), fuel: self.fuel.saturating_add(b.fuel) }
    }

    pub(super) fn max(self, b: Work) -> Work {
        Work { insns: self.insns.max(b.insns), fuel: self.fuel.max(b.fuel) }
    }

    pub(super) fn times(self, n: u64) -> Work {
        Work { insns: self.insns.saturating_mul(n), fuel: self.fuel.saturating_mul(n) }
    }
}

/// What a walk from one kept state found.
#[derive(Default)]
pub(super) struct Segment {
    pub(super) edges: Vec<Edge>,
    /// Most on a path that exits, if one does.
    pub(super) exit: Option<Work>,
}

/// A path to the next kept state.
pub(super) struct Edge {
    pub(super) to: u32,
    pub(super) work: Work,
}

/// Most work of a run from a kept state.
#[derive(Clone, Default)]
struct Cost {
    /// Until it ends.
    end: Option<Work>,
    /// Until it comes back to the invariant of that rank.
    back: BTreeMap<u32, Work>,
}

impl Cost {
    /// Takes in a run that does `work` and then costs `more`.
    fn take(&mut self, work: Work, more: &Cost) {
        if let Some(end) = more.end {
            let end = work.plus(end);
            self.end = Some(self.end.map_or(end, |e| e.max(end)));
        }
        for (rank, cost) in &more.back {
            let slot = self.back.entry(*rank).or_default();
            *slot = slot.max(work.plus(*cost));
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
    /// Most that a run takes.
    pub(super) work: Work,
    /// Head of the loop with an invariant that takes the most of them, and its most laps.
    pub(super) busiest: Option<(Pc, u64)>,
}

/// The bound for a run from any of the first `roots` states; `None` unless the ranks are 1, 2, .. in some order.
pub(super) fn longest(
    nodes: &[Node],
    segments: &[Segment],
    laps: &[Option<Progress>],
    roots: usize,
) -> Option<Bound> {
    let mut busiest: Option<(u64, Pc, u64)> = None;
    let by_rank = order(nodes)?;
    let mut g = Graph { nodes, by_rank, costs: vec![Cost::default(); nodes.len()] };
    for at in 0..nodes.len() {
        let id = g.by_rank[at];
        let (node, segment) = (&nodes[id], &segments[id]);
        let mut all = Cost { end: segment.exit, back: BTreeMap::new() };
        for e in &segment.edges {
            all.take(e.work, &g.through(e, node.rank));
        }
        let lap = all.back.remove(&node.rank).unwrap_or_default();
        let room = match (&node.invariant, laps[id]) {
            (Some(inv), Some(p)) => node.state.counter(inv.counter).map_or(u64::MAX, |n| p.laps(n.s)),
            _ => 0,
        };
        let all_laps = lap.times(room);
        if room > 0 && busiest.is_none_or(|b| b.0 < all_laps.insns) {
            busiest = Some((all_laps.insns, node.pc, room));
        }
        g.costs[id].take(all_laps, &all);
    }
    let work = g.costs.get(..roots)?.iter().filter_map(|c| c.end).reduce(Work::max).unwrap_or_default();
    Some(Bound { work, busiest: busiest.map(|(_, pc, room)| (pc, room)) })
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
            return Cost { end: None, back: BTreeMap::from([(self.nodes[to].rank, Work::default())]) };
        }
        let mut c = self.costs[to].clone();
        // A return to an invariant below the start goes on from there.
        while let Some(low) = c.back.first_entry().filter(|b| *b.key() < rank) {
            let (low, work) = low.remove_entry();
            c.take(work, &self.costs[self.by_rank[low as usize - 1]]);
        }
        c
    }
}
