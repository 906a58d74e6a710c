//! [`Scope`]: what stands behind the context that net v11 and later make per communicator; for older versions, behind all
//! connections of the process.

use super::table::{Table, Tag};
use crate::endpoint::Endpoint;
use crate::ffi::lock::TryLock;
use crate::hooks::Hook;
use ringfence_guest::abi::{NetContext, UNSET, net_op};
use std::ffi::c_void;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// All scopes of the process.
pub(crate) static SCOPES: Table<Scope> = Table::new(Tag::Scope);

/// Operations of the data path.
const TRANSFERS: u32 = 1 << net_op::ISEND | 1 << net_op::IRECV | 1 << net_op::IFLUSH | 1 << net_op::TEST_DONE;

/// How long to wait for another thread that runs a policy of the same scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// A few microseconds, without a system call: the data path.
    Little,
    /// Some milliseconds: connections are made and closed, memory is registered.
    Ample,
}

impl Patience {
    const SPINS: u32 = 512;

    /// Waits for the `round`th time; false if it has been long enough.
    fn wait(self, round: u32) -> bool {
        match self {
            Patience::Little => std::hint::spin_loop(),
            Patience::Ample if round < Patience::SPINS => std::hint::spin_loop(),
            Patience::Ample => std::thread::yield_now(),
        }
        round < if self == Patience::Little { Patience::SPINS } else { 20 * Patience::SPINS }
    }
}

/// The plugin's context, and the policies that watch its connections.
pub(crate) struct Scope {
    endpoint: TryLock<Option<Endpoint>>,
    /// Bit n: some policy wants operation n. As of `seen`.
    wanted: AtomicU32,
    /// The count of offers when `wanted` was worked out.
    seen: AtomicU64,
    comm_id: AtomicU64,
    /// The context of the plugin below (v11 and later).
    inner: AtomicPtr<c_void>,
    /// `ncclNetCommConfig` for a plugin below of v10, which wants it at each connect.
    pub(crate) traffic_class: AtomicI32,
    /// What NCCL announced last: operation, algorithms, protocols.
    attrs: [AtomicU32; 3],
    /// Events that no policy heard of because another thread was inside for too long.
    missed: AtomicU64,
}

impl Default for Scope {
    fn default() -> Scope {
        Scope {
            endpoint: TryLock::new(None),
            wanted: AtomicU32::new(0),
            seen: AtomicU64::new(0),
            comm_id: AtomicU64::new(0),
            inner: AtomicPtr::default(),
            traffic_class: AtomicI32::new(-1),
            attrs: [const { AtomicU32::new(UNSET) }; 3],
            missed: AtomicU64::new(0),
        }
    }
}

impl Scope {
    /// Makes the slot a new scope. Gives the endpoint back if a thread that panicked still holds the slot: then no policy
    /// hears of this scope.
    pub(crate) fn open(
        &self,
        endpoint: Endpoint,
        inner: *mut c_void,
        traffic_class: i32,
    ) -> Option<Endpoint> {
        self.comm_id.store(endpoint.info().comm_id, Ordering::Relaxed);
        self.inner.store(inner, Ordering::Relaxed);
        self.traffic_class.store(traffic_class, Ordering::Relaxed);
        self.attrs.iter().for_each(|a| a.store(UNSET, Ordering::Relaxed));
        self.missed.store(0, Ordering::Relaxed);
        self.wanted.store(0, Ordering::Relaxed);
        self.seen.store(0, Ordering::Relaxed);
        let mut endpoint = Some(endpoint);
        self.endpoint.enter_once(|slot| *slot = endpoint.take());
        endpoint
    }

    /// Takes the endpoint out, and tells how many events were missed. Waits for a call that is inside.
    pub(crate) fn close(&self) -> (Option<Endpoint>, u64) {
        let mut round = 0;
        loop {
            if let Some(endpoint) = self.endpoint.enter_once(Option::take) {
                return (endpoint, self.missed.load(Ordering::Relaxed));
            }
            if !Patience::Ample.wait(round) {
                return (None, self.missed.load(Ordering::Relaxed));
            }
            round += 1;
        }
    }

    pub(crate) fn inner(&self) -> *mut c_void {
        self.inner.load(Ordering::Relaxed)
    }

    /// Notes what NCCL announces.
    pub(crate) fn announce(&self, op: u32, algo: u32, proto: u32) {
        for (to, from) in self.attrs.iter().zip([op, algo, proto]) {
            to.store(from, Ordering::Relaxed);
        }
    }

    /// Does a policy want that operation?
    #[inline]
    pub(crate) fn wants(&self, op: u32) -> bool {
        self.ops() & 1 << op != 0
    }

    /// Does a policy want any operation of the data path?
    #[inline]
    pub(crate) fn wants_transfers(&self) -> bool {
        self.ops() & TRANSFERS != 0
    }

    /// Is what [`wants`](Scope::wants) says what the newest plan of that count of offers wants?
    pub(crate) fn is_settled(&self, offers: u64) -> bool {
        self.seen.load(Ordering::Acquire) == offers
    }

    #[inline]
    fn ops(&self) -> u32 {
        let offers = crate::reload::offers();
        if self.seen.load(Ordering::Acquire) != offers {
            self.consult(offers);
        }
        self.wanted.load(Ordering::Relaxed)
    }

    /// Works out what the policies want, after a new plan was offered.
    #[cold]
    fn consult(&self, offers: u64) {
        let ops = self.inside(Patience::Little, |endpoint| {
            endpoint.refresh();
            (endpoint.net_ops(), endpoint.is_current())
        });
        // A plan that is just being offered is taken by a later call, which must look again.
        if let Some((ops, current)) = ops {
            self.wanted.store(ops, Ordering::Relaxed);
            if current {
                self.seen.store(offers, Ordering::Release);
            }
        }
    }

    /// Fills in what the scope knows and runs the policies over the context; returns the verdict.
    pub(crate) fn run(&self, mut context: NetContext, patience: Patience) -> u32 {
        context.comm_id = self.comm_id.load(Ordering::Relaxed);
        [context.attr_op, context.attr_algo, context.attr_proto] =
            std::array::from_fn(|i| self.attrs[i].load(Ordering::Relaxed));
        let mut bytes = Bytes::of(&context);
        let ran = self.inside(patience, |endpoint| {
            endpoint.refresh();
            endpoint.run_op(Hook::Net, 1 << context.op, &mut bytes.0)
        });
        if ran.is_none() {
            self.missed.fetch_add(1, Ordering::Relaxed);
        }
        bytes.verdict()
    }

    fn inside<R>(&self, patience: Patience, f: impl FnOnce(&mut Endpoint) -> R) -> Option<R> {
        let mut f = Some(f);
        let mut round = 0;
        loop {
            let entered =
                self.endpoint.enter(|slot| slot.as_mut().zip(f.take()).map(|(endpoint, f)| f(endpoint)));
            if let Some(result) = entered {
                return result;
            }
            if !patience.wait(round) {
                return None;
            }
            round += 1;
        }
    }
}

/// A context as policies read it.
#[repr(align(8))]
struct Bytes([u8; size_of::<NetContext>()]);

impl Bytes {
    #[inline]
    fn of(c: &NetContext) -> Bytes {
        let mut bytes = [0; size_of::<NetContext>()];
        let longs = [c.comm_id, c.conn, c.size, c.time_ns, c.latency_ns];
        for (to, from) in bytes.chunks_exact_mut(8).zip(longs) {
            to.copy_from_slice(&from.to_le_bytes());
        }
        let (a, b) = (
            [c.op, c.dev, c.tag, c.count, c.in_flight],
            [c.result, c.attr_op, c.attr_algo, c.attr_proto, c.verdict],
        );
        for (to, from) in bytes[40..].chunks_exact_mut(4).zip(a.into_iter().chain(b)) {
            to.copy_from_slice(&from.to_le_bytes());
        }
        Bytes(bytes)
    }

    fn verdict(&self) -> u32 {
        self.0.last_chunk().map_or(0, |b| u32::from_le_bytes(*b))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn the_bytes_are_the_context() {
        let context = NetContext {
            comm_id: 1,
            conn: 2,
            size: 3,
            time_ns: 4,
            latency_ns: 5,
            op: 6,
            dev: 7,
            tag: 8,
            count: 9,
            in_flight: 10,
            result: 11,
            attr_op: 12,
            attr_algo: 13,
            attr_proto: 14,
            verdict: 15,
        };
        let bytes = Bytes::of(&context);
        let long = |at: usize| u64::from_le_bytes(bytes.0[at..at + 8].try_into().unwrap());
        let word = |at: usize| u32::from_le_bytes(bytes.0[at..at + 4].try_into().unwrap());
        macro_rules! check {
            ($read:ident: $($field:ident)*) => { $(assert_eq!($read(offset_of!(NetContext, $field)), context.$field);)* };
        }
        check!(long: comm_id conn size time_ns latency_ns);
        check!(word: op dev tag count in_flight result attr_op attr_algo attr_proto verdict);
        assert_eq!(bytes.verdict(), 15);
    }
}
