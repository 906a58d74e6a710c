//! [`Histogram`]: latencies in nanoseconds in fixed memory, so that recording one never allocates.

/// Values below this are kept exactly; above, 64 buckets per power of two (an error of at most 1.6 %).
const EXACT: u64 = 128;
/// Buckets per power of two above [`EXACT`].
const PER_OCTAVE: u64 = 64;
/// Powers of two from 2^7 up to 2^40 ns (18 minutes); longer calls land in the last bucket.
const OCTAVES: u64 = 33;
const BUCKETS: usize = (EXACT + PER_OCTAVE * OCTAVES) as usize;

/// A histogram of nanoseconds.
#[derive(Clone, Debug)]
pub(super) struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    max: u64,
}

impl Histogram {
    pub(super) fn new() -> Histogram {
        Histogram { buckets: vec![0; BUCKETS], count: 0, max: 0 }
    }

    /// Adds one value.
    pub(super) fn record(&mut self, ns: u64) {
        if let Some(bucket) = self.buckets.get_mut(index(ns)) {
            *bucket += 1;
        }
        self.count += 1;
        self.max = self.max.max(ns);
    }

    /// Adds all values of `other`.
    pub(super) fn merge(&mut self, other: &Histogram) {
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
        self.count += other.count;
        self.max = self.max.max(other.max);
    }

    /// Number of values.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Largest value, exact; 0 if there is none.
    pub(super) fn max(&self) -> u64 {
        self.max
    }

    /// The value below or at which a share `p` (0 to 1) of all values lies; 0 if there is none.
    pub(super) fn percentile(&self, p: f64) -> u64 {
        let rank = ((self.count as f64 * p).ceil() as u64).max(1);
        let mut seen = 0;
        for (i, n) in self.buckets.iter().enumerate() {
            seen += n;
            if seen >= rank {
                return upper(i).min(self.max);
            }
        }
        self.max
    }
}

fn index(ns: u64) -> usize {
    if ns < EXACT {
        return ns as usize;
    }
    let octave = u64::from(ns.ilog2()) - 7;
    if octave >= OCTAVES {
        return BUCKETS - 1;
    }
    let within = (ns >> (octave + 1)) - PER_OCTAVE;
    (EXACT + octave * PER_OCTAVE + within) as usize
}

/// Largest value of a bucket.
fn upper(i: usize) -> u64 {
    let i = i as u64;
    if i < EXACT {
        return i;
    }
    let (octave, within) = ((i - EXACT) / PER_OCTAVE, (i - EXACT) % PER_OCTAVE);
    ((within + PER_OCTAVE + 1) << (octave + 1)) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_contiguous_and_tight() {
        let mut last = 0;
        for ns in (0..1u64 << 16).chain([1 << 20, (1 << 30) + 7, 1 << 39]) {
            let i = index(ns);
            assert!(i >= last && (ns > 1 << 16 || i <= last + 1), "{ns}");
            assert!(upper(i) >= ns && upper(i) - ns <= ns / 64, "{ns}: {}", upper(i));
            last = i;
        }
        assert_eq!(index(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_of_known_values() {
        let mut h = Histogram::new();
        for ns in 1..=100 {
            h.record(ns);
        }
        let mut other = Histogram::new();
        other.record(5000);
        h.merge(&other);
        assert_eq!((h.count(), h.max(), h.percentile(0.5), h.percentile(0.99)), (101, 5000, 51, 100));
        assert_eq!(h.percentile(1.0), 5000);
        assert_eq!(Histogram::new().percentile(0.5), 0);
    }
}
