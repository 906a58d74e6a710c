//! [`check`]: re-proves a [`Certificate`] without searching, and gathers the facts.
//!
//! From each kept state it walks forward until every path has exited or come to a head where the certificate
//! names a kept state that includes the state at hand, and that either has a smaller rank, or is a loop's invariant whose counter
//! has moved since the run last passed it. How the kept states were found plays no part.
//!
//! Why every run meets all duties and ends: the first by induction over the steps from kept state to kept state. For
//! the second, suppose a run makes such steps for ever, and look at the highest rank among the kept states that it comes to again
//! and again. From some time on it meets none higher, so it can come to that one by its invariant only, and between two such
//! visits the ghost, which is set there alone, holds what the counter was on the last. The counter thus moves by at
//! least one each time, always the same way in one order without wrapping: it would leave every range.

use super::Machine;
use super::bound::{Bound, Edge, Segment, Work};
use super::explore::{Certificate, Node, PASSED};
use super::fact::{Access, CallFact, Fact, Region};
use super::ghost::Progress;
use super::state::State;
use super::transfer::{Flow, Outcome};
use crate::isa::Pc;
use crate::limits::MAX_TAIL_CALLS;

/// What the walk establishes.
pub(crate) struct Proof {
    /// By slot; `None` for what no path reaches.
    pub(crate) facts: Vec<Option<Fact>>,
    /// By field of the context: may it be read?
    pub(crate) ctx_reads: Vec<bool>,
    /// How long a run may be.
    pub(super) bound: Bound,
}

/// Where the certificate does not hold, and why.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    pub(crate) pc: Pc,
    pub(crate) why: String,
}

struct Checker<'a, S: FnMut(Pc, &State)> {
    m: &'a Machine<'a>,
    nodes: &'a [Node],
    proof: Proof,
    /// By kept state: what the laps that come back to it have in common.
    laps: Vec<Option<Progress>>,
    segments: Vec<Segment>,
    steps: u64,
    limit: u64,
    seen: S,
}

/// Proves the certificate. `seen` is shown the state before each instruction.
pub(crate) fn check(m: &Machine<'_>, cert: &Certificate, seen: impl FnMut(Pc, &State)) -> Result<Proof, Gap> {
    let (facts, ctx_reads) = (vec![None; m.program.len()], vec![false; m.env.ctx.fields().len()]);
    let bound = Bound { work: Work::default(), busiest: None };
    let (proof, laps) = (Proof { facts, ctx_reads, bound }, vec![None; cert.nodes.len()]);
    let nodes = &cert.nodes;
    let mut c = Checker { m, nodes, proof, laps, segments: Vec::new(), steps: 0, limit: cert.visited, seen };
    let roots = m.program.roots();
    for (i, pc) in roots.iter().enumerate() {
        match cert.nodes.get(i) {
            Some(root) if root.pc == *pc && State::entry(m.env, *pc).is_subset(&root.state) => {}
            _ => return gap(*pc, "the first kept state does not include the entry state"),
        }
    }
    for (id, node) in (0..).zip(&cert.nodes) {
        c.walk(id, node)?;
    }
    c.proof.bound = match super::bound::longest(&cert.nodes, &c.segments, &c.laps, roots.len()) {
        Some(bound) if m.program.tails.is_empty() => bound,
        // A run is the entry function, or a target, and then at most so many more.
        Some(bound) => Bound { work: bound.work.times(u64::from(MAX_TAIL_CALLS) + 1), ..bound },
        None => return gap(Pc(0), "two kept states have the same rank"),
    };
    Ok(c.proof)
}

fn gap<T>(pc: Pc, why: impl Into<String>) -> Result<T, Gap> {
    Err(Gap { pc, why: why.into() })
}

impl<S: FnMut(Pc, &State)> Checker<'_, S> {
    /// Follows all paths from one kept state to where the next are named.
    fn walk(&mut self, id: u32, node: &Node) -> Result<(), Gap> {
        if node.rank == 0 {
            return gap(node.pc, "a kept state was not finished");
        }
        if !node.state.has_fresh_ids() {
            return gap(node.pc, "a kept state would use its ids again");
        }
        let mut first = node.state.clone();
        if let Some(inv) = &node.invariant
            && !first.haunt(id, inv.counter, inv.region)
        {
            return gap(node.pc, "an invariant's counter is no number");
        }
        let mut segment = Segment::default();
        let mut arrivals = node.arrivals.iter().copied();
        let mut work = vec![(node.pc, first, Work::default(), true)];
        while let Some((mut pc, mut state, mut done, mut start)) = work.pop() {
            loop {
                if !start && self.m.heads.contains(pc) {
                    state.clean(pc, &self.m.live.at(pc));
                    match arrivals.next() {
                        None => return gap(pc, "the certificate ends before the path"),
                        Some(PASSED) => {}
                        Some(to) => {
                            self.covers(to, pc, &state, node.rank)?;
                            segment.edges.push(Edge { to, work: done });
                            break;
                        }
                    }
                }
                start = false;
                done = done.plus(self.m.work(pc));
                match self.step(pc, &mut state)? {
                    Flow::Next(to) => pc = to,
                    Flow::Branch { taken: Some((to, other)), fall: Some(fall) } => {
                        work.push((to, other, done, false));
                        pc = fall;
                    }
                    Flow::Branch { taken: Some((to, other)), fall: None } => (pc, state) = (to, other),
                    Flow::Branch { taken: None, fall: Some(fall) } => pc = fall,
                    Flow::Exit | Flow::Branch { taken: None, fall: None } => {
                        segment.exit = Some(segment.exit.map_or(done, |e| e.max(done)));
                        break;
                    }
                }
            }
        }
        self.segments.push(segment);
        Ok(())
    }

    /// The named state must be at this place, include the state at hand, and bring the run nearer to its end: by its
    /// rank, or by its counter.
    fn covers(&mut self, to: u32, pc: Pc, state: &State, rank: u32) -> Result<(), Gap> {
        let Some(n) = self.nodes.get(to as usize) else { return gap(pc, "no such kept state") };
        if n.pc != pc {
            return gap(pc, "the kept state is of another place");
        }
        if n.rank >= rank {
            self.moves(to, pc, state, n)?;
        }
        if !state.is_subset(&n.state) {
            return gap(pc, "the kept state does not include what comes here");
        }
        Ok(())
    }

    fn moves(&mut self, to: u32, pc: Pc, state: &State, n: &Node) -> Result<(), Gap> {
        let moved = n.invariant.and_then(|inv| state.progress(to, inv.counter));
        let laps = &mut self.laps[to as usize];
        let all = moved.and_then(|p| p.after(*laps));
        if all.is_none() {
            return gap(pc, "the kept state does not bring the path nearer to its end");
        }
        *laps = all;
        Ok(())
    }

    fn step(&mut self, pc: Pc, state: &mut State) -> Result<Flow, Gap> {
        self.steps += 1;
        if self.steps > self.limit {
            return gap(pc, "the second pass takes more steps than the first");
        }
        (self.seen)(pc, state);
        match self.m.step(state, pc) {
            Ok(out) => {
                self.note(pc, &out);
                Ok(out.flow)
            }
            Err(r) => gap(pc, r.message()),
        }
    }

    fn note(&mut self, pc: Pc, out: &Outcome) {
        if let Some((lo, hi)) = out.ctx_read {
            for (field, read) in self.m.env.ctx.fields().iter().zip(&mut self.proof.ctx_reads) {
                *read |= i64::from(field.offset) < hi && lo < i64::from(field.offset + field.bytes());
            }
        }
        let Some(slot) = self.proof.facts.get_mut(pc.index()) else { return };
        let first = slot.is_none();
        let fact = slot.get_or_insert_default();
        if let Flow::Branch { taken, fall } = &out.flow {
            fact.ways.taken |= taken.is_some();
            fact.ways.fallthrough |= fall.is_some();
        }
        fact.access = if first { out.access } else { join(fact.access, out.access) };
        fact.call = if first { out.call } else { join_calls(fact.call, out.call) };
    }
}

/// Both paths' access in one.
fn join(a: Option<Access>, b: Option<Access>) -> Option<Access> {
    let (a, b) = (a?, b?);
    let region = if a.region == b.region { a.region } else { Region::Mixed };
    let offset = if a == b { a.offset } else { None };
    Some(Access { region, offset })
}

fn join_calls(a: Option<CallFact>, b: Option<CallFact>) -> Option<CallFact> {
    let (a, b) = (a?, b?);
    let map = if a.map == b.map { a.map } else { None };
    let callback = if a.callback == b.callback { a.callback } else { None };
    Some(CallFact { map, key: join(a.key, b.key), value: join(a.value, b.value), callback })
}

#[cfg(all(test, feature = "asm"))]
mod tests {
    use super::*;
    use crate::isa::Reg;
    use crate::isa::asm::assemble;
    use crate::verify::Env;
    use crate::verify::explore::explore;
    use crate::verify::value::Value;

    const TEXT: &str = "
        r2 = *(u64 *)(r1 + 0)
        r3 = 0
        if r2 > 7 goto end
    loop:
        r4 = r1
        r4 += r3
        r4 = *(u8 *)(r4 + 0)
        r3 += 1
        if r3 <= r2 goto loop
    end:
        r0 = 0
        exit";

    /// The gap that the check finds after `spoil` has been at the certificate.
    fn gap_after(spoil: impl Fn(&mut Certificate)) -> Option<String> {
        let (program, env) = (assemble(TEXT, &[]).unwrap(), Env::generic(16));
        let m = Machine::new(&program, &env);
        let mut cert = explore(&m).unwrap();
        spoil(&mut cert);
        check(&m, &cert, |_, _| {}).err().map(|g| g.why)
    }

    /// A certificate is not trusted: spoilt in any part, it does not hold.
    #[test]
    fn a_spoilt_certificate_is_refused() {
        assert_eq!(gap_after(|_| {}), None);
        let head = |c: &Certificate| c.nodes.iter().rposition(|n| n.pc == Pc(3)).unwrap();
        // A kept state that leaves out a number which comes to it.
        let narrow = gap_after(|c| {
            let at = head(c);
            c.nodes[at].state.set(Reg::new(3).unwrap(), Value::constant(99));
        });
        assert_eq!(narrow.unwrap(), "the kept state does not include what comes here");
        // One that is so large that the access from it cannot be proved.
        let wide = gap_after(|c| {
            let at = head(c);
            let any = crate::verify::domain::Scalar::unknown();
            c.nodes[at].state.set(Reg::new(3).unwrap(), Value::num(any, crate::verify::RankLabel::RankLocal));
        });
        assert!(wide.unwrap().contains("r4 moved by"));
        // A circle in the order of finishing: the loop might not end.
        let circle = gap_after(|c| c.nodes.iter_mut().for_each(|n| n.rank = 1));
        assert!(circle.unwrap().contains("does not bring the path nearer to its end"));
        assert_eq!(gap_after(|c| c.nodes[0].rank = 0).unwrap(), "a kept state was not finished");
        let short = gap_after(|c| c.nodes[0].arrivals.clear());
        assert_eq!(short.unwrap(), "the certificate ends before the path");
        let empty = gap_after(|c| c.nodes.clear());
        assert_eq!(empty.unwrap(), "the first kept state does not include the entry state");
        let elsewhere = gap_after(|c| c.nodes[0].arrivals.fill(0));
        assert!(elsewhere.unwrap().contains("of another place"));
    }

    #[test]
    fn facts_join_what_the_paths_say() {
        let text = "
            r2 = r1
            r3 = *(u64 *)(r1 + 0)
            *(u64 *)(r10 - 8) = 0
            if r3 == 0 goto +2
            r2 = r10
            r2 += -8
            r0 = *(u64 *)(r2 + 0)
            if r3 == 0 goto +1
            r0 = *(u64 *)(r10 - 8)
            if r1 == 0 goto +1
            exit
            r0 = 1
            exit";
        let (program, env) = (assemble(text, &[]).unwrap(), Env::generic(16));
        let m = Machine::new(&program, &env);
        let facts = check(&m, &explore(&m).unwrap(), |_, _| {}).unwrap().facts;
        let access = |pc: usize| facts[pc].unwrap().access.map(|a| (a.region, a.offset));
        assert_eq!(access(1), Some((Region::Ctx, Some(0))));
        assert_eq!(access(6), Some((Region::Mixed, None)));
        assert_eq!(access(8), Some((Region::Stack, Some(-8))));
        let ways = |pc: usize| (facts[pc].unwrap().ways.taken, facts[pc].unwrap().ways.fallthrough);
        assert_eq!((ways(3), ways(9)), ((true, true), (false, true)));
        assert_eq!(facts[11], None);
    }
}
