//! [`Ring`]: records of a ring buffer, as the kernel accounts for them (kernel/bpf/ringbuf.c): positions only grow, a record
//! takes its bytes and a header of 8, rounded up to 8, and there is room while less than the whole is in use.

use std::collections::VecDeque;

const HEADER: u64 = 8;
/// `RINGBUF_MAX_RECORD_SZ`
const MAX_RECORD: u64 = u32::MAX as u64 / 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Held,
    Submitted,
    Discarded,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    /// Of the header.
    position: u64,
    size: u32,
    state: State,
}

/// See the module's text. Bytes are elsewhere, at twice the size, so that no record is split.
#[derive(Clone, Debug, Default)]
pub(super) struct Ring {
    size: u64,
    /// Not consumed yet, the oldest first.
    records: VecDeque<Record>,
    producer: u64,
    consumer: u64,
}

impl Ring {
    pub(super) fn new(size: u32) -> Ring {
        Ring { size: size.into(), ..Ring::default() }
    }

    fn start(&self, r: &Record) -> u32 {
        // Sizes are powers of two, below 2^31.
        (r.position % self.size.max(1) + HEADER) as u32
    }

    /// Offset of the bytes of a new record.
    pub(super) fn reserve(&mut self, size: u64) -> Option<u32> {
        let len = (size.checked_add(HEADER)?).checked_next_multiple_of(8)?;
        let oldest_held = self.records.iter().find(|r| r.state == State::Held).map(|r| r.position);
        let pending = oldest_held.unwrap_or(self.producer);
        let end = self.producer + len;
        if size > MAX_RECORD || len > self.size || end - self.consumer.min(pending) >= self.size {
            return None;
        }
        let r = Record { position: self.producer, size: size as u32, state: State::Held };
        self.records.push_back(r);
        self.producer = end;
        Some(self.start(&r))
    }

    /// Gives back the record whose bytes start there; false if none is held there.
    pub(super) fn commit(&mut self, start: u32, keep: bool) -> bool {
        let size = self.size.max(1);
        let it = |r: &&mut Record| r.state == State::Held && (r.position % size + HEADER) as u32 == start;
        let Some(r) = self.records.iter_mut().find(it) else { return false };
        r.state = if keep { State::Submitted } else { State::Discarded };
        true
    }

    /// Do `len` bytes from there lie in one record that is held?
    pub(super) fn holds(&self, off: u32, len: u32) -> bool {
        self.held().any(|(start, size)| {
            start <= off && u64::from(off) + u64::from(len) <= u64::from(start) + u64::from(size)
        })
    }

    /// Start and size of each record that is held.
    pub(super) fn held(&self) -> impl Iterator<Item = (u32, u32)> {
        self.records.iter().filter(|r| r.state == State::Held).map(|r| (self.start(r), r.size))
    }

    /// Takes the oldest record, if it was given back: where it lies, or `None` inside if it was discarded.
    pub(super) fn consume(&mut self) -> Option<Option<(u32, u32)>> {
        let r = *self.records.front().filter(|r| r.state != State::Held)?;
        self.records.pop_front();
        self.consumer = self.records.front().map_or(self.producer, |next| next.position);
        Some((r.state == State::Submitted).then(|| (self.start(&r), r.size)))
    }

    /// `ringbuf_query`.
    pub(super) fn query(&self, what: u64) -> u64 {
        match what {
            0 => self.producer - self.consumer,
            1 => self.size,
            2 => self.consumer,
            3 => self.producer,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_takes_a_header_and_the_last_byte_stays_free() {
        let mut r = Ring::new(4096);
        assert_eq!(r.reserve(4096), None);
        assert_eq!(r.reserve(4088), None, "the whole ring");
        assert_eq!(r.reserve(4080), Some(8));
        assert_eq!(r.reserve(1), None);
        assert!(r.commit(8, true) && !r.commit(8, true));
        assert_eq!(r.reserve(1), None, "not consumed yet");
        assert_eq!(r.consume(), Some(Some((8, 4080))));
        assert_eq!(r.reserve(100), Some(4096));
        assert!(r.holds(4096, 100) && !r.holds(4096, 101) && !r.holds(4095, 1));
        assert_eq!((r.query(0), r.query(1), r.query(2), r.query(3)), (112, 4096, 4088, 4200));
    }

    #[test]
    fn records_are_consumed_in_order_and_discarded_ones_skipped() {
        let mut r = Ring::new(4096);
        let (a, b) = (r.reserve(8).unwrap(), r.reserve(16).unwrap());
        assert!(r.commit(b, true));
        assert_eq!(r.consume(), None, "the oldest is still held");
        assert!(r.commit(a, false));
        assert_eq!((r.consume(), r.consume(), r.consume()), (Some(None), Some(Some((b, 16))), None));
        assert_eq!(r.query(0), 0);
    }
}
