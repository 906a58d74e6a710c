//! Helpers of the host that are no map operations.
//!
//! Outside an eBPF object (native unit tests of a policy) there is no host: the clock stands at 0, the random
//! number and the CPU are 0, every map is empty and every update fails with [`MapError::Other`](crate::MapError).

use crate::raw::call;

/// The monotonic clock in nanoseconds. *Rank-local.*
#[inline(always)]
pub fn ktime_ns() -> u64 {
    call::ktime_get_ns()
}

/// A pseudo-random number. *Rank-local.*
#[inline(always)]
pub fn prandom_u32() -> u32 {
    call::get_prandom_u32()
}

/// The CPU that runs the policy. *Rank-local.*
#[inline(always)]
pub fn cpu_id() -> u32 {
    call::get_smp_processor_id()
}

/// A line for the log of the job; see [`printk!`](crate::printk), which ends the format with a NUL. The length of the line, or a
/// negative errno.
#[inline(always)]
pub fn trace_printk(fmt: &'static [u8], values: [u64; 3]) -> i64 {
    let [a, b, c] = values;
    call::trace_printk(fmt.as_ptr().cast(), fmt.len() as u32, a, b, c)
}
