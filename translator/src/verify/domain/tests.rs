//! The laws of the domain, against its meaning: every abstract operation must hold every concrete result.
//! First all elements at 4 bits (halves of 2), then random ones at 64.

use super::range::{Range, sext};
use super::scalar::{Rel, Scalar, ScalarN, concrete};
use super::tnum::{Tnum, ones};
use crate::isa::{AluOp, Cond, Width};
use std::collections::HashSet;

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

fn tnums(w: u32) -> Vec<Tnum> {
    let all = (0..=ones(w)).flat_map(|mask| (0..=ones(w)).map(move |value| Tnum { value, mask }));
    all.filter(|t| t.value & t.mask == 0).collect()
}

/// All consistent elements of a width, with the numbers that each means.
fn elements<const W: u32>() -> Vec<(ScalarN<W>, Vec<u64>)> {
    let mut seen = HashSet::new();
    let mut out = Vec::new();
    let mut push = |t: Tnum, r: Range| {
        let all: Vec<u64> = (0..=ones(W)).filter(|&x| t.contains(x) && r.contains(x, W)).collect();
        let made = ScalarN::<W>::from_parts(t, r);
        if let Some(s) = made {
            assert!(all.iter().all(|&x| s.contains(x)), "{t:?} {r:?} lost a number: {s:?}");
            if seen.insert(s) {
                out.push((s, (0..=ones(W)).filter(|&x| s.contains(x)).collect()));
            }
        } else {
            assert!(all.is_empty(), "{t:?} {r:?} is not empty: {all:?}");
        }
    };
    for t in tnums(W) {
        for a in 0..=ones(W) {
            for b in a..=ones(W) {
                push(t, Range::unsigned(a, b, W));
                let (sa, sb) = (sext(a, W), sext(b, W));
                push(t, Range { smin: sa.min(sb), smax: sa.max(sb), ..Range::full(W) });
            }
        }
    }
    out
}

/// A part of a list, with another offset for each outer index: all pairs would take minutes.
fn thin<T>(items: &[T], outer: usize, step: usize) -> impl Iterator<Item = &T> {
    items.iter().skip(outer % step).step_by(step)
}

#[test]
fn tnum_operations_hold_every_concrete_result_at_4_bits() {
    let w = 4;
    let all: Vec<(Tnum, Vec<u64>)> =
        tnums(w).into_iter().map(|t| (t, (0..=ones(w)).filter(|&x| t.contains(x)).collect())).collect();
    for (a, xs) in &all {
        for (b, ys) in &all {
            let (sum, dif, mul) = (a.add(*b, w), a.sub(*b, w), a.mul(*b, w));
            let (and, or, xor, join, meet) = (a.and(*b), a.or(*b), a.xor(*b), a.join(*b), a.intersect(*b));
            let subset = xs.iter().all(|x| ys.contains(x));
            assert_eq!(a.is_subset(*b), subset, "{a:?} {b:?}");
            assert_eq!(meet.is_some(), xs.iter().any(|x| ys.contains(x)), "{a:?} {b:?}");
            for &x in xs {
                assert!(join.contains(x) && b.join(*a).contains(x), "{a:?} {b:?} {x}");
                assert!(!ys.contains(&x) || meet.is_some_and(|m| m.contains(x)));
                for &y in ys {
                    assert!(sum.contains(x.wrapping_add(y) & ones(w)), "{a:?} + {b:?}: {x} {y}");
                    assert!(dif.contains(x.wrapping_sub(y) & ones(w)), "{a:?} - {b:?}: {x} {y}");
                    assert!(mul.contains(x.wrapping_mul(y) & ones(w)), "{a:?} * {b:?}: {x} {y}");
                    assert!(and.contains(x & y) && or.contains(x | y) && xor.contains(x ^ y));
                }
            }
        }
        for k in 0..w {
            for &x in xs {
                assert!(a.lsh(k, w).contains(x << k & ones(w)));
                assert!(a.rsh(k).contains(x >> k));
                assert!(a.arsh(k, w).contains((sext(x, w) >> k) as u64 & ones(w)), "{a:?} >>s {k}: {x}");
                let n = k + 1;
                assert!(a.truncate(n).contains(x & ones(n)));
                assert!(a.truncate(n).sign_extend(n, w).contains(sext(x & ones(n), n) as u64 & ones(w)));
            }
        }
    }
}

#[test]
fn tnum_of_a_range_is_the_smallest_that_holds_it() {
    for lo in 0..16u64 {
        for hi in lo..16 {
            let t = Tnum::range(lo, hi);
            assert!((lo..=hi).all(|x| t.contains(x)));
            let best = tnums(4).into_iter().filter(|t| (lo..=hi).all(|x| t.contains(x)));
            assert_eq!(best.map(|t| t.mask.count_ones()).min(), Some(t.mask.count_ones()), "{lo} {hi}");
        }
    }
}

#[test]
fn scalar_arithmetic_holds_every_concrete_result_at_4_bits() {
    let all = elements::<4>();
    assert!(all.len() > 300, "{}", all.len());
    for (i, (a, xs)) in all.iter().enumerate() {
        for (b, ys) in thin(&all, i, 7) {
            for op in OPS {
                for width in WIDTHS {
                    let (r, w) = (a.alu(op, *b, width), bits_of(width, 4));
                    for &x in xs {
                        for &y in ys {
                            let got = concrete(op, x, y, w);
                            assert!(r.contains(got), "{op:?} {width:?} {x} {y} = {got}\n{a:?}\n{b:?}\n{r:?}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn scalar_conditions_keep_every_pair_that_satisfies_them_at_4_bits() {
    let all = elements::<4>();
    let (mut dead, mut refined) = (0u64, 0u64);
    for (i, (a, xs)) in all.iter().enumerate() {
        for (b, ys) in thin(&all, i, 5) {
            for (cond, truth, width) in conditions() {
                let (rel, swap) = Rel::from_cond(cond, truth);
                let w = bits_of(width, 4);
                let out = if swap {
                    ScalarN::assume(*b, *a, rel, width).map(|(p, q)| (q, p))
                } else {
                    ScalarN::assume(*a, *b, rel, width)
                };
                dead += u64::from(out.is_none());
                refined += u64::from(out.is_some_and(|(p, q)| p != *a || q != *b));
                for &x in xs {
                    for &y in ys.iter().filter(|&&y| holds(cond, x, y, w) == truth) {
                        let kept = out.is_some_and(|(p, q)| p.contains(x) && q.contains(y));
                        assert!(kept, "{cond:?} {truth} {width:?} {x} {y}\n{a:?}\n{b:?}\n{out:?}");
                    }
                }
            }
        }
    }
    assert!(dead > 10_000 && refined > 10_000, "{dead} {refined}");
}

fn conditions() -> impl Iterator<Item = (Cond, bool, Width)> {
    let each = |c| WIDTHS.into_iter().flat_map(move |w| [(c, true, w), (c, false, w)]);
    CONDS.into_iter().flat_map(each)
}

#[test]
fn scalar_order_and_join_agree_with_their_meaning_at_4_bits() {
    let all = elements::<4>();
    for (a, xs) in &all {
        assert!(a.is_subset(*a) && a.is_subset(ScalarN::unknown()));
        for (b, ys) in &all {
            let j = a.join(*b);
            assert!(a.is_subset(j) && b.is_subset(j), "{a:?}\n{b:?}\n{j:?}");
            assert!(xs.iter().chain(ys).all(|&x| j.contains(x)));
            if a.is_subset(*b) {
                assert!(xs.iter().all(|x| ys.contains(x)), "{a:?} is in {b:?}?");
            }
        }
    }
}

#[test]
fn scalar_extensions_hold_every_concrete_result_at_8_bits() {
    for t in tnums(6) {
        for shift in [0, 1, 2] {
            let Some(s) = ScalarN::<8>::from_parts(t.lsh(shift, 8), Range::full(8)) else { continue };
            for x in (0..256).filter(|&x| s.contains(x)) {
                for n in 1..=8 {
                    assert!(s.zero_extend(n).contains(x & ones(n)), "{s:?} {x} {n}");
                    let wide = sext(x & ones(n), n) as u64 & 0xff;
                    assert!(s.sign_extend(n, Width::W64).contains(wide), "{s:?} {x} {n}");
                    if n <= 4 {
                        assert!(s.sign_extend(n, Width::W32).contains(wide & 0xf), "{s:?} {x} {n}");
                    }
                }
                for width in WIDTHS {
                    let w = bits_of(width, 8);
                    assert!(s.neg(width).contains(0u64.wrapping_sub(x) & ones(w)), "{s:?} {x}");
                }
            }
        }
    }
}

/// A small deterministic generator (xorshift64*), biased towards the numbers where verifiers have failed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn number(&mut self) -> u64 {
        const EDGES: [u64; 8] =
            [0, 1 << 31, 1 << 32, 1 << 63, u64::MAX, 0x7fff_ffff, 0xffff_ffff, i64::MAX as u64];
        let (r, k) = (self.next(), self.next() % 64);
        match r % 5 {
            0 => EDGES[(k % 8) as usize].wrapping_add(self.next() % 9).wrapping_sub(4),
            1 => self.next() >> k,
            2 => 1 << k,
            3 => ((self.next() as i64) >> k) as u64,
            _ => self.next(),
        }
    }

    /// An element with some of its members.
    fn element(&mut self) -> (Scalar, Vec<u64>) {
        let x = self.number();
        let kind = self.next() % 5;
        let mut s = Scalar::constant(x);
        for _ in 0..kind {
            let y =
                if self.next().is_multiple_of(2) { x.wrapping_add(self.next() % 100) } else { self.number() };
            let other = if self.next().is_multiple_of(3) {
                let mask = self.number();
                Scalar::from_tnum(Tnum { value: y & !mask, mask })
            } else {
                Scalar::constant(y)
            };
            s = s.join(other);
        }
        let mut members = vec![x];
        let probes = [s.umin(), s.umax(), s.smin() as u64, s.smax() as u64, self.number(), x ^ self.number()];
        members.extend(probes.into_iter().filter(|&p| s.contains(p)));
        for _ in 0..4 {
            let p = s.tnum().value | (self.next() & s.tnum().mask);
            members.extend(s.contains(p).then_some(p));
        }
        (s, members)
    }
}

#[test]
fn random_64_bit_operations_hold_every_concrete_result() {
    let mut random = Random(0x5eed_0001);
    for _ in 0..60_000 {
        let ((a, xs), (b, ys)) = (random.element(), random.element());
        let op = OPS[(random.next() % 14) as usize];
        let width = WIDTHS[(random.next() % 2) as usize];
        let (r, w) = (a.alu(op, b, width), bits_of(width, 64));
        let swapped = [16, 32, 64].map(|n| a.swap_bytes(n));
        for &x in &xs {
            for &y in &ys {
                let got = concrete(op, x, y, w);
                assert!(r.contains(got), "{op:?} {width:?} {x:#x} {y:#x} = {got:#x}\n{a:?}\n{b:?}\n{r:?}");
            }
            assert!(swapped[0].contains(u64::from((x as u16).swap_bytes())));
            assert!(swapped[1].contains(u64::from((x as u32).swap_bytes())));
            assert!(swapped[2].contains(x.swap_bytes()));
            for n in [8, 16, 32] {
                assert!(
                    a.sign_extend(n, Width::W64).contains(sext(x & ones(n), n) as u64),
                    "{a:?} {x:#x} {n}"
                );
                assert!(a.zero_extend(n).contains(x & ones(n)), "{a:?} {x:#x} {n}");
            }
        }
    }
}

#[test]
fn random_64_bit_conditions_keep_every_pair_that_satisfies_them() {
    let mut random = Random(0x5eed_0002);
    for _ in 0..20_000 {
        let ((a, xs), (b, ys)) = (random.element(), random.element());
        for (cond, truth, width) in conditions() {
            let (rel, swap) = Rel::from_cond(cond, truth);
            let (p, q) = if swap { (b, a) } else { (a, b) };
            let out = Scalar::assume(p, q, rel, width).map(|(p, q)| if swap { (q, p) } else { (p, q) });
            for &x in &xs {
                for &y in ys.iter().filter(|&&y| holds(cond, x, y, bits_of(width, 64)) == truth) {
                    let kept = out.is_some_and(|(p, q)| p.contains(x) && q.contains(y));
                    assert!(kept, "{cond:?} {truth} {width:?} {x:#x} {y:#x}\n{a:?}\n{b:?}\n{out:?}");
                }
            }
        }
    }
}

/// Precision that clang's and rustc's idioms rely on: soundness alone would allow "unknown" everywhere.
#[test]
fn idioms_give_tight_bounds() {
    let c = Scalar::constant;
    let any = Scalar::unknown();
    let alu = |a: Scalar, op, b| a.alu(op, c(b), Width::W64);
    assert_eq!(alu(any, AluOp::And, 7).umax(), 7);
    assert_eq!(alu(any, AluOp::Mod, 10).umax(), 9);
    assert_eq!(alu(any, AluOp::Rsh, 60).umax(), 15);
    assert_eq!(alu(alu(any, AluOp::Lsh, 32), AluOp::Arsh, 32).smin(), i64::from(i32::MIN));
    assert_eq!(any.alu(AluOp::Mov, any, Width::W32).umax(), u64::from(u32::MAX));
    let (lo, _) = Scalar::assume(any, c(100), Rel::Slt, Width::W64).unwrap();
    let (both, _) = Scalar::assume(c(0), lo, Rel::Sle, Width::W64).map(|(p, q)| (q, p)).unwrap();
    assert_eq!((both.umin(), both.umax(), both.smin(), both.smax()), (0, 99, 0, 99));
    // A 32-bit compare bounds the whole register once the upper half is known to be zero.
    let word = any.zero_extend(32);
    let (small, _) = Scalar::assume(word, c(16), Rel::Ult, Width::W32).unwrap();
    assert_eq!(small.umax(), 15);
    // Compared in 32 bits, then extended by two shifts.
    let (low, _) = Scalar::assume(any, c(9), Rel::Ule, Width::W32).unwrap();
    assert_eq!(alu(alu(low, AluOp::Lsh, 32), AluOp::Rsh, 32).umax(), 9);
    assert_eq!(alu(alu(low, AluOp::Lsh, 32), AluOp::Arsh, 32).smax(), 9);
    let (nonzero, _) = Scalar::assume(word, c(0), Rel::Ne, Width::W64).unwrap();
    assert_eq!(nonzero.umin(), 1);
    let (bit, _) = Scalar::assume(any, c(8), Rel::Set, Width::W64).unwrap();
    assert_eq!(bit.tnum().value, 8);
    assert!(Scalar::assume(alu(any, AluOp::And, 4), c(3), Rel::Set, Width::W64).is_none());
}
