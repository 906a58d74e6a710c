//! [`Histogram`]: latencies in nanoseconds in fixed memory, so that recording one never allocates.

use crate::metrics::Scale;

/// Exact below 128, then 64 buckets per power of two (an error of at most 1.6 %) up to 2^40 ns (18 minutes).
type Nanos = Scale<6, 33>;

/// A histogram of nanoseconds.
#[derive(Clone, Debug)]
pub(super) struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    max: u64,
}

impl Histogram {
    pub(super) fn new() -> Histogram {
        Histogram { buckets: vec![0; Nanos::BUCKETS], count: 0, max: 0 }
    }

    /// Adds one value.
    pub(super) fn record(&mut self, ns: u64) {
        if let Some(bucket) = self.buckets.get_mut(Nanos::index(ns)) {
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
                return Nanos::upper(i).min(self.max);
            }
        }
        self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
