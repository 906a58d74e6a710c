//! [`Scale`]: where a value falls on a log-linear scale; [`Live`]: a histogram that one thread fills and others read;
//! [`Histogram`]: what they read.
//!
//! The scale is that of HdrHistogram: small values are kept exactly, and above them each power of two is cut into equal parts, so
//! the relative error is bounded and the memory is fixed, whatever is recorded.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A scale with `2^BITS` buckets for each of `OCTAVES` powers of two: an error of at most `1 / 2^BITS`. Values below `2^(BITS + 1)`
/// have a bucket each; what is above the last power of two falls into the last bucket.
pub(crate) struct Scale<const BITS: u32, const OCTAVES: u32>;

impl<const BITS: u32, const OCTAVES: u32> Scale<BITS, OCTAVES> {
    const EXACT: u64 = 2 << BITS;
    const PER_OCTAVE: u64 = 1 << BITS;
    /// Number of buckets.
    pub(crate) const BUCKETS: usize = (Self::EXACT + Self::PER_OCTAVE * OCTAVES as u64) as usize;

    /// The bucket of a value, below [`Scale::BUCKETS`].
    #[inline]
    pub(crate) fn index(value: u64) -> usize {
        if value < Self::EXACT {
            return value as usize;
        }
        let octave = value.ilog2() - (BITS + 1);
        if octave >= OCTAVES {
            return Self::BUCKETS - 1;
        }
        let within = (value >> (octave + 1)) - Self::PER_OCTAVE;
        (Self::EXACT + u64::from(octave) * Self::PER_OCTAVE + within) as usize
    }

    /// The largest value of a bucket.
    pub(crate) fn upper(index: usize) -> u64 {
        let index = index as u64;
        if index < Self::EXACT {
            return index;
        }
        let (octave, within) =
            ((index - Self::EXACT) / Self::PER_OCTAVE, (index - Self::EXACT) % Self::PER_OCTAVE);
        ((within + Self::PER_OCTAVE + 1) << (octave + 1)) - 1
    }
}

/// The scale of policies' latencies in nanoseconds: exact below 32, then 16 buckets for each power of two (an error of 6 %) up to
/// 2^36 (68 seconds).
pub(crate) type Nanos = Scale<4, 31>;

/// A histogram of nanoseconds, in 4 KiB. One writer, any number of readers.
#[derive(Debug)]
pub(crate) struct Live {
    buckets: [AtomicU64; Nanos::BUCKETS],
    sum: AtomicU64,
    max: AtomicU64,
}

impl Default for Live {
    fn default() -> Live {
        Live {
            buckets: [const { AtomicU64::new(0) }; Nanos::BUCKETS],
            sum: AtomicU64::new(0),
            max: AtomicU64::new(0),
        }
    }
}

impl Live {
    /// Adds a value. The writer alone may call it: plain loads and stores.
    pub(crate) fn record(&self, ns: u64) {
        if let Some(bucket) = self.buckets.get(Nanos::index(ns)) {
            bucket.store(bucket.load(Relaxed).wrapping_add(1), Relaxed);
        }
        self.sum.store(self.sum.load(Relaxed).wrapping_add(ns), Relaxed);
        if ns > self.max.load(Relaxed) {
            self.max.store(ns, Relaxed);
        }
    }

    /// Adds what was recorded to `to`.
    pub(crate) fn add_to(&self, to: &mut Histogram) {
        to.make_room();
        for (to, from) in to.buckets.iter_mut().zip(&self.buckets) {
            *to = to.wrapping_add(from.load(Relaxed));
        }
        to.sum = to.sum.wrapping_add(self.sum.load(Relaxed));
        to.max = to.max.max(self.max.load(Relaxed));
    }
}

/// A copy of a histogram of nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// By [`Nanos::index`]; empty before the first value.
    buckets: Vec<u64>,
    sum: u64,
    max: u64,
}

impl Histogram {
    fn make_room(&mut self) {
        self.buckets.resize(Nanos::BUCKETS, 0);
    }

    /// From the parts that [`Histogram::sparse`] gave. Buckets that do not exist are left out.
    pub fn from_sparse(parts: &[(u32, u64)], sum: u64, max: u64) -> Histogram {
        let mut histogram = Histogram { buckets: Vec::new(), sum, max };
        histogram.make_room();
        for (index, count) in parts {
            if let Some(bucket) = histogram.buckets.get_mut(*index as usize) {
                *bucket = bucket.saturating_add(*count);
            }
        }
        histogram
    }

    /// The buckets that are not empty, by number.
    pub fn sparse(&self) -> Vec<(u32, u64)> {
        let buckets = (0..).zip(&self.buckets);
        buckets.filter(|(_, count)| **count > 0).map(|(index, count)| (index, *count)).collect()
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Sum of all values in nanoseconds.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// The largest value, exact; 0 if there is none.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The value, to the width of a bucket, at or below which a share `p` (0 to 1) of all values lies; 0 if there is none.
    pub fn percentile(&self, p: f64) -> u64 {
        let rank = ((self.count() as f64 * p).ceil() as u64).max(1);
        let mut seen = 0u64;
        for (index, count) in self.buckets.iter().enumerate() {
            seen = seen.saturating_add(*count);
            if seen >= rank {
                return Nanos::upper(index).min(self.max);
            }
        }
        self.max
    }

    /// How many values are at most `ns`. Exact where `ns` is the upper end of a bucket, such as a power of two less one.
    pub fn at_most(&self, ns: u64) -> u64 {
        let end = Nanos::index(ns).saturating_add(1).min(self.buckets.len());
        self.buckets.iter().take(end).fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Adds all values of `other`.
    pub fn add(&mut self, other: &Histogram) {
        if other.buckets.is_empty() {
            return;
        }
        self.make_room();
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine = mine.saturating_add(*theirs);
        }
        self.sum = self.sum.wrapping_add(other.sum);
        self.max = self.max.max(other.max);
    }

    /// What came since `earlier`, a copy of the same histogram. The maximum stays that of all.
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        let before = earlier.buckets.iter().copied().chain(std::iter::repeat(0));
        let buckets = self.buckets.iter().zip(before).map(|(now, then)| now.saturating_sub(then)).collect();
        Histogram { buckets, sum: self.sum.saturating_sub(earlier.sum), max: self.max }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<const BITS: u32, const OCTAVES: u32>() {
        let mut last = 0;
        let top = 1u64 << (OCTAVES + BITS);
        for ns in (0..1u64 << 16).chain([1 << 20, (1 << 30) + 7, top, (top << 1) - 1]) {
            let i = Scale::<BITS, OCTAVES>::index(ns);
            let upper = Scale::<BITS, OCTAVES>::upper(i);
            assert!(i >= last && (ns > 1 << 16 || i <= last + 1), "{ns}");
            assert!(upper >= ns && upper - ns <= ns >> BITS, "{ns}: {upper}");
            last = i;
        }
        assert_eq!(Scale::<BITS, OCTAVES>::index(u64::MAX), Scale::<BITS, OCTAVES>::BUCKETS - 1);
    }

    #[test]
    fn buckets_are_contiguous_and_tight() {
        check::<4, 31>();
        check::<6, 33>();
    }

    #[test]
    fn what_is_recorded_is_read() {
        let live = Live::default();
        (1..=100).for_each(|ns| live.record(ns));
        live.record(5000);
        let mut h = Histogram::default();
        live.add_to(&mut h);
        assert_eq!((h.count(), h.sum(), h.max()), (101, 5050 + 5000, 5000));
        assert_eq!((h.percentile(0.0), h.percentile(0.25), h.percentile(1.0)), (1, 26, 5000));
        assert!((51..=53).contains(&h.percentile(0.5)), "{}", h.percentile(0.5));
        assert_eq!((h.at_most(0), h.at_most(31), h.at_most(127), h.at_most(u64::MAX)), (0, 31, 100, 101));
        assert_eq!(Histogram::default().percentile(0.5), 0);
    }

    #[test]
    fn sparse_parts_make_the_same_histogram() {
        let live = Live::default();
        [0, 41, 41, 1 << 40].into_iter().for_each(|ns| live.record(ns));
        let mut h = Histogram::default();
        live.add_to(&mut h);
        assert_eq!(Histogram::from_sparse(&h.sparse(), h.sum(), h.max()), h);
        assert_eq!(h.sparse().len(), 3);
        let hostile = Histogram::from_sparse(&[(u32::MAX, 1), (3, u64::MAX), (3, 1)], 0, 0);
        assert_eq!(hostile.count(), u64::MAX);
    }

    #[test]
    fn intervals_are_differences() {
        let live = Live::default();
        live.record(10);
        let mut before = Histogram::default();
        live.add_to(&mut before);
        live.record(1000);
        let mut now = Histogram::default();
        live.add_to(&mut now);
        let interval = now.since(&before);
        assert_eq!((interval.count(), interval.sum()), (1, 1000));
        assert_eq!(now.since(&Histogram::default()), now);
        let mut sum = before.clone();
        sum.add(&interval);
        assert_eq!(sum, now);
    }
}
