//! [`Range`]: unsigned and signed bounds of a number of `w` bits, kept in step.
//!
//! Meaning: all `x` below `2^w` with `umin <= x <= umax` and `smin <= sext(x) <= smax`. Operations compute in
//! 128 bits, where nothing overflows, and give up (full range) when a result wraps for some operands only.

use super::tnum::{Tnum, ones};

/// Bounds, both inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Range {
    pub(crate) umin: u64,
    pub(crate) umax: u64,
    pub(crate) smin: i64,
    pub(crate) smax: i64,
}

/// `x`, a number of `w` bits, as a signed one.
pub(crate) const fn sext(x: u64, w: u32) -> i64 {
    (x << (64 - w)) as i64 >> (64 - w)
}

const fn sign_min(w: u32) -> i64 {
    i64::MIN >> (64 - w)
}

const fn sign_max(w: u32) -> i64 {
    i64::MAX >> (64 - w)
}

impl Range {
    pub(crate) const fn full(w: u32) -> Range {
        Range { umin: 0, umax: ones(w), smin: sign_min(w), smax: sign_max(w) }
    }

    pub(crate) const fn constant(x: u64, w: u32) -> Range {
        let s = sext(x, w);
        Range { umin: x, umax: x, smin: s, smax: s }
    }

    pub(crate) const fn unsigned(umin: u64, umax: u64, w: u32) -> Range {
        Range { umin, umax, ..Range::full(w) }
    }

    const fn signed(smin: i64, smax: i64, w: u32) -> Range {
        Range { smin, smax, ..Range::full(w) }
    }

    #[cfg(test)]
    pub(crate) fn contains(self, x: u64, w: u32) -> bool {
        let s = sext(x, w);
        self.umin <= x && x <= self.umax && self.smin <= s && s <= self.smax
    }

    pub(crate) fn is_subset(self, other: Range) -> bool {
        other.umin <= self.umin
            && self.umax <= other.umax
            && other.smin <= self.smin
            && self.smax <= other.smax
    }

    pub(crate) fn is_empty(self) -> bool {
        self.umin > self.umax || self.smin > self.smax
    }

    pub(crate) fn intersect(self, other: Range) -> Range {
        Range {
            umin: self.umin.max(other.umin),
            umax: self.umax.min(other.umax),
            smin: self.smin.max(other.smin),
            smax: self.smax.min(other.smax),
        }
    }

    pub(crate) fn join(self, other: Range) -> Range {
        Range {
            umin: self.umin.min(other.umin),
            umax: self.umax.max(other.umax),
            smin: self.smin.min(other.smin),
            smax: self.smax.max(other.smax),
        }
    }

    /// Tightens by the known bits: each bound moves to the nearest number that has them. Empty if there is none.
    pub(crate) fn learn_tnum(&mut self, t: Tnum, w: u32) {
        let (m, sign) = (ones(w), 1u64 << (w - 1));
        // In signed order, numbers with the sign bit turned over are in unsigned order.
        let (order, flipped) = (|s: i64| (s as u64 & m) ^ sign, t.flip(sign));
        let signed = |x: u64| sext(x ^ sign, w);
        let unsigned = t.at_least(self.umin).zip(t.at_most(self.umax, w));
        let bounds = flipped.at_least(order(self.smin)).zip(flipped.at_most(order(self.smax), w));
        match (unsigned, bounds) {
            (Some((umin, umax)), Some((smin, smax))) => {
                *self = Range { umin, umax, smin: signed(smin), smax: signed(smax) };
            }
            _ => (self.umin, self.umax) = (1, 0),
        }
    }

    /// Lets the signed and the unsigned bounds tighten each other.
    pub(crate) fn sync(&mut self, w: u32) {
        let m = ones(w);
        if self.smin < 0 && self.smax >= 0 {
            // The signed range has two unsigned pieces; the unsigned bounds may rule one out.
            if self.umax < self.smin as u64 & m {
                self.smin = 0;
            }
            if self.umin > self.smax as u64 {
                self.smax = -1;
            }
        }
        if self.smin >= 0 || self.smax < 0 {
            self.umin = self.umin.max(self.smin as u64 & m);
            self.umax = self.umax.min(self.smax as u64 & m);
        }
        let (lo, hi) = (sext(self.umin & m, w), sext(self.umax & m, w));
        if lo <= hi && !(self.umin <= ones(w - 1) && self.umax > ones(w - 1)) {
            self.smin = self.smin.max(lo);
            self.smax = self.smax.min(hi);
        }
    }

    /// `[lo, hi]` reduced to `w` bits unsigned: exact if no or every member wraps once, else full.
    fn wrap_unsigned(lo: i128, hi: i128, w: u32) -> (u64, u64) {
        let m = ones(w);
        let size = i128::from(m) + 1;
        match (lo.div_euclid(size), hi.div_euclid(size)) {
            (a, b) if a == b => (lo.rem_euclid(size) as u64, hi.rem_euclid(size) as u64),
            _ => (0, m),
        }
    }

    fn wrap_signed(lo: i128, hi: i128, w: u32) -> (i64, i64) {
        let half = i128::from(sign_max(w)) + 1;
        let (a, b) = Range::wrap_unsigned(lo + half, hi + half, w);
        ((i128::from(a) - half) as i64, (i128::from(b) - half) as i64)
    }

    fn from_wide(u: (i128, i128), s: (i128, i128), w: u32) -> Range {
        let (umin, umax) = Range::wrap_unsigned(u.0, u.1, w);
        let (smin, smax) = Range::wrap_signed(s.0, s.1, w);
        Range { umin, umax, smin, smax }
    }

    fn wide(self) -> [i128; 4] {
        [self.umin.into(), self.umax.into(), self.smin.into(), self.smax.into()]
    }

    pub(crate) fn add(self, b: Range, w: u32) -> Range {
        let ([al, ah, sl, sh], [bl, bh, tl, th]) = (self.wide(), b.wide());
        Range::from_wide((al + bl, ah + bh), (sl + tl, sh + th), w)
    }

    pub(crate) fn sub(self, b: Range, w: u32) -> Range {
        let ([al, ah, sl, sh], [bl, bh, tl, th]) = (self.wide(), b.wide());
        Range::from_wide((al - bh, ah - bl), (sl - th, sh - tl), w)
    }

    pub(crate) fn mul(self, b: Range, w: u32) -> Range {
        let mut r = Range::full(w);
        if let Some(hi) = self.umax.checked_mul(b.umax).filter(|&hi| hi <= ones(w)) {
            (r.umin, r.umax) = (self.umin * b.umin, hi);
        }
        let [_, _, sl, sh] = self.wide();
        let [_, _, tl, th] = b.wide();
        let (lo, hi) = span([sl * tl, sl * th, sh * tl, sh * th]);
        if lo >= sign_min(w).into() && hi <= sign_max(w).into() {
            (r.smin, r.smax) = (lo as i64, hi as i64);
        }
        r
    }

    /// Unsigned division; by zero gives 0.
    pub(crate) fn div(self, b: Range, w: u32) -> Range {
        let lo = if b.umin == 0 { 0 } else { self.umin / b.umax };
        let hi = if b.umax == 0 { 0 } else { self.umax / b.umin.max(1) };
        Range::unsigned(lo, hi, w)
    }

    /// Unsigned remainder; by zero leaves the dividend.
    pub(crate) fn modulo(self, b: Range, w: u32) -> Range {
        if b.umax == 0 || (b.umin > 0 && self.umax < b.umin) {
            return self;
        }
        let hi = if b.umin == 0 { self.umax } else { self.umax.min(b.umax - 1) };
        Range::unsigned(0, hi, w)
    }

    /// Signed division, truncating; by zero gives 0; the most negative number by -1 wraps to itself.
    pub(crate) fn sdiv(self, b: Range, w: u32) -> Range {
        let [_, _, al, ah] = self.wide();
        let [_, _, bl, bh] = b.wide();
        let mut out: Option<(i128, i128)> = (bl <= 0 && bh >= 0).then_some((0, 0));
        // On divisors of one sign the quotient is monotone in each operand: its extremes are at the corners.
        for (lo, hi) in [(bl, bh.min(-1)), (bl.max(1), bh)] {
            if lo <= hi {
                let (l, h) = span([al / lo, al / hi, ah / lo, ah / hi]);
                out = Some(out.map_or((l, h), |(x, y)| (x.min(l), y.max(h))));
            }
        }
        match out {
            Some((lo, hi)) if hi <= sign_max(w).into() => Range::signed(lo as i64, hi as i64, w),
            _ => Range::full(w),
        }
    }

    /// Signed remainder with the sign of the dividend; by zero leaves the dividend.
    pub(crate) fn smod(self, b: Range, w: u32) -> Range {
        let [_, _, al, ah] = self.wide();
        let [_, _, bl, bh] = b.wide();
        if bl == 0 && bh == 0 {
            return self;
        }
        let may_be_zero = bl <= 0 && bh >= 0;
        let limit = if may_be_zero { i128::MAX } else { bl.abs().max(bh.abs()) - 1 };
        let lo = if al >= 0 { 0 } else { al.max(-limit) };
        let hi = if ah <= 0 { 0 } else { ah.min(limit) };
        Range::signed(lo as i64, hi as i64, w)
    }

    /// Left shift by `[lo, hi]`, both below `w`.
    pub(crate) fn lsh(self, lo: u32, hi: u32, w: u32) -> Range {
        let mut r = Range::full(w);
        if u128::from(self.umax) << hi <= u128::from(ones(w)) {
            (r.umin, r.umax) = (self.umin << lo, self.umax << hi);
        }
        let (sl, sh) = (i128::from(self.smin), i128::from(self.smax));
        let (l, h) = span([sl << lo, sl << hi, sh << lo, sh << hi]);
        if l >= sign_min(w).into() && h <= sign_max(w).into() {
            (r.smin, r.smax) = (l as i64, h as i64);
        }
        r
    }

    pub(crate) fn rsh(self, lo: u32, hi: u32, w: u32) -> Range {
        Range::unsigned(self.umin >> hi, self.umax >> lo, w)
    }

    pub(crate) fn arsh(self, lo: u32, hi: u32, w: u32) -> Range {
        let (l, h) = span([self.smin >> lo, self.smin >> hi, self.smax >> lo, self.smax >> hi]);
        Range::signed(l, h, w)
    }
}

fn span<T: Ord + Copy>(xs: [T; 4]) -> (T, T) {
    let (a, b) = (xs[0].min(xs[1]), xs[0].max(xs[1]));
    let (c, d) = (xs[2].min(xs[3]), xs[2].max(xs[3]));
    (a.min(c), b.max(d))
}
