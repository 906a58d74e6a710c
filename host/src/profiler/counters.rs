//! [`ProfilerCounters`]: how many events came, and every oddity of them, by name.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Declares the counters once: the enum that code counts with, the public struct, and the names.
macro_rules! counters {
    ($($(#[$doc:meta])* $variant:ident $field:ident,)*) => {
        /// What is counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub(crate) enum Count { $($variant,)* }

        /// Counts since the library was loaded, over all communicators of the process.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct ProfilerCounters {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl ProfilerCounters {
            /// Name and value of each counter, in the order of the struct.
            pub fn named(&self) -> [(&'static str, u64); COUNTS] {
                [$((stringify!($field), self.$field),)*]
            }
        }

        /// Counters there are.
        pub(crate) const COUNTS: usize = [$(Count::$variant,)*].len();

        impl Counters {
            /// Adds these to a sum.
            pub(crate) fn add_to(&self, sum: &mut ProfilerCounters) {
                $(sum.$field += self.get(Count::$variant);)*
            }
        }
    };
}

counters! {
    /// `startEvent` calls.
    Started started,
    /// `stopEvent` calls.
    Stopped stopped,
    /// `recordEventState` calls.
    States states,
    /// Samples: operations whose end is known and which policies saw.
    Samples samples,
    /// Samples of operations of which some channels never told of their end.
    Incomplete incomplete,
    /// Samples without kernels to measure (no channels, or a version without kernel events): timed around the enqueueing.
    Untimed untimed,
    /// Operations dropped from the ring without any kernel: symmetric kernels, or kernels not asked for.
    WithoutKernel without_kernel,
    /// Operations dropped from the ring before they ended, with or without a sample.
    Evicted evicted,
    /// Events that found no free place in the ring: every one near was in use at that instant.
    NoRoom no_room,
    /// GPU timers that were 0.
    ZeroTimer zero_timer,
    /// Kernels that ended before they began, by the GPU's timer; their operation is timed by the host's clock.
    Backwards backwards,
    /// A kernel's end that came before its start.
    StopBeforeStart stop_before_start,
    /// Events stopped twice.
    DoubleStop double_stop,
    /// A second kernel on a channel of the same operation.
    DoubleStart double_start,
    /// Kernels that came after their operation had ended.
    Late late,
    /// Calls with a null handle.
    NullHandle null_handle,
    /// Calls with a handle that is stale, or none of ours.
    StaleHandle stale_handle,
    /// Events whose parent is stale, or none of ours.
    StaleParent stale_parent,
    /// Kernels without a parent.
    Orphan orphan,
    /// Events with a null context: `init` failed for that communicator.
    NullContext null_context,
    /// Events with a context that is stale, or none of ours.
    StaleContext stale_context,
    /// Null events, and null places for a handle.
    NullEvent null_event,
    /// Types and states that this version does not have, and channels past the last one.
    Unknown unknown,
    /// State records without their arguments.
    NullArgs null_args,
    /// Events of other processes (PXN), and what follows from them.
    Foreign foreign,
    /// Samples and events handed to the thread that was inside the policies.
    HandedOver handed_over,
    /// Samples and events lost since too many were waiting for the policies.
    Dropped dropped,
    /// Events passed on to the downstream profiler.
    Forwarded forwarded,
    /// Downstream events that were pushed out of the table of pairs before they stopped: the downstream profiler misses their stop.
    PairsLost pairs_lost,
    /// Events that the downstream profiler's version cannot take.
    NotForwarded not_forwarded,
    /// Error codes of the downstream profiler.
    DownstreamErrors downstream_errors,
}

/// Counters of one communicator's place. Any thread may count.
#[derive(Debug)]
pub(crate) struct Counters([AtomicU64; COUNTS]);

impl Counters {
    pub(crate) const fn new() -> Counters {
        Counters([const { AtomicU64::new(0) }; COUNTS])
    }

    /// Adds one.
    #[inline]
    pub(crate) fn count(&self, what: Count) {
        self.0[what as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn get(&self, what: Count) -> u64 {
        self.0[what as usize].load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counter_reaches_its_own_field() {
        let counters = Counters::new();
        counters.count(Count::Started);
        counters.count(Count::DownstreamErrors);
        counters.count(Count::DownstreamErrors);
        let mut sum = ProfilerCounters::default();
        counters.add_to(&mut sum);
        counters.add_to(&mut sum);
        assert_eq!((sum.started, sum.downstream_errors), (2, 4));
        assert_eq!(sum.named().iter().map(|(_, n)| n).sum::<u64>(), 6);
        assert_eq!((sum.named()[0], sum.named().len()), (("started", 2), COUNTS));
    }
}
