//! [`StackMem`]: the 512 bytes of a frame, byte by byte; [`ByteSet`], a set of those bytes.

use super::domain::{Scalar, Tnum};
use super::env::RankLabel;
use super::value::{IdMap, Num, Value};
use crate::isa::{AluOp, Width};
use crate::limits::STACK_BYTES;
use std::rc::Rc;

/// A set of stack bytes; byte 0 is the lowest, at r10 - 512.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ByteSet([u64; 8]);

impl ByteSet {
    fn words(start: usize, len: usize) -> impl Iterator<Item = (usize, u64)> {
        let end = (start + len).min(STACK_BYTES as usize);
        let words = if start < end { start / 64..end.div_ceil(64) } else { 0..0 };
        words.map(move |w| {
            let (lo, hi) = (start.max(w * 64) - w * 64, end.min(w * 64 + 64) - w * 64);
            (w, (u64::MAX >> (64 - (hi - lo))) << lo)
        })
    }

    pub(crate) fn insert(&mut self, start: usize, len: usize) {
        Self::words(start, len).for_each(|(w, m)| self.0[w] |= m);
    }

    pub(crate) fn remove(&mut self, start: usize, len: usize) {
        Self::words(start, len).for_each(|(w, m)| self.0[w] &= !m);
    }

    pub(crate) fn contains(&self, start: usize, len: usize) -> bool {
        Self::words(start, len).all(|(w, m)| self.0[w] & m == m)
    }

    pub(crate) fn intersects(&self, start: usize, len: usize) -> bool {
        Self::words(start, len).any(|(w, m)| self.0[w] & m != 0)
    }

    pub(crate) fn is_subset(&self, other: &ByteSet) -> bool {
        self.0.iter().zip(other.0).all(|(a, b)| a & !b == 0)
    }

    /// Ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().enumerate().flat_map(|(w, bits)| {
            let later = |b: &u64| Some(b & (b - 1)).filter(|b| *b != 0);
            let from = Some(*bits).filter(|b| *b != 0);
            std::iter::successors(from, later).map(move |b| w * 64 + b.trailing_zeros() as usize)
        })
    }

    pub(crate) fn meet(&self, other: &ByteSet) -> ByteSet {
        ByteSet(std::array::from_fn(|i| self.0[i] & other.0[i]))
    }

    pub(crate) fn union(&self, other: &ByteSet) -> ByteSet {
        ByteSet(std::array::from_fn(|i| self.0[i] | other.0[i]))
    }

    /// From one bit per 4 bytes.
    pub(crate) fn from_granules(g: u128) -> ByteSet {
        let mut out = ByteSet::default();
        for i in 0..128 {
            if g >> i & 1 != 0 {
                out.0[i / 16] |= 0xf << (i % 16 * 4);
            }
        }
        out
    }
}

/// A value that was stored whole.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Spill {
    start: u16,
    size: u8,
    pub(crate) value: Rc<Value>,
}

impl Spill {
    pub(crate) fn new(start: u16, size: u8, value: Value) -> Spill {
        Spill { start, size, value: Rc::new(value) }
    }

    /// Its first byte, from the lowest of the frame.
    pub(crate) fn start(&self) -> u16 {
        self.start
    }

    /// Its bytes.
    pub(crate) fn size(&self) -> u8 {
        self.size
    }

    fn overlaps(&self, start: usize, len: usize) -> bool {
        usize::from(self.start) < start + len && start < usize::from(self.start) + usize::from(self.size)
    }

    fn holds(&self, start: usize, len: usize) -> bool {
        usize::from(self.start) <= start && start + len <= usize::from(self.start) + usize::from(self.size)
    }

    /// `size` bytes of it, `skip` bytes from its start: the whole, or a part of a number. A number that lies in its low
    /// bytes is the same number, linked as it is.
    fn part(&self, skip: usize, size: usize) -> Option<Value> {
        match *self.value {
            v if size == usize::from(self.size) => Some(v),
            Value::Num(n) => {
                let by = Scalar::constant(8 * skip as u64);
                let s = n.s.alu(AluOp::Rsh, by, Width::W64).zero_extend(8 * size as u32);
                Some(if s == n.s { Value::Num(n) } else { Value::num(s, n.label) })
            }
            _ => None,
        }
    }
}

/// A frame's stack. Spilled bytes are initialised and not in `zero`; spills are ordered and do not overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct StackMem {
    init: ByteSet,
    zero: ByteSet,
    /// Bytes whose content may differ between ranks.
    local: ByteSet,
    spills: Vec<Spill>,
}

/// Why bytes cannot be read as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StackFault {
    /// That byte (0 is the lowest) was never written.
    Uninit(usize),
    /// A part of a spilled pointer.
    Pointer,
}

impl StackMem {
    pub(crate) fn from_bytes(init: ByteSet, zero: ByteSet, local: ByteSet) -> StackMem {
        StackMem { init, zero: zero.meet(&init), local: local.meet(&init), spills: Vec::new() }
    }

    /// The sets of bytes, word by word.
    pub(crate) fn words(&self) -> impl Iterator<Item = u64> + '_ {
        self.init.0.iter().chain(&self.zero.0).chain(&self.local.0).copied()
    }

    pub(crate) fn initialised(&self) -> &ByteSet {
        &self.init
    }

    pub(crate) fn zeroes(&self) -> &ByteSet {
        &self.zero
    }

    pub(crate) fn locals(&self) -> &ByteSet {
        &self.local
    }

    pub(crate) fn is_zero(&self, at: usize) -> bool {
        self.byte(at) == Tnum::constant(0)
    }

    /// Adds a value that was stored whole, where there is none.
    pub(crate) fn put(&mut self, s: Spill) {
        let (start, size) = (usize::from(s.start), usize::from(s.size));
        self.init.insert(start, size);
        self.zero.remove(start, size);
        let at = self.spills.partition_point(|o| o.start < s.start);
        self.spills.insert(at, s);
    }

    /// Forgets that these bytes were written.
    pub(crate) fn unset(&mut self, start: usize, len: usize) {
        self.forget(start, len, RankLabel::Uniform);
        self.init.remove(start, len);
        self.local.remove(start, len);
    }

    pub(crate) fn spills(&self) -> &[Spill] {
        &self.spills
    }

    pub(crate) fn spills_mut(&mut self) -> &mut [Spill] {
        &mut self.spills
    }

    /// Reads `size` bytes at `start`: a spilled value whole, or the number that the bytes make.
    pub(crate) fn read(&self, start: usize, size: usize) -> Result<Value, StackFault> {
        let first = self.spills.partition_point(|s| usize::from(s.start) + usize::from(s.size) <= start);
        if let Some(s) = self.spills.get(first)
            && s.holds(start, size)
            && let Some(v) = s.part(start - usize::from(s.start), size)
        {
            return Ok(v);
        }
        self.check_numbers(start, size)?;
        let bytes = (0..size).rev().fold(Tnum::constant(0), |t, i| {
            let b = self.byte(start + i);
            Tnum { value: t.value << 8 | b.value, mask: t.mask << 8 | b.mask }
        });
        Ok(Value::num(Scalar::from_tnum(bytes), self.label(start, size)))
    }

    /// What a byte holds, as a letter: `?` nothing, `r` a part of a spilled value, `0` zero, `m` a number.
    pub(crate) fn kind_of_byte(&self, at: usize) -> char {
        match () {
            () if !self.init.contains(at, 1) => '?',
            () if self.spills.iter().any(|s| s.overlaps(at, 1)) => 'r',
            () if self.zero.contains(at, 1) => '0',
            () => 'm',
        }
    }

    /// All initialised, and no part of a pointer?
    pub(crate) fn check_numbers(&self, start: usize, len: usize) -> Result<(), StackFault> {
        if !self.init.contains(start, len) {
            let at = (start..start + len).find(|&i| !self.init.contains(i, 1)).unwrap_or(start);
            return Err(StackFault::Uninit(at));
        }
        match self.spills.iter().any(|s| s.overlaps(start, len) && s.value.is_pointer()) {
            true => Err(StackFault::Pointer),
            false => Ok(()),
        }
    }

    pub(crate) fn label(&self, start: usize, len: usize) -> RankLabel {
        if self.local.intersects(start, len) { RankLabel::RankLocal } else { RankLabel::Uniform }
    }

    fn byte(&self, at: usize) -> Tnum {
        if self.zero.contains(at, 1) {
            return Tnum::constant(0);
        }
        match self.spills.iter().find(|s| s.overlaps(at, 1)).map(|s| (s, &*s.value)) {
            Some((s, Value::Num(n))) => n.s.tnum().rsh(8 * (at - usize::from(s.start)) as u32).truncate(8),
            _ => Tnum::unknown(8),
        }
    }

    /// Replaces the spilled number at exactly this place by one that differs in its link alone.
    pub(crate) fn relink(&mut self, start: usize, size: usize, n: Num) -> Option<()> {
        let at = self.spills.partition_point(|s| usize::from(s.start) < start);
        let s = self.spills.get_mut(at)?;
        let same = (usize::from(s.start), usize::from(s.size)) == (start, size);
        if !same || !matches!(&*s.value, Value::Num(old) if old.s == n.s) {
            return None;
        }
        s.value = Rc::new(Value::Num(n));
        Some(())
    }

    /// Stores `value`, cut to `size` bytes, over what was there.
    pub(crate) fn write(&mut self, start: usize, size: usize, value: &Value) {
        self.forget(start, size, value.label());
        self.init.insert(start, size);
        if value.label() == RankLabel::Uniform {
            self.local.remove(start, size);
        }
        let stored = match value {
            Value::Num(n) => {
                let s = n.s.zero_extend(8 * size as u32);
                if s.as_const() == Some(0) {
                    self.zero.insert(start, size);
                    return;
                }
                // Small stores are byte buffers more often than spills; Linux, too, looks only at the first bytes of a slot.
                let whole = start.is_multiple_of(if size >= 4 { size } else { 8 });
                if s == Scalar::bits(8 * size as u32) && !(whole && (size >= 4 || n.id != 0)) {
                    return;
                }
                Value::Num(if s == n.s { *n } else { Num::new(s, n.label) })
            }
            other => *other,
        };
        let at = self.spills.partition_point(|s| usize::from(s.start) < start);
        self.spills.insert(at, Spill { start: start as u16, size: size as u8, value: Rc::new(stored) });
    }

    /// A store of `size` bytes somewhere in `[start, start + len)`: what was known of these bytes may be gone,
    /// and none becomes initialised.
    pub(crate) fn write_somewhere(&mut self, start: usize, len: usize, value: &Value) {
        let zeroes = matches!(value, Value::Num(n) if n.s.as_const() == Some(0));
        let zero = self.zero;
        self.forget(start, len, value.label());
        if zeroes {
            self.zero = zero;
        }
    }

    /// Keeps only that the bytes are initialised, where they are. What is left of a pointer that is hit in part may be read no
    /// more: it would leak as a number.
    pub(crate) fn forget(&mut self, start: usize, len: usize, label: RankLabel) {
        for s in self.spills.iter().filter(|s| s.value.is_pointer() && s.overlaps(start, len)) {
            self.init.remove(s.start.into(), s.size.into());
        }
        self.spills.retain(|s| !s.overlaps(start, len));
        self.zero.remove(start, len);
        if label == RankLabel::RankLocal {
            self.local.insert(start, len);
        }
    }

    /// A helper wrote numbers to these bytes.
    pub(crate) fn fill(&mut self, start: usize, len: usize, label: RankLabel) {
        self.forget(start, len, label);
        self.init.insert(start, len);
        if label == RankLabel::Uniform {
            self.local.remove(start, len);
        }
    }

    /// Spilled values that `gone` selects mean nothing any more: their bytes count as never written.
    pub(crate) fn lose(&mut self, gone: impl Fn(&Value) -> bool) {
        for s in self.spills.iter().filter(|s| gone(&s.value)) {
            self.init.remove(s.start.into(), s.size.into());
            self.local.remove(s.start.into(), s.size.into());
        }
        self.spills.retain(|s| !gone(&s.value));
    }

    /// Drops dead bytes, and the numbers that nobody will look at (as one bit per 4 bytes). None if nothing changes.
    pub(crate) fn cleaned(&self, live: u128, numbers: u128) -> Option<StackMem> {
        if self.init == ByteSet::default() {
            return None;
        }
        let (live, numbers) = (ByteSet::from_granules(live), ByteSet::from_granules(numbers));
        let wanted = |s: &Spill| {
            let (start, size) = (usize::from(s.start), usize::from(s.size));
            live.intersects(start, size) && (s.value.is_pointer() || numbers.intersects(start, size))
        };
        if self.init.is_subset(&live) && self.zero.is_subset(&numbers) && self.spills.iter().all(wanted) {
            return None;
        }
        let mut keep = live;
        let mut out = self.clone();
        out.spills.retain(wanted);
        for s in &out.spills {
            keep.insert(usize::from(s.start), usize::from(s.size));
        }
        out.init = out.init.meet(&keep);
        out.local = out.local.meet(&out.init);
        out.zero = out.zero.meet(&out.init).meet(&numbers);
        Some(out)
    }

    /// Is everything that `self` may hold in `other`? Bytes that are uninitialised there hold anything.
    pub(crate) fn is_subset(&self, other: &StackMem, ids: &mut IdMap) -> bool {
        if std::ptr::eq(self, other) && self.spills.iter().all(|s| self.same_ids(s, ids)) {
            return true;
        }
        other.init.is_subset(&self.init)
            && self.local.meet(&other.init).is_subset(&other.local)
            && other
                .spills
                .iter()
                .all(|s| self.read(s.start.into(), s.size.into()).is_ok_and(|v| v.is_subset(&s.value, ids)))
            && self.numbers_fit(other)
    }

    /// Do concrete bytes, the lowest first, lie in this? `is` judges spilled values.
    #[cfg(feature = "interp")]
    pub(crate) fn admits(&self, bytes: &[u8], mut is: impl FnMut(&Value, u64) -> bool) -> bool {
        self.zero.iter().all(|i| bytes.get(i) == Some(&0))
            && self.spills.iter().all(|s| {
                let at = usize::from(s.start);
                let stored = bytes[at..at + usize::from(s.size)].iter().rev();
                is(&s.value, stored.fold(0, |x, b| x << 8 | u64::from(*b)))
            })
    }

    fn same_ids(&self, s: &Spill, ids: &mut IdMap) -> bool {
        s.value.is_subset(&s.value, ids)
    }

    /// Bytes that are plain numbers there are numbers here, zero where zero there.
    fn numbers_fit(&self, other: &StackMem) -> bool {
        let mut plain = other.init;
        for s in &other.spills {
            plain.remove(s.start.into(), s.size.into());
        }
        let pointers = self.spills.iter().filter(|s| s.value.is_pointer());
        let no_pointer = pointers.into_iter().all(|s| !plain.intersects(s.start.into(), s.size.into()));
        no_pointer
            && (other.zero.is_subset(&self.zero)
                || (0..STACK_BYTES as usize)
                    .filter(|&i| other.zero.contains(i, 1))
                    .all(|i| self.byte(i) == Tnum::constant(0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_sets_cross_words() {
        let mut b = ByteSet::default();
        b.insert(60, 8);
        assert!(b.contains(60, 8) && !b.contains(59, 2) && !b.contains(67, 2) && b.intersects(67, 100));
        b.remove(62, 2);
        assert!(!b.contains(60, 8) && b.contains(64, 4));
        b.insert(0, 512);
        assert!(b.contains(0, 512) && b == ByteSet::from_granules(u128::MAX));
        assert!(ByteSet::from_granules(1 << 127).contains(508, 4));
    }

    #[test]
    fn bytes_are_read_as_they_were_written() {
        let mut m = StackMem::default();
        assert_eq!(m.read(0, 8), Err(StackFault::Uninit(0)));
        m.write(0, 8, &Value::constant(0x1122_3344_5566_7788));
        assert_eq!(m.read(0, 8), Ok(Value::constant(0x1122_3344_5566_7788)));
        assert_eq!(m.read(2, 2), Ok(Value::constant(0x5566)));
        assert_eq!(m.read(6, 4), Err(StackFault::Uninit(8)));
        m.write(8, 4, &Value::constant(0));
        assert_eq!(m.read(6, 4), Ok(Value::constant(0x1122)));
        m.write(3, 1, &Value::constant(1));
        assert_eq!(m.read(3, 1), Ok(Value::constant(1)));
        let Ok(Value::Num(n)) = m.read(0, 8) else { panic!("a number") };
        assert_eq!(n.s.tnum(), Tnum { value: 1 << 24, mask: !(0xff << 24) });
    }

    #[test]
    fn a_pointer_is_read_whole_or_not_at_all() {
        let mut m = StackMem::default();
        let p = Value::pointer(super::super::value::Home::Ctx, 0);
        m.write(8, 8, &p);
        assert_eq!(m.read(8, 8), Ok(p));
        assert_eq!(m.read(8, 4), Err(StackFault::Pointer));
        m.write(12, 1, &Value::constant(0));
        assert_eq!(m.read(8, 4), Err(StackFault::Uninit(8)));
        assert_eq!(m.read(12, 1), Ok(Value::constant(0)));
        m.write(8, 8, &p);
        m.write_somewhere(0, 9, &Value::constant(0));
        assert_eq!(m.read(8, 1), Err(StackFault::Uninit(8)));
    }

    #[test]
    fn a_store_somewhere_initialises_nothing() {
        let mut m = StackMem::default();
        m.write(0, 8, &Value::constant(5));
        m.write_somewhere(0, 16, &Value::constant(7));
        assert!(m.read(0, 8).is_ok_and(|v| v != Value::constant(5)));
        assert_eq!(m.read(8, 8), Err(StackFault::Uninit(8)));
    }
}
