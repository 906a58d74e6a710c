//! [`Requests`]: the transfers under way on one connection, while a policy watches them.

use super::table::Tag;
use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// Most requests of a connection that are followed; NCCL makes no more (`NCCL_NET_MAX_REQUESTS`).
pub(crate) const MAX_REQUESTS: usize = 32;
const GENERATION_MASK: u32 = 0xff_ffff;

/// A transfer that the plugin below has taken on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// What the plugin below calls it.
    pub(crate) raw: *mut c_void,
    /// Host clock when it was made.
    pub(crate) started: u64,
    /// Bytes asked for.
    pub(crate) size: u64,
    /// Of the first transfer of a group.
    pub(crate) tag: u32,
    /// Transfers of the group.
    pub(crate) count: u32,
    /// As in `net_op`.
    pub(crate) op: u32,
}

#[derive(Default)]
struct Entry {
    generation: AtomicU32,
    raw: AtomicPtr<c_void>,
    started: AtomicU64,
    size: AtomicU64,
    tag: AtomicU32,
    count: AtomicU32,
    op: AtomicU32,
}

/// Up to [`MAX_REQUESTS`] requests. One thread makes and ends them (NCCL's proxy); should others do too, words get mixed but
/// nothing breaks.
///
/// Where the plugin below has `irecvConsumed`, NCCL calls it with each receive *after* `test` has found that done: when the GPU has read
/// the data. Until then an entry is *owed*: its request has ended, and its key still names it.
#[derive(Default)]
pub(crate) struct Requests {
    /// Bit n: entry n is under way. Bit 32 + n: it is owed.
    state: AtomicU64,
    entries: [Entry; MAX_REQUESTS],
}

/// The bits of [`Requests::state`] of an entry.
const fn live(entry: u8) -> u64 {
    1 << entry
}
const fn owed(entry: u8) -> u64 {
    1 << (MAX_REQUESTS as u8 + entry)
}

/// Where a request is noted: the connection's slot, the entry and its generation, as the 48 bits of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestKey {
    pub(crate) conn: u16,
    entry: u8,
    generation: u32,
}

impl RequestKey {
    /// Reads a pointer of NCCL's; `None` if it is not one of our keys.
    #[inline]
    pub(crate) fn parse(key: u64) -> Option<RequestKey> {
        let bits = Tag::Request.bits(key)?;
        Some(RequestKey { conn: bits as u16, entry: (bits >> 16) as u8, generation: (bits >> 24) as u32 })
    }

    pub(crate) fn key(self) -> u64 {
        Tag::Request
            .key(u64::from(self.generation) << 24 | u64::from(self.entry) << 16 | u64::from(self.conn))
    }
}

impl Requests {
    /// Notes a request of the connection in slot `conn`, which NCCL is going to call consumed if `consumed`; `None` if there are too
    /// many.
    pub(crate) fn begin(&self, conn: u16, request: &Request, consumed: bool) -> Option<RequestKey> {
        let free = |state: u64| ((state | state >> MAX_REQUESTS) as u32).trailing_ones() as u8;
        let take = |state: u64| {
            let at = free(state);
            let owing = if consumed { owed(at % MAX_REQUESTS as u8) } else { 0 };
            (usize::from(at) < MAX_REQUESTS).then(|| state | live(at) | owing)
        };
        let at = free(self.state.fetch_update(Ordering::AcqRel, Ordering::Relaxed, take).ok()?);
        let entry = &self.entries[usize::from(at)];
        entry.raw.store(request.raw, Ordering::Relaxed);
        entry.started.store(request.started, Ordering::Relaxed);
        entry.size.store(request.size, Ordering::Relaxed);
        entry.tag.store(request.tag, Ordering::Relaxed);
        entry.count.store(request.count, Ordering::Relaxed);
        entry.op.store(request.op, Ordering::Relaxed);
        let generation = entry.generation.load(Ordering::Relaxed).wrapping_add(1) & GENERATION_MASK;
        entry.generation.store(generation, Ordering::Release);
        Some(RequestKey { conn, entry: at, generation })
    }

    /// The entry of a key, if any of `bits` of its state is set.
    fn entry(&self, key: RequestKey, bits: fn(u8) -> u64) -> Option<&Entry> {
        let entry = self.entries.get(usize::from(key.entry))?;
        let set = self.state.load(Ordering::Acquire) & bits(key.entry) != 0;
        (set && entry.generation.load(Ordering::Acquire) == key.generation).then_some(entry)
    }

    /// The request of a key, while it is under way.
    pub(crate) fn find(&self, key: RequestKey) -> Option<Request> {
        let entry = self.entry(key, live)?;
        Some(Request {
            raw: entry.raw.load(Ordering::Relaxed),
            started: entry.started.load(Ordering::Relaxed),
            size: entry.size.load(Ordering::Relaxed),
            tag: entry.tag.load(Ordering::Relaxed),
            count: entry.count.load(Ordering::Relaxed),
            op: entry.op.load(Ordering::Relaxed),
        })
    }

    /// Ends a request; from then on its key finds nothing.
    pub(crate) fn end(&self, key: RequestKey) {
        if self.entry(key, live).is_some() {
            self.clear_bit(key, live(key.entry));
        }
    }

    /// NCCL says that a receive was consumed, before or after it ended: what the plugin below calls it. Once for each request.
    pub(crate) fn consume(&self, key: RequestKey) -> Option<*mut c_void> {
        let raw = self.entry(key, owed)?.raw.load(Ordering::Relaxed);
        self.clear_bit(key, owed(key.entry));
        Some(raw)
    }

    /// With the last bit of an entry its key goes, before anybody can take the entry again.
    fn clear_bit(&self, key: RequestKey, bit: u64) {
        let both = live(key.entry) | owed(key.entry);
        if self.state.load(Ordering::Acquire) & both == bit {
            let entry = &self.entries[usize::from(key.entry)];
            let next = key.generation.wrapping_add(1) & GENERATION_MASK;
            let (done, seen) = (Ordering::AcqRel, Ordering::Relaxed);
            let _ = entry.generation.compare_exchange(key.generation, next, done, seen);
        }
        self.state.fetch_and(!bit, Ordering::AcqRel);
    }

    /// Ends all of them: the connection is closed.
    pub(crate) fn clear(&self) {
        for entry in &self.entries {
            entry.generation.fetch_add(1, Ordering::AcqRel);
            entry.generation.fetch_and(GENERATION_MASK, Ordering::AcqRel);
        }
        self.state.store(0, Ordering::Release);
    }

    /// Requests under way.
    pub(crate) fn in_flight(&self) -> u32 {
        (self.state.load(Ordering::Relaxed) as u32).count_ones()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::table::pointer;

    fn request(n: u64) -> Request {
        Request { raw: pointer(n), started: n + 1, size: n + 2, tag: 3, count: 1, op: 6 }
    }

    #[test]
    fn a_request_is_found_until_it_ends() {
        let requests = Requests::default();
        let (a, b) = (
            requests.begin(9, &request(100), false).unwrap(),
            requests.begin(9, &request(200), false).unwrap(),
        );
        assert_eq!(RequestKey::parse(a.key()), Some(a));
        assert_eq!((requests.find(a), requests.find(b)), (Some(request(100)), Some(request(200))));
        assert_eq!(requests.in_flight(), 2);
        requests.end(a);
        requests.end(a);
        assert_eq!((requests.find(a), requests.in_flight()), (None, 1));
        let c = requests.begin(9, &request(300), false).unwrap();
        assert_eq!(c.entry, a.entry);
        assert_eq!((requests.find(a), requests.find(c)), (None, Some(request(300))));
    }

    #[test]
    fn no_more_than_nccl_makes() {
        let requests = Requests::default();
        let keys: Vec<_> = (0..32).map(|n| requests.begin(0, &request(n), false).unwrap()).collect();
        assert_eq!(requests.begin(0, &request(99), false), None);
        requests.end(keys[17]);
        assert_eq!(requests.begin(0, &request(99), false).unwrap().entry, 17);
        requests.clear();
        assert_eq!(requests.in_flight(), 0);
        assert!(keys.iter().all(|k| requests.find(*k).is_none()));
    }

    #[test]
    fn a_receive_is_consumed_once_before_or_after_it_ends() {
        let requests = Requests::default();
        let (early, late) = (
            requests.begin(9, &request(100), true).unwrap(),
            requests.begin(9, &request(200), true).unwrap(),
        );
        assert_eq!(requests.consume(early), Some(pointer(100)));
        assert_eq!((requests.consume(early), requests.find(early)), (None, Some(request(100))));
        requests.end(early);
        assert_eq!(requests.find(early), None);

        requests.end(late);
        requests.end(late);
        assert_eq!((requests.find(late), requests.in_flight()), (None, 0));
        // Its entry is not taken by another as long as NCCL may name it.
        let others: Vec<_> = (0..31).map(|n| requests.begin(9, &request(n), false).unwrap()).collect();
        assert_eq!(requests.begin(9, &request(99), false), None);
        assert_eq!((requests.consume(late), requests.consume(late)), (Some(pointer(200)), None));
        let last = requests.begin(9, &request(99), false).unwrap();
        assert_eq!((last.entry, requests.in_flight()), (late.entry, 32));
        assert_eq!(
            (requests.consume(late), requests.consume(last), requests.consume(others[0])),
            (None, None, None)
        );
    }

    #[test]
    fn pointers_are_no_keys() {
        let requests = Requests::default();
        let here = &raw const requests as u64;
        for bits in [0, 1, 2, here, u64::MAX] {
            assert_eq!(RequestKey::parse(bits), None);
        }
        let invented = RequestKey { conn: 0, entry: 200, generation: 1 };
        assert_eq!(requests.find(invented), None);
        requests.end(invented);
    }
}
