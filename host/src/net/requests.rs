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
#[derive(Default)]
pub(crate) struct Requests {
    /// Bit n: entry n is in use.
    live: AtomicU32,
    entries: [Entry; MAX_REQUESTS],
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
    /// Notes a request of the connection in slot `conn`; `None` if there are too many.
    pub(crate) fn begin(&self, conn: u16, request: &Request) -> Option<RequestKey> {
        let free = |live: u32| (live != u32::MAX).then(|| live | 1 << live.trailing_ones());
        let before = self.live.fetch_update(Ordering::AcqRel, Ordering::Relaxed, free).ok()?;
        let at = before.trailing_ones();
        let entry = &self.entries[at as usize];
        entry.raw.store(request.raw, Ordering::Relaxed);
        entry.started.store(request.started, Ordering::Relaxed);
        entry.size.store(request.size, Ordering::Relaxed);
        entry.tag.store(request.tag, Ordering::Relaxed);
        entry.count.store(request.count, Ordering::Relaxed);
        entry.op.store(request.op, Ordering::Relaxed);
        let generation = entry.generation.load(Ordering::Relaxed).wrapping_add(1) & GENERATION_MASK;
        entry.generation.store(generation, Ordering::Release);
        Some(RequestKey { conn, entry: at as u8, generation })
    }

    /// The request of a key, while it is under way.
    pub(crate) fn find(&self, key: RequestKey) -> Option<Request> {
        let entry = self.entries.get(usize::from(key.entry))?;
        let live = self.live.load(Ordering::Acquire) >> key.entry & 1 == 1;
        if !live || entry.generation.load(Ordering::Acquire) != key.generation {
            return None;
        }
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
        let Some(entry) = self.entries.get(usize::from(key.entry)) else { return };
        let next = key.generation.wrapping_add(1) & GENERATION_MASK;
        let (done, seen) = (Ordering::AcqRel, Ordering::Relaxed);
        if entry.generation.compare_exchange(key.generation, next, done, seen).is_ok() {
            self.live.fetch_and(!(1 << key.entry), Ordering::AcqRel);
        }
    }

    /// Ends all of them: the connection is closed.
    pub(crate) fn clear(&self) {
        for entry in &self.entries {
            entry.generation.fetch_add(1, Ordering::AcqRel);
            entry.generation.fetch_and(GENERATION_MASK, Ordering::AcqRel);
        }
        self.live.store(0, Ordering::Release);
    }

    /// Requests under way.
    pub(crate) fn in_flight(&self) -> u32 {
        self.live.load(Ordering::Relaxed).count_ones()
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
        let (a, b) = (requests.begin(9, &request(100)).unwrap(), requests.begin(9, &request(200)).unwrap());
        assert_eq!(RequestKey::parse(a.key()), Some(a));
        assert_eq!((requests.find(a), requests.find(b)), (Some(request(100)), Some(request(200))));
        assert_eq!(requests.in_flight(), 2);
        requests.end(a);
        requests.end(a);
        assert_eq!((requests.find(a), requests.in_flight()), (None, 1));
        let c = requests.begin(9, &request(300)).unwrap();
        assert_eq!(c.entry, a.entry);
        assert_eq!((requests.find(a), requests.find(c)), (None, Some(request(300))));
    }

    #[test]
    fn no_more_than_nccl_makes() {
        let requests = Requests::default();
        let keys: Vec<_> = (0..32).map(|n| requests.begin(0, &request(n)).unwrap()).collect();
        assert_eq!(requests.begin(0, &request(99)), None);
        requests.end(keys[17]);
        assert_eq!(requests.begin(0, &request(99)).unwrap().entry, 17);
        requests.clear();
        assert_eq!(requests.in_flight(), 0);
        assert!(keys.iter().all(|k| requests.find(*k).is_none()));
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
