//! [`witness`]: a concrete state, or a run, that shows a certificate to claim more than is true.

use super::Random;
use super::concrete::draw;
use crate::isa::Pc;
use crate::verify::Machine;
use crate::verify::explore::{Certificate, Node, PASSED};
use crate::verify::state::State;
use crate::verify::transfer::Flow;
use crate::verify::value::Value;
use std::collections::HashMap;

/// Concrete states that are drawn of each abstract one.
const DRAWS: u32 = 24;

struct Judge<'a> {
    m: &'a Machine<'a>,
    nodes: &'a [Node],
    r: &'a mut Random,
    /// By invariant: counters before and after a lap.
    laps: HashMap<u32, Vec<(u64, u64)>>,
    steps: u64,
}

/// Why the certificate claims too much, if that can be shown. A refusal of an instruction is no witness: the judge leaves that
/// to the check.
pub(super) fn witness(m: &Machine<'_>, cert: &Certificate, r: &mut Random) -> Option<String> {
    let root = cert.nodes.first()?;
    let mut j = Judge { m, nodes: &cert.nodes, r, laps: HashMap::new(), steps: 4 * cert.visited + 1000 };
    if root.pc != Pc(0) || j.outside(&State::entry(m.env, Pc(0)), &root.state) {
        return Some("the entry state".into());
    }
    for (id, node) in (0..).zip(&cert.nodes) {
        if let Some(why) = j.walk(id, node) {
            return Some(why);
        }
    }
    j.laps.iter().find(|(_, laps)| !ends(laps)).map(|(id, laps)| format!("laps of node {id}: {laps:x?}"))
}

/// Do laps move the counter the same way in one order, without wrapping?
fn ends(laps: &[(u64, u64)]) -> bool {
    let all = |f: fn(&(u64, u64)) -> bool| laps.iter().all(f);
    all(|(a, b)| a < b)
        || all(|(a, b)| a > b)
        || all(|(a, b)| (*a as i64) < (*b as i64))
        || all(|(a, b)| (*a as i64) > (*b as i64))
}

fn highest_id(s: &State) -> u32 {
    let of = |v: &Value| match v {
        Value::Num(n) => n.id,
        Value::Ptr(p) => p.id,
        Value::Uninit | Value::MapObject(_) | Value::Func(_) => 0,
    };
    let regs = s.frames().iter().flat_map(|f| f.regs().iter().map(of));
    let spills = s.frames().iter().flat_map(|f| f.stack().spills().iter().map(|s| of(&s.value)));
    let held = s.refs().iter().map(|r| r.id).chain(s.lock().map(|l| l.id));
    regs.chain(spills).chain(s.ghosts().iter().map(|g| g.num.id)).chain(held).max().unwrap_or(0)
}

impl Judge<'_> {
    /// Is a concrete state of `s` outside of `kept`?
    fn outside(&mut self, s: &State, kept: &State) -> bool {
        (0..DRAWS).any(|_| draw(s, self.r).is_some_and(|c| !c.lies_in(kept)))
    }

    fn walk(&mut self, id: u32, node: &Node) -> Option<String> {
        if node.rank == 0 {
            return Some(format!("node {id} is not finished"));
        }
        if node.state.clone().fresh_id() <= highest_id(&node.state) {
            return Some(format!("node {id} will use an id again"));
        }
        let mut first = node.state.clone();
        if let Some(inv) = &node.invariant
            && !first.haunt(id, inv.counter, inv.region)
        {
            return Some(format!("the counter of node {id} is no number"));
        }
        let mut arrivals = node.arrivals.iter().copied();
        let mut work = vec![(node.pc, first, true)];
        while let Some((mut pc, mut state, mut start)) = work.pop() {
            loop {
                if !start && self.m.heads.contains(pc) {
                    state.clean(pc, &self.m.live.at(pc));
                    match arrivals.next() {
                        None => return Some(format!("a path from node {id} is missing")),
                        Some(PASSED) => {}
                        Some(to) => {
                            if let Some(why) = self.arrive(to, pc, &state, node.rank) {
                                return Some(format!("from node {id} to {to}: {why}"));
                            }
                            break;
                        }
                    }
                }
                start = false;
                self.steps = self.steps.checked_sub(1)?;
                match self.m.step(&mut state, pc).ok()?.flow {
                    Flow::Next(to) => pc = to,
                    Flow::Branch { taken, fall } => {
                        work.extend(taken.map(|(to, other)| (to, other, false)));
                        let Some(fall) = fall else { break };
                        pc = fall;
                    }
                    Flow::Exit => break,
                }
            }
        }
        None
    }

    fn arrive(&mut self, to: u32, pc: Pc, state: &State, rank: u32) -> Option<String> {
        let Some(n) = self.nodes.get(to as usize) else { return Some("no such node".into()) };
        if n.pc != pc {
            return Some("another place".into());
        }
        if self.outside(state, &n.state) {
            return Some("a state comes that is not included".into());
        }
        if n.rank >= rank {
            let Some(inv) = n.invariant else { return Some("the rank does not go down".into()) };
            let drawn = (0..DRAWS).filter_map(|_| draw(state, self.r));
            let laps: Vec<_> = drawn.map(|c| c.lap(to, inv.counter)).collect();
            if laps.contains(&None) {
                return Some("a lap without a ghost or a counter".into());
            }
            self.laps.entry(to).or_default().extend(laps.into_iter().flatten());
        }
        None
    }
}
