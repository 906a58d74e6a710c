//! Random elements: of 6 bits against all numbers, of 64 bits against some of their members.

use super::*;
use crate::isa::semantics;

/// A small deterministic generator (xorshift64*), biased towards the numbers where verifiers have failed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 11) % n
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
            let near = self.next().is_multiple_of(2);
            let y = if near { x.wrapping_add(self.next() % 100) } else { self.number() };
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

    /// Bounds with ends in order, often wide.
    fn range(&mut self, w: u32) -> Range {
        let full = Range::full(w);
        let mut ends = |wide: bool| {
            let (a, b) = (self.below(ones(w) + 1), self.below(ones(w) + 1));
            if wide { (0, ones(w)) } else { (a.min(b), a.max(b)) }
        };
        let (u, s) = (ends(false), ends(false));
        let shift = |x: u64| x as i64 + full.smin;
        match self.below(4) {
            0 => Range::unsigned(u.0, u.1, w),
            1 => Range { smin: shift(s.0), smax: shift(s.1), ..full },
            2 => full,
            _ => Range { umin: u.0, umax: u.1, smin: shift(s.0), smax: shift(s.1) },
        }
    }

    fn scalar<const W: u32>(&mut self) -> ScalarN<W> {
        loop {
            let mask = self.below(1 << W) | self.below(1 << W);
            let bits = Tnum { value: self.below(1 << W) & !mask, mask };
            let (full, half) = (self.range(W), self.range(W / 2));
            if let Some(s) = ScalarN::from_parts(bits, full, half) {
                return s;
            }
        }
    }

    /// An element of 6 bits with halves of 3, and what it means.
    fn small(&mut self) -> (ScalarN<6>, Set) {
        let s = self.scalar();
        (s, meaning(s))
    }
}

fn rounds(usual: u64) -> u64 {
    if step(2) == 1 { 20 * usual } else { usual }
}

#[test]
fn six_bit_operations_hold_every_result() {
    let mut random = Random(0x5eed_0006);
    for _ in 0..rounds(30_000) {
        let ((a, xs), (b, ys)) = (random.small(), random.small());
        // Shift amounts are cut by a mask, which 6 and 3 bits do not have: see the next test.
        let shift = |op: &AluOp| matches!(op, AluOp::Lsh | AluOp::Rsh | AluOp::Arsh);
        let ops = OPS.into_iter().filter(|op| !shift(op));
        for (op, width) in ops.flat_map(|op| WIDTHS.map(|w| (op, w))) {
            let r = a.alu(op, b, width);
            let lost = results(op, xs, ys, bits_of(width, 6)) & !meaning(r);
            assert_eq!(lost, 0, "{op:?} {width:?}\n{a:?}\n{b:?}\n{r:?}");
        }
        let join = a.join(b);
        assert!(a.is_subset(join) && b.is_subset(join) && (xs | ys) & !meaning(join) == 0);
        assert!(!a.is_subset(b) || xs & !ys == 0);
    }
}

#[test]
fn eight_bit_shifts_hold_every_result() {
    let mut random = Random(0x5eed_0008);
    for _ in 0..rounds(8_000) {
        let (a, b) = (random.scalar::<8>(), random.scalar::<8>());
        for (op, width) in
            [AluOp::Lsh, AluOp::Rsh, AluOp::Arsh].into_iter().flat_map(|op| WIDTHS.map(|w| (op, w)))
        {
            let (r, w) = (a.alu(op, b, width), bits_of(width, 8));
            let amounts =
                (0..256).filter(|&y| b.contains(y)).fold(0, |s: Set, y| s | 1 << (y & u64::from(w - 1)));
            for x in (0..256).filter(|&x| a.contains(x)) {
                let fits = members(amounts).all(|k| r.contains(concrete(op, x, k, w)));
                assert!(fits, "{op:?} {width:?} {x}\n{a:?}\n{b:?}\n{r:?}");
            }
        }
    }
}

#[test]
fn six_bit_conditions_keep_every_pair_that_satisfies_them() {
    let mut random = Random(0x5eed_0007);
    for _ in 0..rounds(15_000) {
        let ((a, xs), (b, ys)) = (random.small(), random.small());
        for cond in conditions() {
            let out = assume(a, b, cond);
            let (p, q) = out.map_or((0, 0), |(p, q)| (meaning(p), meaning(q)));
            let (x, y) = kept(cond, xs, ys, 6);
            assert_eq!((x & !p, y & !q), (0, 0), "{cond:?}\n{a:?}\n{b:?}\n{out:?}");
            assert_eq!((p & !xs, q & !ys), (0, 0), "{cond:?}\n{a:?}\n{b:?}\n{out:?}");
        }
    }
}

/// What the tests call concrete is what the machine does.
#[test]
fn concrete_arithmetic_is_the_machine_s() {
    let mut random = Random(0x5eed_0003);
    for _ in 0..rounds(100_000) {
        let (x, y) = (random.number(), random.number());
        for (op, width) in OPS.into_iter().flat_map(|op| WIDTHS.map(|w| (op, w))) {
            let got = concrete(op, x, y, bits_of(width, 64));
            assert_eq!(got, semantics::alu(width, op, x, y), "{op:?} {width:?} {x:#x} {y:#x}");
        }
        for (cond, _, width) in conditions() {
            let machine = semantics::compare(width, cond, x, y);
            assert_eq!(holds(cond, x, y, bits_of(width, 64)), machine, "{cond:?} {width:?} {x:#x} {y:#x}");
        }
    }
}

#[test]
fn operations_hold_every_concrete_result() {
    let mut random = Random(0x5eed_0001);
    for _ in 0..rounds(30_000) {
        let ((a, xs), (b, ys)) = (random.element(), random.element());
        let op = OPS[random.below(14) as usize];
        let width = WIDTHS[random.below(2) as usize];
        let r = a.alu(op, b, width);
        for (&x, &y) in xs.iter().flat_map(|x| ys.iter().map(move |y| (x, y))) {
            let got = semantics::alu(width, op, x, y);
            assert!(r.contains(got), "{op:?} {width:?} {x:#x} {y:#x} = {got:#x}\n{a:?}\n{b:?}\n{r:?}");
        }
        for &x in &xs {
            conversions_hold(a, x);
        }
    }
}

fn conversions_hold(a: Scalar, x: u64) {
    assert!(a.swap_bytes(16).contains(u64::from((x as u16).swap_bytes())), "{a:?} {x:#x}");
    assert!(a.swap_bytes(32).contains(u64::from((x as u32).swap_bytes())), "{a:?} {x:#x}");
    assert!(a.swap_bytes(64).contains(x.swap_bytes()), "{a:?} {x:#x}");
    for (n, width) in [8, 16, 32].into_iter().flat_map(|n| WIDTHS.map(|w| (n, w))) {
        assert!(a.zero_extend(n).contains(x & ones(n)), "{a:?} {x:#x} {n}");
        if width == Width::W64 || n < 32 {
            let wide = semantics::sign_extend(width, n as u8, x);
            assert!(a.sign_extend(n, width).contains(wide), "{a:?} {x:#x} {n} {width:?}");
        }
        assert!(a.neg(width).contains(semantics::neg(width, x)), "{a:?} {x:#x}");
    }
}

#[test]
fn conditions_keep_every_pair_that_satisfies_them() {
    let mut random = Random(0x5eed_0002);
    for _ in 0..rounds(20_000) {
        let ((a, xs), (b, ys)) = (random.element(), random.element());
        for cond in conditions() {
            let out = assume(a, b, cond);
            for &x in &xs {
                for &y in ys.iter().filter(|&&y| semantics::compare(cond.2, cond.0, x, y) == cond.1) {
                    let kept = out.is_some_and(|(p, q)| p.contains(x) && q.contains(y));
                    assert!(kept, "{cond:?} {x:#x} {y:#x}\n{a:?}\n{b:?}\n{out:?}");
                }
            }
        }
    }
}
