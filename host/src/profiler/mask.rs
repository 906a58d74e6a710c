//! [`Needs`]: which events the policies in force need; [`Words`]: NCCL's event masks, in which bits are set for them.
//!
//! NCCL has one mask for the whole process and reads it now and then; a plugin may keep its pointer. Bits of others (a downstream
//! profiler, an environment variable of NCCL's) are never cleared: [`Words`] remembers which bits it added itself.

use super::event::Kind;
use std::sync::atomic::{AtomicI32, Ordering};

/// Which events policies need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Operations that hook `profiler` measures: [`Kind::Coll`] and [`Kind::P2p`] bits.
    pub ops: u32,
    /// Events that hook `profiler/event` sees.
    pub events: u32,
}

/// What the event path looks at.
pub(crate) type Wanted = Needs;

/// What hook `profiler` measures unless its manifest says otherwise.
pub const DEFAULT_OPS: u32 = Kind::Coll.bit();
/// What hook `profiler/event` sees unless its manifest says otherwise.
pub const DEFAULT_EVENTS: u32 = Kind::Coll.bit() | Kind::P2p.bit();

impl Needs {
    /// The bits to ask NCCL for. Never those of kernel phases: their stamps cost small messages 4 to 13 % in NCCL 2.31 (nccl #2355).
    pub fn mask(self) -> u32 {
        let kernels = if self.ops != 0 { Kind::KernelCh.bit() } else { 0 };
        (self.ops | kernels | self.events) & !Kind::KernelPhase.bit()
    }

    /// Both together.
    pub fn and(self, other: Needs) -> Needs {
        Needs { ops: self.ops | other.ops, events: self.events | other.events }
    }

    /// Does any policy need events of that kind, for a sample or as they come?
    #[inline]
    pub(crate) fn has(self, kind: Kind) -> bool {
        let kernels = if self.ops != 0 { Kind::KernelCh.bit() } else { 0 };
        (self.ops | self.events | kernels) & kind.bit() != 0
    }

    /// In one word, for an atomic.
    pub(crate) fn to_word(self) -> u64 {
        u64::from(self.ops) | u64::from(self.events) << 32
    }

    /// Out of that word.
    #[inline]
    pub(crate) fn of_word(word: u64) -> Needs {
        Needs { ops: word as u32, events: (word >> 32) as u32 }
    }
}

/// NCCL's masks, one for each NCCL in the process (normally one), and the bits that we added to each.
#[derive(Debug, Default)]
pub(crate) struct Words(Vec<(&'static AtomicI32, u32)>);

impl Words {
    pub(crate) const fn new() -> Words {
        Words(Vec::new())
    }

    /// Makes each mask of `live` hold `want` besides what others put there, and takes our bits out of masks that are no longer in use.
    pub(crate) fn publish(&mut self, live: &[&'static AtomicI32], want: u32) {
        for word in live {
            if !self.0.iter().any(|(known, _)| std::ptr::eq(*known, *word)) {
                self.0.push((word, 0));
            }
        }
        self.0.retain_mut(|(word, ours)| {
            let used = live.iter().any(|l| std::ptr::eq(*l, *word));
            *ours = exchange(word, *ours, if used { want } else { 0 });
            used
        });
    }
}

/// Replaces the bits `ours` by `want`; the bits that are ours now.
fn exchange(word: &AtomicI32, ours: u32, want: u32) -> u32 {
    let mut added = 0;
    let update = |now: i32| {
        let others = now as u32 & !ours;
        added = want & !others;
        let next = (others | want) as i32;
        (next != now).then_some(next)
    };
    // An error only says that the mask is right already.
    let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, update);
    added
}

/// Windows in which events are asked for, to bound their price: `on` out of every `period`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// Milliseconds with events.
    pub on_ms: u64,
    /// Milliseconds from one window to the next.
    pub period_ms: u64,
}

/// Environment variable with `ON_MS/PERIOD_MS`, such as `100/10000`.
pub const SAMPLE_VAR: &str = "RINGFENCE_PROFILER_SAMPLE";

impl Sampling {
    /// Reads `ON_MS/PERIOD_MS`: 1 <= on < period <= one day.
    ///
    /// # Errors
    /// What is wrong, in one line.
    pub fn parse(text: &str) -> Result<Sampling, String> {
        let wrong =
            || format!("{SAMPLE_VAR}={text}: must be ON_MS/PERIOD_MS with 1 <= ON < PERIOD <= 86400000");
        let (on, period) = text.split_once('/').ok_or_else(wrong)?;
        let (on_ms, period_ms) =
            (on.trim().parse().map_err(|_| wrong())?, period.trim().parse().map_err(|_| wrong())?);
        if on_ms == 0 || on_ms >= period_ms || period_ms > 86_400_000 {
            return Err(wrong());
        }
        Ok(Sampling { on_ms, period_ms })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(bits: i32) -> &'static AtomicI32 {
        Box::leak(Box::new(AtomicI32::new(bits)))
    }

    #[test]
    fn others_bits_are_never_cleared() {
        let a = word(0x22);
        let mut words = Words::default();
        words.publish(&[a], 0x42);
        assert_eq!(a.load(Ordering::Relaxed), 0x62);
        words.publish(&[a], 0);
        assert_eq!(a.load(Ordering::Relaxed), 0x22, "0x2 was there before");
        words.publish(&[a, a], 0x40);
        a.fetch_or(0x100, Ordering::Relaxed);
        words.publish(&[a], 0x10);
        assert_eq!(a.load(Ordering::Relaxed), 0x132);
        words.publish(&[], 0x10);
        assert_eq!(a.load(Ordering::Relaxed), 0x122, "the last communicator took our bits with it");
        assert!(words.0.is_empty());
    }

    #[test]
    fn each_nccl_has_its_own_mask() {
        let (a, b) = (word(0), word(1));
        let mut words = Words::default();
        words.publish(&[a, b], 3);
        assert_eq!((a.load(Ordering::Relaxed), b.load(Ordering::Relaxed)), (3, 3));
        words.publish(&[b], 0);
        assert_eq!((a.load(Ordering::Relaxed), b.load(Ordering::Relaxed)), (0, 1));
    }

    #[test]
    fn kernels_come_with_operations_and_phases_never() {
        assert_eq!(Needs::default().mask(), 0);
        assert_eq!(Needs { ops: 2, events: 0 }.mask(), 0x42);
        assert_eq!(Needs { ops: 0, events: 0x8010 }.mask(), 0x10);
        let needs = Needs { ops: 6, events: 0xff00 };
        assert_eq!(Needs::of_word(needs.to_word()), needs);
        assert!(needs.has(Kind::KernelCh) && needs.has(Kind::P2p) && !needs.has(Kind::ProxyOp));
    }

    #[test]
    fn sampling_is_parsed_strictly() {
        assert_eq!(Sampling::parse("100/10000"), Ok(Sampling { on_ms: 100, period_ms: 10_000 }));
        for bad in ["", "1", "0/10", "10/10", "11/10", "-1/10", "1/2/3", "a/b", "1/86400001"] {
            assert!(Sampling::parse(bad).unwrap_err().contains(bad), "{bad}");
        }
    }
}
