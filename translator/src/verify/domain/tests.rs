//! The laws of the domain, against its meaning: every abstract operation must hold every concrete result, and be as
//! precise as it was.
//!
//! | what | numbers | covered in CI |
//! |---|---|---|
//! | tnums (`tnums`) | 4, 5, 6 bits | all pairs of elements against all numbers; which operations are optimal |
//! | bounds (`ranges`) | 4 bits | all pairs of the 1368 tight elements, all operations, against all numbers |
//! | | 5 bits | a seeded part of the 18768² pairs |
//! | tightening | 4 bits, halves of 2 | a seeded part of all 81 tnums x 18496 x 100 bounds: nothing lost, nothing added |
//! | numbers (`exhaustive`) | 4 bits, halves of 2 | all 9652 tight elements (tnum x bounds x bounds of the half): inclusion on all pairs; operations, conditions and joins on a seeded part of the pairs, one in [`step`]; conversions on all |
//! | numbers (`random`) | 6 bits, halves of 3; shifts: 8, 4 | random elements against all numbers |
//! | | 64 bits | random elements near the borders where verifiers have failed, against their members |
//! | precision (`precision`) | 4 bits, halves of 2 | how many numbers the results hold, as a committed table |
//!
//! `RINGFENCE_DOMAIN_STEP=1` covers all pairs (`make soak`; about a quarter of an hour).
//! The concrete arithmetic that all this is held against is [`concrete`], which is itself held against `isa::semantics`.

use super::range::{Range, sext};
use super::scalar::{Rel, Scalar, ScalarN, concrete};
use super::tnum::{Tnum, ones};
use crate::isa::{AluOp, Cond, Width};
use std::collections::HashSet;
use std::sync::OnceLock;

mod exhaustive;
mod precision;
mod random;
mod ranges;
mod tnums;

const OPS: [AluOp; 14] = {
    use AluOp::*;
    [Add, Sub, Mul, Div, SDiv, Mod, SMod, Or, And, Xor, Lsh, Rsh, Arsh, Mov]
};
const CONDS: [Cond; 11] = {
    use Cond::*;
    [Eq, Ne, Gt, Ge, Lt, Le, SGt, SGe, SLt, SLe, Set]
};
const WIDTHS: [Width; 2] = [Width::W64, Width::W32];

fn bits_of(width: Width, w: u32) -> u32 {
    if width == Width::W64 { w } else { w / 2 }
}

fn holds(cond: Cond, x: u64, y: u64, w: u32) -> bool {
    let (x, y) = (x & ones(w), y & ones(w));
    let (a, b) = (sext(x, w), sext(y, w));
    match cond {
        Cond::Eq => x == y,
        Cond::Ne => x != y,
        Cond::Gt => x > y,
        Cond::Ge => x >= y,
        Cond::Lt => x < y,
        Cond::Le => x <= y,
        Cond::SGt => a > b,
        Cond::SGe => a >= b,
        Cond::SLt => a < b,
        Cond::SLe => a <= b,
        Cond::Set => x & y != 0,
    }
}

fn conditions() -> impl Iterator<Item = (Cond, bool, Width)> {
    let each = |c| WIDTHS.into_iter().flat_map(move |w| [(c, true, w), (c, false, w)]);
    CONDS.into_iter().flat_map(each)
}

/// Both numbers after `cond(a, b) == truth`, in the order of the condition's operands.
fn assume<const W: u32>(
    a: ScalarN<W>,
    b: ScalarN<W>,
    (cond, truth, width): (Cond, bool, Width),
) -> Option<(ScalarN<W>, ScalarN<W>)> {
    match Rel::from_cond(cond, truth) {
        (rel, false) => ScalarN::assume(a, b, rel, width),
        (rel, true) => ScalarN::assume(b, a, rel, width).map(|(p, q)| (q, p)),
    }
}

/// A set of numbers below 64.
type Set = u64;

fn members(s: Set) -> impl Iterator<Item = u64> + Clone {
    let mut left = s;
    std::iter::from_fn(move || {
        let x = (left != 0).then(|| u64::from(left.trailing_zeros()))?;
        left &= left - 1;
        Some(x)
    })
}

fn collect(w: u32, is: impl Fn(u64) -> bool) -> Set {
    (0..=ones(w)).filter(|&x| is(x)).fold(0, |s, x| s | 1 << x)
}

/// What an element means.
fn meaning<const W: u32>(s: ScalarN<W>) -> Set {
    collect(W, |x| s.contains(x))
}

/// Results and relations of numbers of up to 6 bits, worked out once: the tests ask for them a thousand million times.
struct Tables {
    /// By operation and width: `x op y` at `x * 64 + y`.
    results: Vec<Vec<u8>>,
    /// By condition and width: the `y` that satisfy it with each `x`.
    related: Vec<Vec<Set>>,
}

fn tables() -> &'static Tables {
    static TABLES: OnceLock<Tables> = OnceLock::new();
    let pairs = |w: u32| (0..64).flat_map(|x| (0..64).map(move |y| (x, y))).filter(move |_| w > 0);
    let results = |op| move |w: u32| pairs(w).map(|(x, y)| concrete(op, x, y, w) as u8).collect();
    let row = |c, w: u32, x| if w == 0 { 0 } else { collect(6, |y| holds(c, x, y, w)) };
    let related = |c| move |w: u32| (0..64).map(|x| row(c, w, x)).collect();
    TABLES.get_or_init(|| Tables {
        results: OPS.into_iter().flat_map(|op| (0..=6).map(results(op))).collect(),
        related: CONDS.into_iter().flat_map(|c| (0..=6).map(related(c))).collect(),
    })
}

/// All `x op y`.
fn results(op: AluOp, xs: Set, ys: Set, w: u32) -> Set {
    let table = &tables().results[OPS.iter().position(|o| *o == op).unwrap() * 7 + w as usize];
    let (mut out, mut a) = (0, xs);
    while a != 0 {
        let row = &table[64 * a.trailing_zeros() as usize..][..64];
        let mut b = ys;
        while b != 0 {
            out |= 1 << row[b.trailing_zeros() as usize];
            b &= b - 1;
        }
        a &= a - 1;
    }
    out
}

/// What is left of both sets when the condition holds.
fn kept((cond, truth, width): (Cond, bool, Width), xs: Set, ys: Set, w: u32) -> (Set, Set) {
    let n = bits_of(width, w) as usize;
    let rows = &tables().related[CONDS.iter().position(|c| *c == cond).unwrap() * 7 + n];
    let mut out = (0, 0);
    for x in members(xs) {
        let row = rows[x as usize];
        let hit = ys & if truth { row } else { !row };
        out = (out.0 | u64::from(hit != 0) << x, out.1 | hit);
    }
    out
}

fn tnums(w: u32) -> Vec<Tnum> {
    let all = (0..=ones(w)).flat_map(|mask| (0..=ones(w)).map(move |value| Tnum { value, mask }));
    all.filter(|t| t.value & t.mask == 0).collect()
}

/// All bounds whose ends are in order.
fn raw_ranges(w: u32) -> Vec<Range> {
    let ends = |lo: i64, hi: i64| (lo..=hi).flat_map(move |a| (a..=hi).map(move |b| (a, b)));
    let full = Range::full(w);
    let of = |(umin, umax)| {
        let signed = ends(full.smin, full.smax);
        signed.map(move |(smin, smax)| Range { umin: umin as u64, umax: umax as u64, smin, smax })
    };
    ends(0, ones(w) as i64).flat_map(of).collect()
}

/// All bounds that mean something and that tightening leaves as they are: what operations see and give.
fn tight_ranges(w: u32) -> Vec<(Range, Set)> {
    let mut seen = HashSet::new();
    let tight = raw_ranges(w).into_iter().map(|mut r| {
        r.sync(w);
        (r, collect(w, |x| r.contains(x, w)))
    });
    tight.filter(|(r, set)| *set != 0 && seen.insert(*r)).collect()
}

/// All tight elements of 4 bits with halves of 2, each with what it means; some mean nothing.
fn elements() -> &'static [(ScalarN<4>, Set)] {
    static ALL: OnceLock<Vec<(ScalarN<4>, Set)>> = OnceLock::new();
    ALL.get_or_init(|| {
        let (full, half) = (tight_ranges(4), tight_ranges(2));
        let mut seen = HashSet::new();
        for t in tnums(4) {
            for (f, _) in &full {
                seen.extend(half.iter().filter_map(|(h, _)| ScalarN::<4>::from_parts(t, *f, *h)));
            }
        }
        let mut all: Vec<_> = seen.into_iter().map(|s| (s, meaning(s))).collect();
        all.sort_unstable_by_key(|(s, _)| format!("{s:?}"));
        all
    })
}

/// One pair in so many is looked at, others for each left side. An odd number, so that all pairs have their turn.
fn step(usual: usize) -> usize {
    let wanted = std::env::var("RINGFENCE_DOMAIN_STEP").ok().and_then(|s| s.parse().ok());
    wanted.map_or(usual, |n: usize| n.max(1))
}

/// A seeded part of a list, another one for each `outer`.
fn part<T>(items: &[T], outer: usize, step: usize) -> impl Iterator<Item = &T> {
    let start = (outer as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
    items.iter().skip(start as usize % step).step_by(step)
}
