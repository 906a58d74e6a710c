//! [`check`]: re-proves a [`Certificate`] without searching, and gathers the facts.
//!
//! From each kept state it walks forward until every path has exited or come to a head where the certificate
//! names a kept state; that one must include the state at hand and have a smaller rank. Induction over ranks
//! then gives: from the entry state, every run meets all duties and ends. How the kept states were found plays no part.

use super::Machine;
use super::explore::{Certificate, Node, PASSED};
use super::fact::{Access, CallFact, Fact, Region};
use super::state::State;
use super::transfer::{Flow, Outcome};
use crate::isa::Pc;

/// What the walk establishes.
pub(crate) struct Proof {
    /// By slot; `None` for what no path reaches.
    pub(crate) facts: Vec<Option<Fact>>,
    /// By field of the context: may it be read?
    pub(crate) ctx_reads: Vec<bool>,
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
    steps: u64,
    limit: u64,
    seen: S,
}

/// Proves the certificate. `seen` is shown the state before each instruction.
pub(crate) fn check(m: &Machine<'_>, cert: &Certificate, seen: impl FnMut(Pc, &State)) -> Result<Proof, Gap> {
    let proof =
        Proof { facts: vec![None; m.program.len()], ctx_reads: vec![false; m.env.ctx.fields().len()] };
    let mut c = Checker { m, nodes: &cert.nodes, proof, steps: 0, limit: cert.visited, seen };
    let entry = State::entry(m.env);
    match cert.nodes.first() {
        Some(root) if root.pc == Pc(0) && entry.is_subset(&root.state) => {}
        _ => return gap(Pc(0), "the first kept state does not include the entry state"),
    }
    for node in &cert.nodes {
        c.walk(node)?;
    }
    Ok(c.proof)
}

fn gap<T>(pc: Pc, why: impl Into<String>) -> Result<T, Gap> {
    Err(Gap { pc, why: why.into() })
}

impl<S: FnMut(Pc, &State)> Checker<'_, S> {
    /// Follows all paths from one kept state to where the next are named.
    fn walk(&mut self, node: &Node) -> Result<(), Gap> {
        if node.rank == 0 {
            return gap(node.pc, "a kept state was not finished");
        }
        let mut arrivals = node.arrivals.iter().copied();
        let mut work = vec![(node.pc, node.state.clone(), true)];
        while let Some((mut pc, mut state, mut start)) = work.pop() {
            loop {
                if !start && self.m.heads.contains(pc) {
                    state.clean(&self.m.live.at(pc));
                    match arrivals.next() {
                        None => return gap(pc, "the certificate ends before the path"),
                        Some(PASSED) => {}
                        Some(to) => {
                            self.covers(to, pc, &state, node.rank)?;
                            break;
                        }
                    }
                }
                start = false;
                match self.step(pc, &mut state)? {
                    Flow::Next(to) => pc = to,
                    Flow::Branch { taken: Some((to, other)), fall: Some(fall) } => {
                        work.push((to, other, false));
                        pc = fall;
                    }
                    Flow::Branch { taken: Some((to, other)), fall: None } => (pc, state) = (to, other),
                    Flow::Branch { taken: None, fall: Some(fall) } => pc = fall,
                    Flow::Exit | Flow::Branch { taken: None, fall: None } => break,
                }
            }
        }
        Ok(())
    }

    /// The named state must be at this place, include the state at hand, and have been finished before.
    fn covers(&self, to: u32, pc: Pc, state: &State, rank: u32) -> Result<(), Gap> {
        let Some(n) = self.nodes.get(to as usize) else { return gap(pc, "no such kept state") };
        if n.pc != pc || n.rank >= rank {
            return gap(
                pc,
                "the kept state is of another place, or does not bring the path nearer to its end",
            );
        }
        if !state.is_subset(&n.state) {
            return gap(pc, "the kept state does not include what comes here");
        }
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
    Some(CallFact { map, key: join(a.key, b.key), value: join(a.value, b.value) })
}
