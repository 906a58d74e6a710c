//! [`explore`]: the search. Depth-first over paths, with states kept at heads; a path ends where it comes to
//! a state that a *finished* kept state includes. What it leaves behind is a [`Certificate`], which
//! [`check`](super::check) re-proves on its own.
//!
//! Termination: kept states get a rank when all paths from them have ended, and a path is
//! cut only at a state that has a rank. So every step from one kept state to the next goes down in rank, and no run goes on
//! for ever. A state that comes back to itself while unfinished is a loop that may never end.
//!
//! A loop that has gone round a few times is tried with an invariant ([`speculate`](super::speculate)): a kept state that
//! includes all its laps. A path that comes back to it may end there although it has no rank yet, if the
//! loop's counter has moved ([`ghost`](super::ghost)); so a lap can be repeated only as often as the counter has room.

use super::Machine;
use super::Stats;
use super::explain::Refusal;
use super::ghost::{Counter, Progress};
use super::helpers::calls_back;
use super::rejection::{RejectKind, Rejection};
use super::sketch::Sketch;
use super::speculate::Tries;
use super::state::State;
use super::trail::{Trail, Watch};
use super::transfer::Flow;
use crate::isa::{Insn, Pc};
use crate::program::Program;
use std::collections::HashMap;

/// States kept at one head whatever the distance, while there are fewer than [`DENSE_TOTAL`] in all.
const DENSE_STATES: u32 = 2048;
/// See [`DENSE_STATES`]. A state takes about 1 KB.
const DENSE_TOTAL: usize = 100_000;
/// After that: instructions between two kept states of a path, so that a budget of a million bounds memory at about
/// 160 MB.
const SPARSE_DISTANCE: u32 = 16;
/// Kept states of one fingerprint that a new one is compared with, the newest first.
const MAX_TWINS: usize = 64;
/// Kept states that a new one is compared with before those without hits are dropped.
const MAX_MISSES: u32 = 48;
/// Unfinished kept states of other calls that are skipped to find one of the same.
const MAX_OTHER_CALLS: usize = 64;
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
    /// Of an invariant: what moves on each lap, and the loop.
    pub(crate) invariant: Option<Invariant>,
    /// Unfinished kept states of the same place and calls on the path to this one.
    laps: u32,
    parent: Option<u32>,
    open: u32,
    pub(super) fingerprint: u64,
}

/// A loop's invariant is a kept state to which laps come back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Invariant {
    pub(crate) counter: Counter,
    /// First and last instruction of the loop.
    pub(crate) region: (Pc, Pc),
    /// What the laps seen so far have in common.
    pub(super) progress: Option<Progress>,
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
    /// (head, last instruction that jumps back to it), ordered by head.
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
            if let Insn::CallHelper { id } = insn {
                // The callback comes back here.
                if calls_back(*id) {
                    is_head[pc.index()] = true;
                    loops.entry(pc).or_insert(pc);
                }
            }
        }
        let mut loops: Vec<(Pc, Pc)> = loops.into_iter().collect();
        loops.sort_unstable();
        let mut depth = vec![0i32; program.len() + 1];
        for (head, last) in &loops {
            depth[head.index()] += 1;
            depth[last.index() + 1] -= 1;
        }
        let mut inside = 0;
        for (pc, change) in depth.into_iter().enumerate() {
            inside += change;
            let pc = Pc(pc as u32);
            if inside > 0 && matches!(program.insn(pc), Some(Insn::JumpIf { .. })) {
                is_head[pc.plus(1).index()] = true;
            }
        }
        Heads { is_head, loops }
    }

    /// The loop with that head.
    pub(crate) fn loop_at(&self, pc: Pc) -> Option<(Pc, Pc)> {
        self.loops.binary_search_by_key(&pc, |l| l.0).ok().map(|i| self.loops[i])
    }

    pub(crate) fn contains(&self, pc: Pc) -> bool {
        self.is_head.get(pc.index()).copied().unwrap_or(false)
    }
}

/// A path to be followed.
#[derive(Clone)]
pub(super) struct Item {
    pub(super) state: State,
    pub(super) pc: Pc,
    pub(super) node: u32,
    since: u32,
    /// The state is kept as `node`.
    kept_here: bool,
    /// For a watch: how the path came here.
    trail: Trail,
}

/// A finished kept state to compare with.
struct Candidate {
    node: u32,
    sketch: Sketch,
    hits: u32,
    misses: u32,
}

#[derive(Default)]
pub(super) struct Site {
    kept: u32,
    finished: Vec<Candidate>,
    /// Unfinished kept states, the outermost first: all are on the path at hand.
    pub(super) open: Vec<u32>,
    /// All kept states by fingerprint, finished or not.
    twins: HashMap<u64, Vec<u32>>,
    /// Failed tries of an invariant.
    pub(super) failures: u32,
}

impl Site {
    /// Forgets kept states from `mark` on, of which one has this fingerprint.
    pub(super) fn forget(&mut self, mark: u32, fingerprint: u64) {
        self.kept -= 1;
        while self.finished.last().is_some_and(|c| c.node >= mark) {
            self.finished.pop();
        }
        while self.open.last().is_some_and(|n| *n >= mark) {
            self.open.pop();
        }
        if let Some(same) = self.twins.get_mut(&fingerprint) {
            same.retain(|n| *n < mark);
        }
    }
}

pub(super) struct Explorer<'a> {
    pub(super) m: &'a Machine<'a>,
    pub(super) nodes: Vec<Node>,
    pub(super) sites: HashMap<Pc, Site>,
    pub(super) work: Vec<Item>,
    pub(super) visited: u64,
    pub(super) ranks: u32,
    pub(super) tries: Tries,
    watch: Option<&'a mut dyn Watch>,
}

/// Searches all paths; the first refusal ends it.
pub(crate) fn explore(m: &Machine<'_>) -> Result<Certificate, Rejection> {
    explore_watched(m, None)
}

/// [`explore`], with somebody to look on, who changes nothing.
pub(crate) fn explore_watched<'a>(
    m: &'a Machine<'a>,
    watch: Option<&'a mut dyn Watch>,
) -> Result<Certificate, Rejection> {
    let (nodes, sites, work) = (Vec::new(), HashMap::new(), Vec::new());
    let tries = Tries::default();
    let mut e = Explorer { m, nodes, sites, work, visited: 0, ranks: 0, tries, watch };
    let mut roots = Vec::new();
    for pc in m.program.roots() {
        let mut state = State::entry(m.env, pc);
        state.clean(pc, &m.live.at(pc));
        let node = e.keep(pc, &state, state.fingerprint(), None);
        roots.push(Item { state, pc, node, since: 0, kept_here: true, trail: Trail::START });
    }
    // The entry function first.
    e.work.extend(roots.into_iter().rev());
    loop {
        while let Some(item) = e.work.pop() {
            if let Err((pc, r)) = e.follow(item)
                && !e.retreat()
            {
                return Err(m.reject(*r, pc, e.stats()));
            }
        }
        if !e.advance() {
            break;
        }
    }
    Ok(Certificate { nodes: e.nodes, visited: e.visited })
}

pub(super) type Refused = (Pc, Box<Refusal>);

impl Item {
    /// The same path again, from before it came to its place.
    pub(super) fn again(mut self) -> Item {
        self.kept_here = false;
        self
    }
}

impl Explorer<'_> {
    fn stats(&self) -> Stats {
        Stats { insns: self.visited, states: self.nodes.len() as u64, max_insns: 0, max_fuel: 0 }
    }

    /// Follows one path to its end; other ways are put aside. A path starts at a kept state or at a head.
    fn follow(&mut self, mut at: Item) -> Result<(), Refused> {
        let mut arrived = at.kept_here;
        if let Some(w) = &mut self.watch {
            w.resume(at.trail);
        }
        loop {
            if !arrived && self.m.heads.contains(at.pc) && !self.arrive(&mut at)? {
                break;
            }
            arrived = false;
            if let Some(w) = &mut self.watch {
                at.trail = w.step(at.trail, at.pc, &at.state);
            }
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
        if self.visited > self.m.env.insn_budget || self.too_many_tries() {
            Err(self.out_of_budget(at))
        } else {
            Ok(())
        }
    }

    /// A path comes to a head. False when it ends here, being covered by a finished kept state.
    fn arrive(&mut self, at: &mut Item) -> Result<bool, Refused> {
        at.state.clean(at.pc, &self.m.live.at(at.pc));
        let fingerprint = at.state.fingerprint();
        let twin = self.twin(at, fingerprint);
        if twin.is_some_and(|n| self.nodes[n as usize].rank == 0) {
            let same = "the loop comes back here with nothing changed, so that nothing can end it";
            return Err((at.pc, Refusal::new(RejectKind::UnboundedLoop, None, same)));
        }
        if let Some(covering) = twin.or_else(|| self.covered(at)) {
            if let Some(w) = &mut self.watch {
                w.covered(at.pc, &at.state);
            }
            self.nodes[at.node as usize].arrivals.push(covering);
            return Ok(false);
        }
        if self.comes_back(at)? {
            return Ok(false);
        }
        if let Some((node, state)) = self.try_invariant(at) {
            (at.node, at.state, at.since) = (node, state, 0);
            return Ok(true);
        }
        let site = self.sites.entry(at.pc).or_default();
        let dense = site.kept < DENSE_STATES && self.nodes.len() < DENSE_TOTAL;
        if dense || at.since >= SPARSE_DISTANCE {
            let node = self.keep(at.pc, &at.state, fingerprint, Some(at.node));
            self.nodes[at.node as usize].arrivals.push(node);
            (at.node, at.since) = (node, 0);
        } else {
            self.nodes[at.node as usize].arrivals.push(PASSED);
        }
        Ok(true)
    }

    /// A kept state that equals this one.
    fn twin(&self, at: &Item, fingerprint: u64) -> Option<u32> {
        let same = self.sites.get(&at.pc)?.twins.get(&fingerprint)?;
        same.iter().rev().take(MAX_TWINS).copied().find(|&n| self.nodes[n as usize].state == at.state)
    }

    /// A finished kept state that includes this one, the newest first.
    fn covered(&mut self, at: &Item) -> Option<u32> {
        let site = self.sites.get_mut(&at.pc)?;
        let (sketch, known) = (Sketch::of(&at.state), Sketch::known(&at.state));
        let mut found = None;
        for c in site.finished.iter_mut().rev() {
            if sketch.may_lie_in(&c.sketch, &known) && at.state.is_subset(&self.nodes[c.node as usize].state)
            {
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
    pub(super) fn keep(&mut self, pc: Pc, state: &State, fingerprint: u64, parent: Option<u32>) -> u32 {
        let id = self.nodes.len() as u32;
        let laps = self.laps(pc, state);
        let site = self.sites.entry(pc).or_default();
        site.kept += 1;
        site.twins.entry(fingerprint).or_default().push(id);
        site.open.push(id);
        let (state, arrivals) = (state.clone(), Vec::new());
        self.nodes.push(Node {
            pc,
            state,
            rank: 0,
            arrivals,
            invariant: None,
            laps,
            parent,
            open: 1,
            fingerprint,
        });
        id
    }

    /// How often the path at hand has been kept at this place in these calls.
    pub(super) fn laps(&self, pc: Pc, state: &State) -> u32 {
        let Some(site) = self.sites.get(&pc) else { return 0 };
        let nodes = site.open.iter().rev().take(MAX_OTHER_CALLS).map(|n| &self.nodes[*n as usize]);
        nodes.into_iter().find(|n| n.state.same_calls(state)).map_or(0, |n| n.laps + 1)
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
            let (pc, sketch) = (n.pc, Sketch::of(&n.state));
            let site = self.sites.entry(pc).or_default();
            site.open.retain(|n| *n != id);
            site.finished.push(Candidate { node: id, sketch, hits: 0, misses: 0 });
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
                (*head, Refusal::new(RejectKind::UnboundedLoop, None, why))
            }
            None => {
                let why = format!("the budget of {budget} instructions is used up");
                (at.pc, Refusal::new(RejectKind::Budget, None, why))
            }
        }
    }
}
