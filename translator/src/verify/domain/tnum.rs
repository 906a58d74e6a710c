//! [`Tnum`]: a number of which some bits are known ("tristate number", after Linux's `tnum.h`; see
//! Vishwanathan et al., "Sound, precise, and fast abstract interpretation with tristate numbers", CGO 2022).
//!
//! Meaning: the set of all `x` with `x & !mask == value`. Invariant: `value & mask == 0`.
//! All operations take the width `w` in bits (1 to 64) and keep the bits above it zero, so that the tests
//! can enumerate every element at 4 bits with the very code that runs at 64.

/// Bits below `w`.
pub(crate) const fn ones(w: u32) -> u64 {
    if w >= 64 { u64::MAX } else { (1 << w) - 1 }
}

/// Known bits in `value`, unknown bits in `mask`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tnum {
    pub(crate) value: u64,
    pub(crate) mask: u64,
}

impl Tnum {
    pub(crate) const fn constant(value: u64) -> Tnum {
        Tnum { value, mask: 0 }
    }

    pub(crate) const fn unknown(w: u32) -> Tnum {
        Tnum { value: 0, mask: ones(w) }
    }

    /// The smallest element that holds all of `[min, max]`: the common prefix is known.
    pub(crate) const fn range(min: u64, max: u64) -> Tnum {
        let differing = 64 - (min ^ max).leading_zeros();
        let mask = ones(differing);
        Tnum { value: min & !mask, mask }
    }

    pub(crate) const fn is_const(self) -> bool {
        self.mask == 0
    }

    /// Bits that may be one.
    pub(crate) const fn possible(self) -> u64 {
        self.value | self.mask
    }

    pub(crate) const fn contains(self, x: u64) -> bool {
        x & !self.mask == self.value
    }

    /// The smallest number of the set that is not below `x`; `None` if all are.
    pub(crate) const fn at_least(self, x: u64) -> Option<u64> {
        let wrong = (x & !self.mask) ^ self.value;
        if wrong == 0 {
            return Some(x);
        }
        // Above the highest bit that must change, `x` may stay as it is.
        let bit = 63 - wrong.leading_zeros();
        let kept = if self.value >> bit & 1 != 0 {
            x >> bit | 1
        } else {
            // It must become 0: a free bit above it goes from 0 to 1, the lowest that can.
            let free = self.mask & !x & !ones(bit);
            if free == 0 {
                return None;
            }
            let up = free.trailing_zeros();
            let low = ones(up) & self.value;
            return Some((x >> up | 1) << up | low);
        };
        Some(kept << bit | ones(bit) & self.value)
    }

    /// The largest number of the set, one of `w` bits, that is not above `x`; `None` if all are.
    pub(crate) const fn at_most(self, x: u64, w: u32) -> Option<u64> {
        // The mirror image: of the complements, the smallest that is not below.
        let mirror = Tnum { value: !self.possible() & ones(w), mask: self.mask };
        match mirror.at_least(!x & ones(w)) {
            Some(y) => Some(!y & ones(w)),
            None => None,
        }
    }

    /// The set with that bit turned over in every number.
    pub(crate) const fn flip(self, bit: u64) -> Tnum {
        Tnum { value: (self.value ^ bit) & !self.mask, mask: self.mask }
    }

    /// Is every number of `self` in `other`?
    pub(crate) const fn is_subset(self, other: Tnum) -> bool {
        self.mask & !other.mask == 0 && self.value & !other.mask == other.value
    }

    /// Numbers in both; `None` when a bit is known to be 0 in one and 1 in the other.
    pub(crate) const fn intersect(self, other: Tnum) -> Option<Tnum> {
        if (self.value ^ other.value) & !self.mask & !other.mask != 0 {
            return None;
        }
        let mask = self.mask & other.mask;
        Some(Tnum { value: (self.value | other.value) & !mask, mask })
    }

    pub(crate) const fn join(self, other: Tnum) -> Tnum {
        let mask = self.mask | other.mask | (self.value ^ other.value);
        Tnum { value: self.value & !mask, mask }
    }

    pub(crate) const fn truncate(self, w: u32) -> Tnum {
        Tnum { value: self.value & ones(w), mask: self.mask & ones(w) }
    }

    /// Sign extension from `from` bits to `w` bits.
    pub(crate) const fn sign_extend(self, from: u32, w: u32) -> Tnum {
        let up = 64 - from;
        let value = ((self.value << up) as i64 >> up) as u64;
        let mask = ((self.mask << up) as i64 >> up) as u64;
        Tnum { value: value & !mask, mask }.truncate(w)
    }

    pub(crate) const fn add(self, b: Tnum, w: u32) -> Tnum {
        let sm = self.mask.wrapping_add(b.mask);
        let sv = self.value.wrapping_add(b.value);
        // A carry is unknown where the largest sum and the smallest differ.
        let mask = (sm.wrapping_add(sv) ^ sv) | self.mask | b.mask;
        Tnum { value: sv & !mask, mask }.truncate(w)
    }

    pub(crate) const fn sub(self, b: Tnum, w: u32) -> Tnum {
        let dv = self.value.wrapping_sub(b.value);
        let alpha = dv.wrapping_add(self.mask);
        let beta = dv.wrapping_sub(b.mask);
        let mask = (alpha ^ beta) | self.mask | b.mask;
        Tnum { value: dv & !mask, mask }.truncate(w)
    }

    pub(crate) const fn and(self, b: Tnum) -> Tnum {
        let value = self.value & b.value;
        Tnum { value, mask: self.possible() & b.possible() & !value }
    }

    pub(crate) const fn or(self, b: Tnum) -> Tnum {
        let value = self.value | b.value;
        Tnum { value, mask: (self.mask | b.mask) & !value }
    }

    pub(crate) const fn xor(self, b: Tnum) -> Tnum {
        let mask = self.mask | b.mask;
        Tnum { value: (self.value ^ b.value) & !mask, mask }
    }

    /// Long multiplication: each bit of `self` adds `b << i`, nothing, or either.
    pub(crate) fn mul(self, b: Tnum, w: u32) -> Tnum {
        let mut sum = Tnum::constant(self.value.wrapping_mul(b.value)).truncate(w);
        let (mut a, mut b) = (self, b);
        while a.possible() != 0 && b.possible() != 0 {
            if a.value & 1 != 0 {
                // The known part is in the product of the values already.
                sum = sum.add(Tnum { value: 0, mask: b.mask }.truncate(w), w);
            } else if a.mask & 1 != 0 {
                sum = sum.add(Tnum { value: 0, mask: b.possible() }.truncate(w), w);
            }
            a = Tnum { value: a.value >> 1, mask: a.mask >> 1 };
            b = Tnum { value: b.value << 1, mask: b.mask << 1 }.truncate(w);
        }
        sum
    }

    pub(crate) const fn lsh(self, k: u32, w: u32) -> Tnum {
        Tnum { value: self.value << k, mask: self.mask << k }.truncate(w)
    }

    pub(crate) const fn rsh(self, k: u32) -> Tnum {
        Tnum { value: self.value >> k, mask: self.mask >> k }
    }

    /// Arithmetic shift: an unknown sign makes all the bits that it fills unknown.
    pub(crate) const fn arsh(self, k: u32, w: u32) -> Tnum {
        let up = 64 - w;
        let value = ((self.value << up) as i64 >> up >> k) as u64;
        let mask = ((self.mask << up) as i64 >> up >> k) as u64;
        Tnum { value, mask }.truncate(w)
    }

    /// Reverses the low `bits / 8` bytes and drops the rest.
    pub(crate) const fn swap_bytes(self, bits: u32) -> Tnum {
        let up = 64 - bits;
        Tnum { value: self.value.swap_bytes() >> up, mask: self.mask.swap_bytes() >> up }
    }

    /// Are the low bits known to make a multiple of `n`, a power of two?
    pub(crate) const fn is_aligned(self, n: u64) -> bool {
        self.possible() & (n - 1) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// At 5 bits, all sets and all limits: the answer is the member nearest to the limit.
    #[test]
    fn the_nearest_member_is_found() {
        let w = 5;
        let sets = (0..=ones(w)).flat_map(|mask| (0..=ones(w)).map(move |value| Tnum { value, mask }));
        for t in sets.filter(|t| t.value & t.mask == 0) {
            let members: Vec<u64> = (0..=ones(w)).filter(|x| t.contains(*x)).collect();
            for x in 0..=ones(w) {
                assert_eq!(t.at_least(x), members.iter().copied().find(|m| *m >= x), "{t:?} {x}");
                assert_eq!(t.at_most(x, w), members.iter().copied().rfind(|m| *m <= x), "{t:?} {x}");
                let flipped = t.flip(16);
                assert!(members.iter().all(|m| flipped.contains(m ^ 16)), "{t:?}");
            }
        }
        let t = Tnum { value: 1 << 63, mask: 0xff0 };
        assert_eq!(t.at_least(1), Some(1 << 63));
        assert_eq!(t.at_most(u64::MAX, 64), Some(1 << 63 | 0xff0));
        assert_eq!(t.at_least(1 << 63 | 0xff1), None);
        assert_eq!(Tnum::unknown(64).at_least(u64::MAX), Some(u64::MAX));
    }
}
