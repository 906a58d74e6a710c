//! [`Work`]: a finished sample or a raw event on its way to the policies, as the words of its context; [`Queue`]: a bounded queue of
//! them, for the thread that is inside the policies already.

use ringfence_guest::abi::{ProfilerContext, ProfilerEventContext};
use std::mem::{offset_of, size_of};
use std::sync::atomic::{AtomicU64, Ordering};

/// Words of the larger context.
const WORDS: usize = size_of::<ProfilerContext>() / 8;
const EVENT_WORDS: usize = size_of::<ProfilerEventContext>() / 8;
const _: () = assert!(EVENT_WORDS <= WORDS);

/// A context for the policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Work {
    /// A sample, or else an event.
    pub(crate) sample: bool,
    words: [u64; WORDS],
}

const fn pair(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

/// The words below follow the fields of the contexts.
const _: () = {
    assert!(offset_of!(ProfilerContext, end_ns) == 8 * 4 && offset_of!(ProfilerContext, func) == 8 * 5);
    assert!(offset_of!(ProfilerContext, proto) == 8 * 6 && offset_of!(ProfilerContext, rank) == 8 * 7);
    assert!(offset_of!(ProfilerContext, n_nodes) == 8 * 8);
    assert!(offset_of!(ProfilerContext, datatype_bytes) == 8 * 9);
    assert!(offset_of!(ProfilerContext, flags) == 8 * 10);
    assert!(offset_of!(ProfilerContext, comm_name) == 8 * 11 && WORDS == 15);
    assert!(offset_of!(ProfilerEventContext, seq) == 8 * 5);
    assert!(offset_of!(ProfilerEventContext, action) == 8 * 6);
    assert!(offset_of!(ProfilerEventContext, state) == 8 * 7);
    assert!(offset_of!(ProfilerEventContext, peer) == 8 * 8);
    assert!(offset_of!(ProfilerEventContext, rank) == 8 * 9 && EVENT_WORDS == 10);
};

impl Work {
    /// A finished operation.
    pub(crate) fn sample(c: &ProfilerContext) -> Work {
        let [n0, n1, n2, n3] = c.comm_name;
        let words = [
            c.comm_id,
            c.n_bytes,
            c.duration_ns,
            c.seq,
            c.end_ns,
            pair(c.func, c.algo),
            pair(c.proto, c.channels),
            pair(c.rank, c.n_ranks),
            pair(c.n_nodes, c.timing),
            pair(c.datatype_bytes, c.peer),
            pair(c.flags, 0),
            n0,
            n1,
            n2,
            n3,
        ];
        Work { sample: true, words }
    }

    /// An event as it comes.
    pub(crate) fn event(c: &ProfilerEventContext) -> Work {
        let mut words = [0; WORDS];
        words[..EVENT_WORDS].copy_from_slice(&[
            c.comm_id,
            c.time_ns,
            c.handle,
            c.parent,
            c.value,
            c.seq,
            pair(c.action, c.event),
            pair(c.state, c.channel),
            pair(c.peer, c.pid),
            pair(c.rank, c.func),
        ]);
        Work { sample: false, words }
    }

    /// Runs `f` on the context's bytes.
    #[inline]
    pub(crate) fn with_bytes<R>(&self, f: impl FnOnce(&mut [u8]) -> R) -> R {
        let mut bytes = [0; 8 * WORDS];
        for (bytes, word) in bytes.chunks_exact_mut(8).zip(self.words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let size = if self.sample { 8 * WORDS } else { 8 * EVENT_WORDS };
        f(&mut bytes[..size])
    }
}

/// Contexts that may wait. More at once means that a policy takes longer than the events between two of its calls.
pub(crate) const QUEUE: usize = 64;

/// A cell: whose turn it is, and a context.
#[derive(Debug)]
struct Cell {
    turn: AtomicU64,
    sample: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// A bounded queue without locks (Dmitry Vyukov's, for several producers and consumers): each cell has a turn; a producer that finds
/// its turn claims the cell by moving `tail`, fills it and passes the turn to a consumer, and so on round. Its cells are atomics, so
/// nothing here is unsafe; that only the holder of a turn touches a cell keeps contexts whole.
#[derive(Debug)]
pub(crate) struct Queue {
    cells: Box<[Cell]>,
    head: AtomicU64,
    tail: AtomicU64,
}

impl Queue {
    pub(crate) fn new() -> Queue {
        let cell = |i: usize| Cell {
            turn: AtomicU64::new(i as u64),
            sample: AtomicU64::new(0),
            words: [const { AtomicU64::new(0) }; WORDS],
        };
        Queue { cells: (0..QUEUE).map(cell).collect(), head: AtomicU64::new(0), tail: AtomicU64::new(0) }
    }

    fn cell(&self, at: u64) -> &Cell {
        &self.cells[at as usize % QUEUE]
    }

    /// Appends; false if the queue is full.
    pub(crate) fn push(&self, work: &Work) -> bool {
        let mut at = self.tail.load(Ordering::Relaxed);
        loop {
            let cell = self.cell(at);
            match cell.turn.load(Ordering::Acquire) {
                turn if turn == at => {
                    match self.tail.compare_exchange(at, at + 1, Ordering::Relaxed, Ordering::Relaxed) {
                        Ok(_) => {
                            cell.sample.store(work.sample.into(), Ordering::Relaxed);
                            for (to, from) in cell.words.iter().zip(work.words) {
                                to.store(from, Ordering::Relaxed);
                            }
                            cell.turn.store(at + 1, Ordering::Release);
                            return true;
                        }
                        Err(now) => at = now,
                    }
                }
                turn if turn < at => return false,
                _ => at = self.tail.load(Ordering::Relaxed),
            }
        }
    }

    /// Takes the oldest; `None` if there is none whose producer has finished.
    pub(crate) fn pop(&self) -> Option<Work> {
        let mut at = self.head.load(Ordering::Relaxed);
        loop {
            let cell = self.cell(at);
            match cell.turn.load(Ordering::Acquire) {
                turn if turn == at + 1 => {
                    match self.head.compare_exchange(at, at + 1, Ordering::Relaxed, Ordering::Relaxed) {
                        Ok(_) => {
                            let sample = cell.sample.load(Ordering::Relaxed) != 0;
                            let words = std::array::from_fn(|i| cell.words[i].load(Ordering::Relaxed));
                            cell.turn.store(at + QUEUE as u64, Ordering::Release);
                            return Some(Work { sample, words });
                        }
                        Err(now) => at = now,
                    }
                }
                turn if turn < at + 1 => return None,
                _ => at = self.head.load(Ordering::Relaxed),
            }
        }
    }

    /// Is anything there?
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.head.load(Ordering::Relaxed) == self.tail.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(n: u64) -> Work {
        Work { sample: n.is_multiple_of(2), words: [n; WORDS] }
    }

    #[test]
    fn contexts_become_bytes_field_by_field() {
        let sample = ProfilerContext {
            comm_id: 1,
            n_bytes: 2,
            duration_ns: 3,
            seq: 4,
            end_ns: 5,
            func: 6,
            algo: 7,
            proto: 8,
            channels: 9,
            rank: 10,
            n_ranks: 11,
            n_nodes: 12,
            timing: 13,
            datatype_bytes: 14,
            peer: 15,
            flags: 16,
            _pad: 0,
            comm_name: [17, 18, 19, 20],
        };
        Work::sample(&sample).with_bytes(|bytes| {
            let wide = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            let narrow = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            assert_eq!((0..5).map(|i| wide(8 * i)).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
            assert_eq!((0..11).map(|i| narrow(40 + 4 * i)).collect::<Vec<_>>(), (6..17).collect::<Vec<_>>());
            assert_eq!((wide(88), wide(112), bytes.len()), (17, 20, 120));
        });
        let event =
            ProfilerEventContext { comm_id: 1, seq: 6, action: 7, event: 8, func: 14, ..Default::default() };
        Work::event(&event).with_bytes(|bytes| {
            let narrow = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            assert_eq!((bytes[0], bytes[40], narrow(48), narrow(52), narrow(76)), (1, 6, 7, 8, 14));
            assert_eq!(bytes.len(), 80);
        });
    }

    #[test]
    fn a_full_queue_refuses_and_keeps_the_order() {
        let queue = Queue::new();
        assert!(queue.is_empty() && queue.pop().is_none());
        for round in 0..3 {
            for n in 0..QUEUE as u64 {
                assert!(queue.push(&work(round * 100 + n)));
            }
            assert!(!queue.push(&work(0)) && !queue.is_empty());
            for n in 0..QUEUE as u64 {
                assert_eq!(queue.pop(), Some(work(round * 100 + n)));
            }
            assert!(queue.is_empty());
        }
    }

    #[test]
    fn nothing_is_torn_lost_or_doubled_between_threads() {
        const EACH: u64 = 20_000;
        let queue = Queue::new();
        let (pushed, mut seen) = std::thread::scope(|scope| {
            let producers: Vec<_> = (0..2u64)
                .map(|t| {
                    let queue = &queue;
                    scope.spawn(move || {
                        for n in 0..EACH {
                            while !queue.push(&work(t * EACH + n)) {
                                std::thread::yield_now();
                            }
                        }
                        EACH
                    })
                })
                .collect();
            let consumer = scope.spawn(|| {
                let mut seen = Vec::new();
                while seen.len() < 2 * EACH as usize {
                    match queue.pop() {
                        Some(w) => {
                            assert_eq!(w, work(w.words[0]));
                            seen.push(w.words[0]);
                        }
                        None => std::thread::yield_now(),
                    }
                }
                seen
            });
            (producers.into_iter().map(|p| p.join().unwrap()).sum::<u64>(), consumer.join().unwrap())
        });
        seen.sort_unstable();
        assert_eq!(pushed, 2 * EACH);
        assert!(seen.iter().copied().eq(0..2 * EACH));
    }
}
