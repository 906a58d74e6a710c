//! [`explore`]: the search. Depth-first over paths, with states kept at heads; a path ends where it comes to
//! a state that a *finished* kept state includes. What it leaves behind is a [`Certificate`], which
//! [`check`](super::check) re-proves on its own.
//!
//! Termination: kept states get a rank when all paths from them have ended, and a path is
//! cut only at a state that has a rank. So every step from one kept state to the next goes down in rank, and no run goes on
//! for ever. A state that comes back to itself while unfinished is a loop that may never end.
//!
//! Widening of counters belongs into [`Explorer::arrive`]: replace the state by a larger one before
//! it is kept, and give the certificate a second way to show that the loop ends.

use super::Machine;
use super::Stats;
use super::explain::Refusal;
use super::rejection::{RejectKind, Rejection};
use super::state::State;
use super::transfer::Flow;
use crate::isa::{Insn, Pc};
use crate::program::Program;
use std::collections::HashMap;
use std::hash::{Hash, Hasher};

/// States kept at one head whatever the distance.
const DENSE_STATES: u32 = 64;
/// After that: instructions between two kept states of a path. Bounds memory at about 1 KB each to 64 MB per million.
const SPARSE_DISTANCE: u32 = 16;
/// Kept states that a new one is compared with before those without hits are dropped.
const MAX_MISSES: u32 = 48;
/// Visits of a head on one path that make it the loop to blame when the budget is used up.
const MANY_VISITS: u32 = 64;

/// What happened at a head on the way from a kept state: covered by that kept state, or [`PASSED`].
pub(crate) type Arrival = u32;
/// Nothing was kept; the path goes on.
pub(crate) const PASSED: Arrival = u32::MAX;

/// A kept state.
pub(crate) struct Node {
    pub(crate) pc: Pc,
    pub(crate) state: State,
    /// Order of finishing, from 1; 0 while paths from here are open.
    pub(crate) rank: u32,
    /// In the order in which a depth-first walk from here comes to heads.
    pub(crate) arrivals: Vec<Arrival>,
    parent: Option<u32>,
    open: u32,
}

/// What the search proved: kept states, each with where its paths lead.
pub(crate) struct Certificate {
    pub(crate) nodes: Vec<Node>,
    /// Visited instructions.
    pub(crate) visited: u64,
}

/// Places where states are compared and kept.
pub(crate) struct Heads {
    is_head: Vec<bool>,
    /// (head, last instruction that jumps back to it).
    loops: Vec<(Pc, Pc)>,
}

impl Heads {
    /// Targets of jumps and calls, returns of calls, and ways out of loops.
    pub(crate) fn new(program: &Program) -> Heads {
        let mut is_head = vec![false; program.len() + 1];
        let mut loops: HashMap<Pc, Pc> = HashMap::new();
        for (pc, insn) in program.iter() {
            if let Insn::Jump { target } | Insn::JumpIf { target, .. } = insn {
                is_head[target.index()] = true;
                if *target <= pc {
                    let last = loops.entry(*target).or_insert(pc);
                    *last = pc.max(*last);
                }
            }
            if let Insn::CallLocal { target } = insn {
                is_head[target.index()] = true;
                is_head[pc.plus(1).index()] = true;
            }
        }
        let mut loops: Vec<(Pc, Pc)> = loops.into_iter().collect();
        loops.sort_unstable();
        for (pc, insn) in program.iter() {
            if matches!(insn, Insn::JumpIf { .. }) && loops.iter().any(|(h, l)| *h <= pc && pc <= *l) {
                is_head[pc.plus(1).index()] = true;
            }
        }
        Heads { is_head, loops }
    }

    pub(crate) fn contains(&self, pc: Pc) -> bool {
        self.is_head.get(pc.index()).copied().unwrap_or(false)
    }
}

/// A path to be followed.
struct Item {
    state: State,
    pc: Pc,
    node: u32,
    since: u32,
    /// The state is kept as `node`.
    kept_here: bool,
}

/// A finished kept state to compare with.
struct Candidate {
    node: u32,
    hits: u32,
    misses: u32,
}

#[derive(Default)]
struct Site {
    kept: u32,
    finished: Vec<Candidate>,
    /// Unfinished kept states by hash.
    open: HashMap<u64, Vec<u32>>,
}

struct Explorer<'a> {
    m: &'a Machine<'a>,
    nodes: Vec<Node>,
    sites: HashMap<Pc, Site>,
    work: Vec<Item>,
    visited: u64,
    ranks: u32,
}

/// Searches all paths; the first refusal ends it.
pub(crate) fn explore(m: &Machine<'_>) -> Result<Certificate, Rejection> {
    let mut e =
        Explorer { m, nodes: Vec::new(), sites: HashMap::new(), work: Vec::new(), visited: 0, ranks: 0 };
    let mut state = State::entry(m.env);
    state.clean(&m.live.at(Pc(0)));
    let root = e.keep(Pc(0), &state, None);
    e.work.push(Item { state, pc: Pc(0), node: root, since: 0, kept_here: true });
    while let Some(item) = e.work.pop() {
        e.follow(item).map_err(|(pc, r)| m.reject(*r, pc, e.stats()))?;
    }
    Ok(Certificate { nodes: e.nodes, visited: e.visited })
}

type Refused = (Pc, Box<Refusal>);

impl Explorer<'_> {
    fn stats(&self) -> Stats {
        Stats { insns: self.visited, states: self.nodes.len() as u64 }
    }

    /// Follows one path to its end; other ways are put aside. A path starts at a kept state or at a head.
    fn follow(&mut self, mut at: Item) -> Result<(), Refused> {
        let mut arrived = at.kept_here;
        loop {
            if !arrived && self.m.heads.contains(at.pc) && !self.arrive(&mut at)? {
                break;
            }
            arrived = false;
            self.count(&mut at)?;
            let out = self.m.step(&mut at.state, at.pc).map_err(|r| (at.pc, r))?;
            match out.flow {
                Flow::Next(pc) => at.pc = pc,
                Flow::Branch { taken: Some((pc, state)), fall } => {
                    let Some(fall) = fall else {
                        (at.pc, at.state) = (pc, state);
                        continue;
                    };
                    self.nodes[at.node as usize].open += 1;
                    self.work.push(Item { state, pc, kept_here: false, ..at });
                    at.pc = fall;
                }
                Flow::Branch { taken: None, fall: Some(fall) } => at.pc = fall,
                Flow::Exit | Flow::Branch { taken: None, fall: None } => break,
            }
        }
        self.close(at.node);
        Ok(())
    }

    fn count(&mut self, at: &mut Item) -> Result<(), Refused> {
        self.visited += 1;
        at.since += 1;
        if self.visited > self.m.env.insn_budget { Err(self.out_of_budget(at)) } else { Ok(()) }
    }

    /// A path comes to a head. False when it ends here, being covered by a finished kept state.
    fn arrive(&mut self, at: &mut Item) -> Result<bool, Refused> {
        at.state.clean(&self.m.live.at(at.pc));
        if let Some(covering) = self.covered(at) {
            self.nodes[at.node as usize].arrivals.push(covering);
            return Ok(false);
        }
        let hash = hash_of(&at.state);
        let site = self.sites.entry(at.pc).or_default();
        let twins = site.open.get(&hash).map_or(&[][..], Vec::as_slice);
        if twins.iter().any(|&n| self.nodes[n as usize].state == at.state) {
            let same = "the loop comes back here with nothing changed, so that nothing can end it";
            return Err((at.pc, refusal(RejectKind::UnboundedLoop, same)));
        }
        if site.kept < DENSE_STATES || at.since >= SPARSE_DISTANCE {
            let node = self.keep(at.pc, &at.state, Some(at.node));
            self.nodes[at.node as usize].arrivals.push(node);
            (at.node, at.since) = (node, 0);
        } else {
            self.nodes[at.node as usize].arrivals.push(PASSED);
        }
        Ok(true)
    }

    /// A finished kept state that includes this one, the newest first.
    fn covered(&mut self, at: &Item) -> Option<u32> {
        let site = self.sites.get_mut(&at.pc)?;
        let mut found = None;
        for c in site.finished.iter_mut().rev() {
            if at.state.is_subset(&self.nodes[c.node as usize].state) {
                c.hits += 1;
                found = Some(c.node);
                break;
            }
            c.misses += 1;
        }
        site.finished.retain(|c| c.misses < MAX_MISSES + 4 * c.hits);
        found
    }

    /// Keeps a state; the path to it is now the new node's.
    fn keep(&mut self, pc: Pc, state: &State, parent: Option<u32>) -> u32 {
        let id = self.nodes.len() as u32;
        let site = self.sites.entry(pc).or_default();
        site.kept += 1;
        site.open.entry(hash_of(state)).or_default().push(id);
        self.nodes.push(Node { pc, state: state.clone(), rank: 0, arrivals: Vec::new(), parent, open: 1 });
        id
    }

    /// A path from `node` has ended; with its last path the node is finished, and ends its parent's path in turn.
    fn close(&mut self, node: u32) {
        let mut at = Some(node);
        while let Some(id) = at {
            let n = &mut self.nodes[id as usize];
            n.open -= 1;
            if n.open > 0 {
                return;
            }
            self.ranks += 1;
            n.rank = self.ranks;
            at = n.parent;
            let (pc, hash) = (n.pc, hash_of(&n.state));
            let site = self.sites.entry(pc).or_default();
            if let Some(open) = site.open.get_mut(&hash) {
                open.retain(|&o| o != id);
                if open.is_empty() {
                    site.open.remove(&hash);
                }
            }
            site.finished.push(Candidate { node: id, hits: 0, misses: 0 });
        }
    }

    /// Which loop is to blame? The outermost that this path is in and has gone round often, else the busiest.
    #[cold]
    fn out_of_budget(&self, at: &Item) -> Refused {
        let budget = self.m.env.insn_budget;
        let inside = |(head, last): &(Pc, Pc)| {
            std::iter::once(at.pc).chain(at.state.returns()).any(|pc| *head <= pc && pc <= *last)
        };
        let mut visits: HashMap<Pc, u32> = HashMap::new();
        let mut up = Some(at.node);
        while let Some(id) = up {
            let n = &self.nodes[id as usize];
            *visits.entry(n.pc).or_default() += 1;
            up = n.parent;
        }
        let of = |head: &Pc| visits.get(head).copied().unwrap_or(0);
        let running: Vec<Pc> = self.m.heads.loops.iter().filter(|l| inside(l)).map(|l| l.0).collect();
        let busy = running.iter().find(|h| of(h) >= MANY_VISITS);
        let blamed = busy.or_else(|| running.iter().filter(|h| of(h) > 1).max_by_key(|h| of(h)));
        match blamed {
            Some(head) => {
                let why = format!("this loop did not end within the budget of {budget} instructions");
                (*head, refusal(RejectKind::UnboundedLoop, why))
            }
            None => {
                let why = format!("the budget of {budget} instructions is used up");
                (at.pc, refusal(RejectKind::Budget, why))
            }
        }
    }
}

fn refusal(kind: RejectKind, why: impl Into<String>) -> Box<Refusal> {
    Refusal::new(kind, None, why)
}

fn hash_of(state: &State) -> u64 {
    let mut h = FastHasher::default();
    state.hash(&mut h);
    h.finish()
}

/// A quick hasher for our own states: collisions cost a comparison, nothing else.
#[derive(Default)]
struct FastHasher(u64);

impl Hasher for FastHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.chunks(8).for_each(|c| {
            let mut word = [0; 8];
            word[..c.len()].copy_from_slice(c);
            self.write_u64(u64::from_le_bytes(word));
        });
    }
    fn write_u8(&mut self, x: u8) {
        self.write_u64(x.into());
    }
    fn write_u16(&mut self, x: u16) {
        self.write_u64(x.into());
    }
    fn write_u32(&mut self, x: u32) {
        self.write_u64(x.into());
    }
    fn write_u64(&mut self, x: u64) {
        self.0 = (self.0.rotate_left(5) ^ x).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    fn write_i64(&mut self, x: i64) {
        self.write_u64(x as u64);
    }
    fn write_usize(&mut self, x: usize) {
        self.write_u64(x as u64);
    }
    fn write_isize(&mut self, x: isize) {
        self.write_u64(x as u64);
    }
}
