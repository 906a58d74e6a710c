//! [`Ring`]: the records of a ring buffer, with the kernel's accounting (kernel/bpf/ringbuf.c): positions only grow, a record
//! takes its bytes and a header of 8, rounded up to 8, and there is room while less than the whole is in use.
//!
//! The bytes of records lie in the map's memory, where policies write them; the headers lie here, out of their reach, so that
//! what the host reads of a record is what it wrote. The memory has twice the size of the ring, so that no record is split
//! where the ring begins again. Producers share a try-lock, and give up after a bounded spin: then the record is dropped, as when
//! the ring is full. There is one consumer at a time.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

/// Bytes before each record (Linux `BPF_RINGBUF_HDR_SZ`).
const HEADER: u64 = 8;
/// Largest record (Linux `RINGBUF_MAX_RECORD_SZ`).
const MAX_RECORD: u64 = u32::MAX as u64 / 4;
/// The record is not given back yet (Linux `BPF_RINGBUF_BUSY_BIT`).
const BUSY: u32 = 1 << 31;
/// It was given back to be dropped (Linux `BPF_RINGBUF_DISCARD_BIT`).
const DISCARD: u32 = 1 << 30;
/// Attempts of a producer to get the lock; about 5 us.
const LOCK_SPINS: u32 = 500;

/// Headers and positions of a ring.
#[derive(Debug)]
pub(crate) struct Ring {
    /// By position / 8: length and flags of the record that starts there.
    headers: Box<[AtomicU32]>,
    size: u64,
    producer: AtomicU64,
    /// The oldest record that may not be given back yet. Under the lock.
    pending: AtomicU64,
    consumer: AtomicU64,
    lock: AtomicBool,
    consuming: AtomicBool,
    dropped: AtomicU64,
}

/// Lets go.
struct Locked<'a>(&'a AtomicBool);

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.0.store(false, Release);
    }
}

fn taken(len: u64) -> u64 {
    (len + HEADER).next_multiple_of(8)
}

impl Ring {
    /// A ring of so many bytes, a power of two (checked by the caller).
    pub(super) fn new(size: u32) -> Ring {
        Ring {
            headers: (0..size as usize / 8).map(|_| AtomicU32::new(0)).collect(),
            size: size.into(),
            producer: AtomicU64::new(0),
            pending: AtomicU64::new(0),
            consumer: AtomicU64::new(0),
            lock: AtomicBool::new(false),
            consuming: AtomicBool::new(false),
            dropped: AtomicU64::new(0),
        }
    }

    /// Bytes that such a ring takes beside its records.
    pub(super) fn bytes(size: u32) -> u64 {
        u64::from(size) / 2
    }

    #[inline]
    fn header(&self, position: u64) -> &AtomicU32 {
        // The count is a power of two, at least 1: the mask keeps the index inside.
        &self.headers[(position / 8) as usize & (self.headers.len() - 1)]
    }

    /// Takes room for a record: the offset of its bytes. `None` when there is none.
    #[inline]
    pub(crate) fn reserve(&self, len: u64) -> Option<u32> {
        let offset = self.try_reserve(len);
        if offset.is_none() {
            self.dropped.fetch_add(1, Relaxed);
        }
        offset
    }

    fn try_reserve(&self, len: u64) -> Option<u32> {
        if len > MAX_RECORD || taken(len) > self.size {
            return None;
        }
        let consumer = self.consumer.load(Acquire);
        let _lock = self.lock()?;
        let position = self.producer.load(Relaxed);
        let mut pending = self.pending.load(Relaxed);
        while pending < position {
            let header = self.header(pending).load(Acquire);
            if header & BUSY != 0 {
                break;
            }
            pending += taken(u64::from(header & !DISCARD));
        }
        self.pending.store(pending, Relaxed);
        let end = position + taken(len);
        if end - consumer.min(pending) >= self.size {
            return None;
        }
        self.header(position).store(len as u32 | BUSY, Relaxed);
        self.producer.store(end, Release);
        Some((position % self.size + HEADER) as u32)
    }

    fn lock(&self) -> Option<Locked<'_>> {
        for _ in 0..LOCK_SPINS {
            if !self.lock.load(Relaxed) && !self.lock.swap(true, AcqRel) {
                return Some(Locked(&self.lock));
            }
            std::hint::spin_loop();
        }
        None
    }

    /// Gives back the record whose bytes start at `offset`, which the caller has reserved and not given back.
    #[inline]
    pub(crate) fn commit(&self, offset: u32, keep: bool) {
        let header = self.header(u64::from(offset).wrapping_sub(HEADER));
        let len = header.load(Relaxed) & !BUSY;
        header.store(if keep { len } else { len | DISCARD }, Release);
    }

    /// Hands the records that were submitted to `take`, as offset and length, the oldest first, until it says no. Records that
    /// were discarded are passed over; the first that is not given back yet ends it. `None` while another consumer is at work.
    pub(super) fn consume(&self, mut take: impl FnMut(u32, u32) -> bool) -> Option<()> {
        if self.consuming.swap(true, AcqRel) {
            return None;
        }
        let _alone = Locked(&self.consuming);
        let mut position = self.consumer.load(Relaxed);
        while position < self.producer.load(Acquire) {
            let header = self.header(position).load(Acquire);
            let len = header & !(BUSY | DISCARD);
            if header & BUSY != 0
                || (header & DISCARD == 0 && !take((position % self.size + HEADER) as u32, len))
            {
                break;
            }
            position += taken(len.into());
            self.consumer.store(position, Release);
        }
        Some(())
    }

    /// `ringbuf_query`: bytes in use, size, position of the consumer, of the producer; 0 for anything else.
    pub(crate) fn query(&self, what: u64) -> u64 {
        let (consumer, producer) = (self.consumer.load(Acquire), self.producer.load(Acquire));
        match what {
            0 => producer.saturating_sub(consumer),
            1 => self.size,
            2 => consumer,
            3 => producer,
            _ => 0,
        }
    }

    /// Records that found no room.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }
}
