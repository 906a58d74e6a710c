//! [`Tries`]: invariants that are being tried. The search goes on from a guessed state as from any other; when
//! anything is refused on the way, it goes back to where it stood before the guess, and unrolls the loop further.

use super::explain::Refusal;
use super::explore::{Explorer, Invariant, Item, Refused};
use super::ghost::Ghost;
use super::rejection::RejectKind;
use super::state::State;
use super::widen;
use crate::isa::Pc;

/// Laps of a loop that are unrolled before its first invariant is tried; four times as many before each further one.
const FIRST_TRY: usize = 16;
/// Failed tries at one loop after which it is unrolled.
const MAX_FAILURES: u32 = 6;
/// Tries within tries.
const MAX_DEPTH: usize = 64;

/// Where the search stood before a guess.
struct Try {
    /// The path that came to the loop.
    item: Item,
    /// Paths that were put aside before.
    work: Vec<Item>,
    nodes: u32,
    ranks: u32,
    visited: u64,
}

/// All running tries, the outermost first, and what the failed ones have cost in visited instructions.
#[derive(Default)]
pub(super) struct Tries {
    running: Vec<Try>,
    wasted: u64,
}

impl Explorer<'_> {
    /// Failed tries may cost as much as the search itself, no more.
    pub(super) fn too_many_tries(&self) -> bool {
        let Some(first) = self.tries.running.first() else { return false };
        self.tries.wasted + (self.visited - first.visited) > self.m.env.insn_budget
    }

    /// Goes back to before the newest try, because something was refused. False if there is none: then the refusal stands.
    pub(super) fn retreat(&mut self) -> bool {
        let Some(t) = self.tries.running.pop() else { return false };
        for n in self.nodes.drain(t.nodes as usize..) {
            self.sites.entry(n.pc).or_default().forget(t.nodes, n.fingerprint);
        }
        self.nodes[t.item.node as usize].arrivals.pop();
        self.sites.entry(t.item.pc).or_default().failures += 1;
        self.tries.wasted += self.visited - t.visited;
        (self.ranks, self.visited, self.work) = (t.ranks, t.visited, t.work);
        self.work.push(t.item.again());
        true
    }

    /// All paths have ended: the newest try has succeeded. False if there is none: then the search is over.
    pub(super) fn advance(&mut self) -> bool {
        let Some(t) = self.tries.running.pop() else { return false };
        self.work = t.work;
        true
    }

    /// A path comes to the head of a loop that has an invariant and is on its way round it: is that included, and has the
    /// counter moved?
    pub(super) fn comes_back(&mut self, at: &Item) -> Result<bool, Refused> {
        let current = at.state.current();
        let here = |g: &&Ghost| g.region.0 == at.pc && g.frame == current;
        let Some(id) = at.state.ghosts().iter().rev().find(here).map(|g| g.of) else { return Ok(false) };
        let node = &self.nodes[id as usize];
        let Some(inv) = node.invariant.filter(|_| node.rank == 0) else { return Ok(false) };
        let moved = at.state.progress(id, inv.counter);
        let all = moved.and_then(|p| p.after(inv.progress));
        if all.is_none() || !at.state.is_subset(&node.state) {
            let why = "a guessed invariant does not hold";
            return Err((at.pc, Refusal::new(RejectKind::Internal, None, why)));
        }
        self.nodes[id as usize].invariant = Some(Invariant { progress: all, ..inv });
        self.nodes[at.node as usize].arrivals.push(id);
        Ok(true)
    }

    /// Is it time to try an invariant here, and is there one to try? Its node, and the state to go on from.
    pub(super) fn try_invariant(&mut self, at: &Item) -> Option<(u32, State)> {
        let region = self.m.heads.loop_at(at.pc)?;
        let site = self.sites.get(&at.pc)?;
        let enough = FIRST_TRY << (2 * site.failures.min(MAX_FAILURES));
        if site.open.len() < enough || site.failures >= MAX_FAILURES || self.tries.running.len() >= MAX_DEPTH
        {
            return None;
        }
        if (self.laps(at.pc, &at.state) as usize) < enough || self.tries.wasted > self.m.env.insn_budget {
            return None;
        }
        let (guess, cost) = widen::invariant(self.m, &at.state, region);
        self.tries.wasted += cost;
        match guess.and_then(|g| self.begin(at, region, g)) {
            Some(begun) => Some(begun),
            None => {
                self.sites.entry(at.pc).or_default().failures += 1;
                None
            }
        }
    }

    fn begin(&mut self, at: &Item, region: (Pc, Pc), guess: widen::Guess) -> Option<(u32, State)> {
        let counter = guess.counter;
        let id = self.nodes.len() as u32;
        let mut state = guess.state.clone();
        if !state.haunt(id, counter, region) {
            return None;
        }
        let work = std::mem::take(&mut self.work);
        let (nodes, ranks, visited) = (id, self.ranks, self.visited);
        self.tries.running.push(Try { item: at.clone(), work, nodes, ranks, visited });
        self.keep(at.pc, &guess.state, guess.state.fingerprint(), Some(at.node));
        self.nodes[id as usize].invariant = Some(Invariant { counter, region, progress: None });
        self.nodes[at.node as usize].arrivals.push(id);
        Some((id, state))
    }
}

#[cfg(all(test, feature = "asm"))]
mod tests {
    use crate::isa::asm::assemble;
    use crate::verify::{Env, Stats, Verifier};
    use std::sync::Arc;

    fn verify(text: &str) -> Stats {
        let program = assemble(text, &[]).unwrap();
        let mut env = Env::generic(64);
        env.helpers = Env::kernel_like_helpers();
        match Verifier::new(Arc::new(env)).verify(program) {
            Ok(v) => v.stats(),
            Err(r) => panic!("{r}: {:?}\n{text}", r.stats()),
        }
    }

    /// A million laps cost what a hundred do, and the bound on executed instructions is exact or nearly so.
    #[test]
    fn the_cost_of_an_affine_counter_does_not_grow_with_its_laps() {
        let loops = [
            ("up, tested first", "r2 = 0\nl:\nif r2 >= N goto e\nr2 += 1\ngoto l\ne:\nr0 = r2\nexit", 3),
            ("up, tested last", "r2 = 0\nl:\nr2 += 1\nif r2 < N goto l\nr0 = 0\nexit", 2),
            ("up to a number, not beyond", "r2 = 0\nl:\nr2 += 1\nif r2 != N goto l\nr0 = 0\nexit", 2),
            ("down to zero", "r2 = N\nl:\nr2 += -1\nif r2 != 0 goto l\nr0 = 0\nexit", 2),
            ("down, signed", "r2 = N\nl:\nr2 += -1\nif r2 s> -1 goto l\nr0 = 0\nexit", 2),
            ("up from below zero", "r2 = -5\nl:\nr2 += 1\nif r2 s< N goto l\nr0 = 0\nexit", 2),
            ("32 bit, down to below zero", "w2 = N\nl:\nw2 += -1\nif w2 s> -1 goto l\nr0 = 0\nexit", 2),
            ("32 bit, down to minus one", "w2 = N\nl:\nw2 -= 1\nif w2 != -1 goto l\nr0 = 0\nexit", 2),
            ("32 bit, up from below zero", "w2 = -5\nl:\nw2 += 1\nif w2 s< N goto l\nr0 = 0\nexit", 2),
            ("32 bit", "w2 = 0\nl:\nw2 += 1\nif w2 < N goto l\nr0 = 0\nexit", 2),
            ("a sum beside it", "r2 = 0\nr3 = 0\nl:\nr3 += r2\nr2 += 1\nif r2 < N goto l\nr0 = r3\nexit", 3),
            (
                "in a stack slot",
                "r2 = 1\n*(u64 *)(r10 - 8) = r2\nl:\nr2 = *(u64 *)(r10 - 8)\nr2 += 1\n*(u64 *)(r10 - 8) = r2\n\
                 if r2 < N goto l\nr0 = 0\nexit",
                4,
            ),
            (
                "in a stack slot of 32 bits",
                "w2 = 1\n*(u32 *)(r10 - 8) = w2\nl:\nw2 = *(u32 *)(r10 - 8)\nw2 += 1\n*(u32 *)(r10 - 8) = w2\n\
                 if w2 < N goto l\nr0 = 0\nexit",
                4,
            ),
            (
                "bounded by the context",
                "r3 = *(u32 *)(r1 + 0)\nif r3 > N goto e\nr2 = 0\nl:\nif r2 >= r3 goto e\nr2 += 1\ngoto l\ne:\nr0 = 0\nexit",
                3,
            ),
            (
                "down from the context, in a stack slot",
                "r3 = *(u32 *)(r1 + 0)\nif r3 > N goto e\n*(u64 *)(r10 - 8) = r3\nl:\nr3 = *(u64 *)(r10 - 8)\nif r3 == 0 goto e\n\
                 r3 += -1\n*(u64 *)(r10 - 8) = r3\ngoto l\ne:\nr0 = 0\nexit",
                5,
            ),
            (
                "early exit",
                "r2 = 0\nl:\nr3 = *(u8 *)(r1 + 3)\nif r3 == 7 goto e\nr2 += 1\nif r2 < N goto l\ne:\nr0 = r2\nexit",
                4,
            ),
            (
                "an index of the context",
                "r2 = 0\nl:\nr3 = r2\nr3 &= 63\nr4 = r1\nr4 += r3\nr3 = *(u8 *)(r4 + 0)\nr2 += 1\nif r2 < N goto l\nr0 = 0\nexit",
                7,
            ),
        ];
        for (name, text, lap) in loops {
            let cost = |n: u64| verify(&text.replace('N', &n.to_string()));
            let (few, many) = (cost(100), cost(1_000_000));
            assert!(many.insns <= few.insns + 200, "{name}: {few:?}, {many:?}");
            let (low, high) = (1_000_000 * lap, 1_000_000 * lap + 20 * lap + 20);
            assert!((low..=high).contains(&many.max_insns), "{name}: {many:?}");
        }
    }

    #[test]
    fn nested_loops_multiply_their_laps() {
        let text = "
            r2 = 0
        outer:
            r3 = 0
        inner:
            r3 += 1
            if r3 < 1000 goto inner
            r2 += 1
            if r2 < 1000 goto outer
            r0 = 0
            exit";
        let s = verify(text);
        assert!(s.insns < 20_000, "{s:?}");
        assert!((2_000_000..2_200_000).contains(&s.max_insns), "{s:?}");
    }

    /// Of two counters that show the end, the one with the least room gives the bound.
    #[test]
    fn the_tightest_counter_counts() {
        let text = "
            r2 = *(u64 *)(r1 + 0)
            if r2 < 4097 goto out
            r4 = 0
        again:
            r2 += -4096
            if r4 > 62 goto out
            r4 += 1
            if r2 > 4096 goto again
        out:
            r0 = 0
            exit";
        let s = verify(text);
        assert!((256..300).contains(&s.max_insns), "{s:?}");
    }

    #[test]
    fn a_triangle_has_half_a_square() {
        let text = "
            r2 = 0
        outer:
            r3 = 0
        inner:
            if r3 >= r2 goto out
            r3 += 1
            goto inner
        out:
            r2 += 1
            if r2 < 300 goto outer
            r0 = 0
            exit";
        let s = verify(text);
        assert!(s.insns < 1000, "{s:?}");
        // What is proved is the square.
        assert!((3 * 300 * 300 / 2..3 * 300 * 310).contains(&s.max_insns), "{s:?}");
    }

    /// Laps that a helper makes are loops like any other.
    #[test]
    fn a_callback_is_proved_by_an_invariant() {
        let text = "
            r1 = N
            r2 = fn body ll
            r3 = r10
            r3 += -8
            r4 = 0
            *(u64 *)(r10 - 8) = 0
            call 181
            r0 = *(u64 *)(r10 - 8)
            exit
        fn body:
            r0 = *(u64 *)(r2 + 0)
            r0 += r1
            *(u64 *)(r2 + 0) = r0
            r0 = 0
            exit";
        for n in [1, 10, 100, 1_000_000] {
            let s = verify(&text.replace('N', &n.to_string()));
            assert!(s.insns < 200, "{s:?}");
            assert!((6 * n..6 * n + 40).contains(&s.max_insns), "{n}: {s:?}");
        }
    }
}
