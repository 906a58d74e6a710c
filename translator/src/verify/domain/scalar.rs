//! [`Scalar`]: a number of 64 bits as known bits, bounds at 64 bits and bounds of its low half, kept in step.
//!
//! Meaning: all `x` in the tnum, in the bounds, and whose low half is in the half's bounds. An element may
//! be larger than the set it stands for, never smaller. The width is a parameter, so that the tests can run the same
//! code at 4 bits (halves of 2) over every element.

use super::range::{Range, sext};
use super::tnum::{Tnum, ones};
use crate::isa::{AluOp, Cond, Width};

/// Abstract number of `W` bits; `W` is 64 outside tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ScalarN<const W: u32> {
    bits: Tnum,
    full: Range,
    half: Range,
}

/// Abstract 64-bit number.
pub(crate) type Scalar = ScalarN<64>;

/// Known bits and bounds at one width: what the operations work on.
#[derive(Clone, Copy)]
struct Core {
    t: Tnum,
    r: Range,
}

/// A condition that is known to hold between two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rel {
    Eq,
    Ne,
    /// Unsigned less; `Ule` less or equal.
    Ult,
    Ule,
    /// Signed less; `Sle` less or equal.
    Slt,
    Sle,
    /// They have a set bit in common.
    Set,
    /// They have none.
    Disjoint,
}

impl Rel {
    /// `cond(a, b) == truth` as a relation, and whether the operands change places.
    pub(crate) const fn from_cond(cond: Cond, truth: bool) -> (Rel, bool) {
        use Cond::*;
        match (cond, truth) {
            (Eq, true) | (Ne, false) => (Rel::Eq, false),
            (Eq, false) | (Ne, true) => (Rel::Ne, false),
            (Lt, true) | (Ge, false) => (Rel::Ult, false),
            (Gt, true) | (Le, false) => (Rel::Ult, true),
            (Le, true) | (Gt, false) => (Rel::Ule, false),
            (Ge, true) | (Lt, false) => (Rel::Ule, true),
            (SLt, true) | (SGe, false) => (Rel::Slt, false),
            (SGt, true) | (SLe, false) => (Rel::Slt, true),
            (SLe, true) | (SGt, false) => (Rel::Sle, false),
            (SGe, true) | (SLt, false) => (Rel::Sle, true),
            (Set, true) => (Rel::Set, false),
            (Set, false) => (Rel::Disjoint, false),
        }
    }
}

impl Core {
    fn unknown(w: u32) -> Core {
        Core { t: Tnum::unknown(w), r: Range::full(w) }
    }

    /// Tightens each part by the others; false when nothing is left.
    fn sync(&mut self, w: u32) -> bool {
        self.r.learn_tnum(self.t, w);
        self.r.sync(w);
        if self.r.is_empty() {
            return false;
        }
        match self.t.intersect(Tnum::range(self.r.umin, self.r.umax)) {
            Some(t) => self.t = t,
            None => return false,
        }
        self.r.learn_tnum(self.t, w);
        self.r.sync(w);
        !self.r.is_empty()
    }

    /// The shift amounts that `self & (w - 1)` may be, as an inclusive interval.
    fn shift_amounts(self, w: u32) -> (u32, u32) {
        let last = u64::from(w - 1);
        let t = self.t.and(Tnum::constant(last));
        let (mut lo, mut hi) = (t.value, t.possible());
        if self.r.umax <= last {
            (lo, hi) = (lo.max(self.r.umin), hi.min(self.r.umax));
        }
        (lo as u32, hi.max(lo) as u32)
    }

    fn shift(self, op: AluOp, b: Core, w: u32) -> Core {
        let (lo, hi) = b.shift_amounts(w);
        let one = |k| match op {
            AluOp::Lsh => self.t.lsh(k, w),
            AluOp::Rsh => self.t.rsh(k),
            _ => self.t.arsh(k, w),
        };
        let bits = b.t.and(Tnum::constant(u64::from(w - 1)));
        let amounts = (lo..=hi).filter(|&k| bits.contains(k.into()));
        let t = amounts.map(one).reduce(Tnum::join).unwrap_or(Tnum::unknown(w));
        let r = match op {
            AluOp::Lsh => self.r.lsh(lo, hi, w),
            AluOp::Rsh => self.r.rsh(lo, hi, w),
            _ => self.r.arsh(lo, hi, w),
        };
        Core { t, r }
    }

    fn alu(self, op: AluOp, b: Core, w: u32) -> Core {
        let (unknown, full) = (Tnum::unknown(w), Range::full(w));
        let core = |t, r| Core { t, r };
        let (x, y) = (self, b);
        match op {
            AluOp::Add => core(x.t.add(y.t, w), x.r.add(y.r, w)),
            AluOp::Sub => core(x.t.sub(y.t, w), x.r.sub(y.r, w)),
            AluOp::Mul => core(x.t.mul(y.t, w), x.r.mul(y.r, w)),
            AluOp::Div => core(x.div_bits(y, w), x.r.div(y.r, w)),
            AluOp::SDiv => core(unknown, x.r.sdiv(y.r, w)),
            AluOp::Mod => core(x.mod_bits(y, w), x.r.modulo(y.r, w)),
            AluOp::SMod => core(unknown, x.r.smod(y.r, w)),
            AluOp::And => core(x.t.and(y.t), Range { umax: x.r.umax.min(y.r.umax), ..full }),
            // Neither makes a number larger than the sum.
            AluOp::Or => {
                core(x.t.or(y.t), Range { umin: x.r.umin.max(y.r.umin), umax: x.sum_limit(y, w), ..full })
            }
            AluOp::Xor => core(x.t.xor(y.t), Range { umax: x.sum_limit(y, w), ..full }),
            AluOp::Lsh | AluOp::Rsh | AluOp::Arsh => x.shift(op, y, w),
            AluOp::Mov => y,
        }
    }

    fn sum_limit(self, b: Core, w: u32) -> u64 {
        self.r.umax.saturating_add(b.r.umax).min(ones(w))
    }

    /// `x / 2^k` is `x >> k`, bit for bit; by zero it is 0.
    fn div_bits(self, b: Core, w: u32) -> Tnum {
        match b.t.is_const().then_some(b.t.value) {
            Some(0) => Tnum::constant(0),
            Some(n) if n.is_power_of_two() => self.t.rsh(n.trailing_zeros()),
            _ => Tnum::unknown(w),
        }
    }

    /// `x % 2^k` is `x & (2^k - 1)`, bit for bit; a zero divisor leaves all bits.
    fn mod_bits(self, b: Core, w: u32) -> Tnum {
        match b.t.is_const().then_some(b.t.value) {
            Some(0) => self.t,
            Some(n) if n.is_power_of_two() => self.t.and(Tnum::constant(n - 1)),
            _ => Tnum::unknown(w),
        }
    }

    /// Makes `rel(a, b)` true; false when it cannot be.
    fn assume(a: &mut Core, b: &mut Core, rel: Rel, w: u32) -> bool {
        match rel {
            Rel::Eq => {
                let Some(t) = a.t.intersect(b.t) else { return false };
                let both = Core { t, r: a.r.intersect(b.r) };
                (*a, *b) = (both, both);
            }
            Rel::Ne => {
                if a.t.is_const() && b.t.is_const() {
                    return a.t.value != b.t.value;
                }
                a.exclude(b.t, w);
                b.exclude(a.t, w);
            }
            Rel::Ult | Rel::Ule => {
                let gap = u64::from(rel == Rel::Ult);
                let (Some(hi), Some(lo)) = (b.r.umax.checked_sub(gap), a.r.umin.checked_add(gap)) else {
                    return false;
                };
                a.r.umax = a.r.umax.min(hi);
                b.r.umin = b.r.umin.max(lo);
            }
            Rel::Slt | Rel::Sle => {
                let gap = i64::from(rel == Rel::Slt);
                let (Some(hi), Some(lo)) = (b.r.smax.checked_sub(gap), a.r.smin.checked_add(gap)) else {
                    return false;
                };
                a.r.smax = a.r.smax.min(hi);
                b.r.smin = b.r.smin.max(lo);
            }
            Rel::Set => return Core::assume_common_bit(a, b, w),
            Rel::Disjoint => {
                if a.t.value & b.t.value != 0 {
                    return false;
                }
                let (known_a, known_b) = (a.t.value, b.t.value);
                a.t.mask &= !known_b;
                b.t.mask &= !known_a;
            }
        }
        a.sync(w) && b.sync(w)
    }

    /// One candidate left: that bit is set in both. Of several, both are at least the lowest.
    fn assume_common_bit(a: &mut Core, b: &mut Core, w: u32) -> bool {
        let candidates = a.t.possible() & b.t.possible();
        if candidates == 0 {
            return false;
        }
        if candidates.is_power_of_two() {
            for c in [&mut *a, &mut *b] {
                c.t = Tnum { value: c.t.value | candidates, mask: c.t.mask & !candidates };
            }
        }
        let lowest = candidates & candidates.wrapping_neg();
        (a.r.umin, b.r.umin) = (a.r.umin.max(lowest), b.r.umin.max(lowest));
        a.sync(w) && b.sync(w)
    }

    /// Drops a constant from the ends of the bounds.
    fn exclude(&mut self, t: Tnum, w: u32) {
        if !t.is_const() {
            return;
        }
        let (x, s) = (t.value, sext(t.value, w));
        if self.r.umin == x && x < ones(w) {
            self.r.umin += 1;
        }
        if self.r.umax == x && x > 0 {
            self.r.umax -= 1;
        }
        if self.r.smin == s && s < i64::MAX {
            self.r.smin += 1;
        }
        if self.r.smax == s && s > i64::MIN {
            self.r.smax -= 1;
        }
    }
}

impl<const W: u32> ScalarN<W> {
    const H: u32 = W / 2;

    pub(crate) fn unknown() -> Self {
        ScalarN { bits: Tnum::unknown(W), full: Range::full(W), half: Range::full(Self::H) }
    }

    pub(crate) fn constant(x: u64) -> Self {
        let x = x & ones(W);
        ScalarN {
            bits: Tnum::constant(x),
            full: Range::constant(x, W),
            half: Range::constant(x & ones(Self::H), Self::H),
        }
    }

    /// All numbers of `n` bits.
    pub(crate) fn bits(n: u32) -> Self {
        Self::from_tnum(Tnum::unknown(n))
    }

    pub(crate) fn from_tnum(t: Tnum) -> Self {
        ScalarN { bits: t, ..Self::unknown() }.synced_or_unknown()
    }

    pub(crate) fn as_const(self) -> Option<u64> {
        self.bits.is_const().then_some(self.bits.value)
    }

    pub(crate) fn tnum(self) -> Tnum {
        self.bits
    }

    pub(crate) fn umin(self) -> u64 {
        self.full.umin
    }

    pub(crate) fn umax(self) -> u64 {
        self.full.umax
    }

    pub(crate) fn smin(self) -> i64 {
        self.full.smin
    }

    pub(crate) fn smax(self) -> i64 {
        self.full.smax
    }

    /// Bounds of the low half.
    pub(crate) fn half(self) -> Range {
        self.half
    }

    /// Unsigned and signed bounds.
    pub(crate) fn bounds(self) -> ((u64, u64), (i64, i64)) {
        ((self.full.umin, self.full.umax), (self.full.smin, self.full.smax))
    }

    /// Unsigned and signed bounds of the low half.
    pub(crate) fn half_bounds(self) -> ((u64, u64), (i64, i64)) {
        ((self.half.umin, self.half.umax), (self.half.smin, self.half.smax))
    }

    /// Does the number fit into the low half (its upper half is zero)?
    pub(crate) fn fits_half(self) -> bool {
        self.full.umax <= ones(Self::H)
    }

    pub(crate) fn contains(self, x: u64) -> bool {
        let low = x & ones(Self::H);
        let (s, sl) = (sext(x, W), sext(low, Self::H));
        let (f, h) = (self.full, self.half);
        self.bits.contains(x)
            && (f.umin..=f.umax).contains(&x)
            && (f.smin..=f.smax).contains(&s)
            && (h.umin..=h.umax).contains(&low)
            && (h.smin..=h.smax).contains(&sl)
    }

    /// Is every number of `self` in `other`? (Component-wise: true only if so.)
    pub(crate) fn is_subset(self, other: Self) -> bool {
        self.bits.is_subset(other.bits) && self.full.is_subset(other.full) && self.half.is_subset(other.half)
    }

    pub(crate) fn join(self, b: Self) -> Self {
        ScalarN { bits: self.bits.join(b.bits), full: self.full.join(b.full), half: self.half.join(b.half) }
            .synced_or_unknown()
    }

    /// All numbers with these bits in these bounds; everything if there is none.
    pub(crate) fn from_bounds(bits: Tnum, (umin, umax): (u64, u64), (smin, smax): (i64, i64)) -> Self {
        ScalarN { bits, full: Range { umin, umax, smin, smax }, half: Range::full(Self::H) }
            .synced_or_unknown()
    }

    #[cfg(test)]
    pub(crate) fn from_parts(bits: Tnum, full: Range, half: Range) -> Option<Self> {
        let mut s = ScalarN { bits, full, half };
        s.sync().then_some(s)
    }

    #[cfg(test)]
    pub(crate) fn parts(self) -> (Tnum, Range, Range) {
        (self.bits, self.full, self.half)
    }

    fn core(self) -> Core {
        Core { t: self.bits, r: self.full }
    }

    fn half_core(self) -> Core {
        Core { t: self.bits.truncate(Self::H), r: self.half }
    }

    fn high_mask() -> u64 {
        ones(W) & !ones(Self::H)
    }

    /// Tightens all parts by each other until nothing changes (or long enough); false when nothing is left.
    fn sync(&mut self) -> bool {
        for _ in 0..3 {
            let before = *self;
            let mut core = self.core();
            if !core.sync(W) {
                return false;
            }
            (self.bits, self.full) = (core.t, core.r);
            self.half_from_full();
            let mut half = self.half_core();
            if !half.sync(Self::H) {
                return false;
            }
            self.half = half.r;
            self.bits = Tnum {
                value: self.bits.value & Self::high_mask() | half.t.value,
                mask: self.bits.mask & Self::high_mask() | half.t.mask,
            };
            self.full_from_half();
            if self.full.is_empty() {
                return false;
            }
            if *self == before {
                break;
            }
        }
        true
    }

    fn half_from_full(&mut self) {
        let (low, high) = (ones(Self::H), Self::high_mask());
        let (f, h) = (self.full, &mut self.half);
        if f.umin & high == f.umax & high {
            h.umin = h.umin.max(f.umin & low);
            h.umax = h.umax.min(f.umax & low);
        }
        let limits = Range::full(Self::H);
        if f.smin >= limits.smin && f.smax <= limits.smax {
            h.smin = h.smin.max(f.smin);
            h.smax = h.smax.min(f.smax);
        }
    }

    /// Within the block of `2^H` numbers that holds a bound, the low half must respect the half's bounds.
    fn full_from_half(&mut self) {
        let high = Self::high_mask();
        let limits = Range::full(Self::H);
        let (f, h) = (&mut self.full, self.half);
        f.umin = f.umin.max(f.umin & high | h.umin);
        f.umax = f.umax.min(f.umax & high | h.umax);
        f.smin = f.smin.max(f.smin & sext(high, W) | h.umin as i64);
        f.smax = f.smax.min(f.smax & sext(high, W) | h.umax as i64);
        if f.smin >= limits.smin && f.smax <= limits.smax {
            f.smin = f.smin.max(h.smin);
            f.smax = f.smax.min(h.smax);
        }
    }

    /// For results that cannot be empty: an operation on non-empty operands has a result.
    fn synced_or_unknown(mut self) -> Self {
        if self.sync() { self } else { Self::unknown() }
    }

    fn from_core(c: Core) -> Self {
        ScalarN { bits: c.t, full: c.r, half: Range::full(Self::H) }.synced_or_unknown()
    }

    /// The low half, zero-extended.
    fn from_half_core(c: Core) -> Self {
        let full = Range::unsigned(c.r.umin, c.r.umax, W);
        ScalarN { bits: c.t, full, half: c.r }.synced_or_unknown()
    }

    /// `self op b` at the width; `W32` works on the low halves and zeroes the upper one.
    pub(crate) fn alu(self, op: AluOp, b: Self, width: Width) -> Self {
        if let (Some(x), Some(y)) = (self.as_const(), b.as_const()) {
            return Self::constant(concrete(op, x, y, if width == Width::W64 { W } else { Self::H }));
        }
        if width == Width::W32 {
            return Self::from_half_core(self.half_core().alu(op, b.half_core(), Self::H));
        }
        let c = self.core().alu(op, b.core(), W);
        let mut out = ScalarN { bits: c.t, full: c.r, half: Range::full(Self::H) };
        // Of these the low half of the result depends on the low halves alone.
        if matches!(
            op,
            AluOp::Add | AluOp::Sub | AluOp::Mul | AluOp::And | AluOp::Or | AluOp::Xor | AluOp::Mov
        ) {
            let h = self.half_core().alu(op, b.half_core(), Self::H);
            out.half = h.r;
        }
        // `x << 32` (and then `>> 32` or `s>> 32`) is how compilers extend the low half: its bounds carry over.
        if op == AluOp::Lsh && b.as_const() == Some(Self::H.into()) {
            let (h, k) = (self.half, Self::H);
            let low = Range { umin: h.umin << k, umax: h.umax << k, smin: h.smin << k, smax: h.smax << k };
            out.full = out.full.intersect(low);
        }
        out.synced_or_unknown()
    }

    pub(crate) fn neg(self, width: Width) -> Self {
        Self::constant(0).alu(AluOp::Sub, self, width)
    }

    /// The low `n` bits, zero-extended.
    pub(crate) fn zero_extend(self, n: u32) -> Self {
        if n >= W {
            return self;
        }
        if n == Self::H {
            return Self::from_half_core(self.half_core());
        }
        let mut c = Core { t: self.bits.truncate(n), r: Range::full(W) };
        if self.full.umax <= ones(n) {
            c.r = self.full;
        }
        Self::from_core(c)
    }

    /// The low `n` bits, sign-extended to the width, of which `W32` zeroes the upper half.
    pub(crate) fn sign_extend(self, n: u32, width: Width) -> Self {
        let limits = Range::full(n);
        let mut c = Core::unknown(W);
        c.t = self.bits.truncate(n).sign_extend(n, W);
        (c.r.smin, c.r.smax) = (limits.smin, limits.smax);
        if self.full.smin >= limits.smin && self.full.smax <= limits.smax {
            c.r = self.full;
        } else if n == Self::H {
            (c.r.smin, c.r.smax) = (self.half.smin, self.half.smax);
        }
        let wide = Self::from_core(c);
        if width == Width::W32 { wide.zero_extend(Self::H) } else { wide }
    }

    /// Both numbers, given that `rel(a, b)` holds at the width; `None` when it cannot hold.
    pub(crate) fn assume(mut a: Self, mut b: Self, rel: Rel, width: Width) -> Option<(Self, Self)> {
        if width == Width::W64 {
            let (mut x, mut y) = (a.core(), b.core());
            if !Core::assume(&mut x, &mut y, rel, W) {
                return None;
            }
            (a.bits, a.full, b.bits, b.full) = (x.t, x.r, y.t, y.r);
            if rel == Rel::Eq {
                let half = a.half.intersect(b.half);
                (a.half, b.half) = (half, half);
            }
        } else {
            let (mut x, mut y) = (a.half_core(), b.half_core());
            if !Core::assume(&mut x, &mut y, rel, Self::H) {
                return None;
            }
            for (s, c) in [(&mut a, x), (&mut b, y)] {
                s.half = c.r;
                s.bits.value = s.bits.value & Self::high_mask() | c.t.value;
                s.bits.mask = s.bits.mask & Self::high_mask() | c.t.mask;
            }
        }
        (a.sync() && b.sync()).then_some((a, b))
    }
}

impl Scalar {
    /// All numbers from 0 to `max`.
    pub(crate) fn at_most(max: u64) -> Scalar {
        let most = Scalar::constant(max);
        Scalar::assume(Scalar::unknown(), most, Rel::Ule, Width::W64).map_or(most, |(s, _)| s)
    }

    /// Equal elements have equal fingerprints.
    pub(crate) fn fingerprint(self) -> u64 {
        let f = self.full;
        let h = self.half;
        let half = (h.umin ^ (h.smin as u64).rotate_left(17), h.umax ^ (h.smax as u64).rotate_left(17));
        let parts =
            [self.bits.value, self.bits.mask, f.umin, f.umax, f.smin as u64, f.smax as u64, half.0, half.1];
        parts.iter().fold(0, |h, x| (h ^ x).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23))
    }

    /// Byte-order conversion that swaps the low `bits / 8` bytes and drops the rest.
    pub(crate) fn swap_bytes(self, bits: u32) -> Scalar {
        Scalar::from_tnum(self.bits.truncate(bits).swap_bytes(bits))
    }
}

/// `x op y` on numbers of `w` bits (RFC 9669, 4.1).
pub(crate) fn concrete(op: AluOp, x: u64, y: u64, w: u32) -> u64 {
    let (x, y) = (x & ones(w), y & ones(w));
    let (sx, sy) = (sext(x, w), sext(y, w));
    let k = (y & u64::from(w - 1)) as u32;
    let out = match op {
        AluOp::Add => x.wrapping_add(y),
        AluOp::Sub => x.wrapping_sub(y),
        AluOp::Mul => x.wrapping_mul(y),
        AluOp::Div => x.checked_div(y).unwrap_or(0),
        AluOp::SDiv if y == 0 => 0,
        AluOp::SDiv => sx.wrapping_div(sy) as u64,
        AluOp::Mod => x.checked_rem(y).unwrap_or(x),
        AluOp::SMod if y == 0 => x,
        AluOp::SMod => sx.wrapping_rem(sy) as u64,
        AluOp::Or => x | y,
        AluOp::And => x & y,
        AluOp::Xor => x ^ y,
        AluOp::Lsh => x << k,
        AluOp::Rsh => x >> k,
        AluOp::Arsh => (sx >> k) as u64,
        AluOp::Mov => y,
    };
    out & ones(w)
}
