//! [`Conn`]: a connection, or a listening end, of the plugin below.

use super::requests::Requests;
use super::table::{Table, Tag};
use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// All connections of the process.
pub(crate) static CONNS: Table<Conn> = Table::new(Tag::Conn);

/// The next connection's number. 0 stands for none.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

/// What stands behind a `sendComm`, `recvComm` or `listenComm` of NCCL.
#[derive(Default)]
pub(crate) struct Conn {
    /// What the plugin below calls it.
    inner: AtomicPtr<c_void>,
    /// Key of the scope that it belongs to.
    scope: AtomicU64,
    number: AtomicU64,
    dev: AtomicU32,
    /// The count of [`offers`](crate::reload::offers) at which no policy cared for transfers of this connection.
    quiet: AtomicU64,
    pub(crate) requests: Requests,
}

impl Conn {
    /// Makes the slot a new connection.
    pub(crate) fn open(&self, inner: *mut c_void, scope: u64, dev: u32) {
        self.inner.store(inner, Ordering::Relaxed);
        self.scope.store(scope, Ordering::Relaxed);
        self.number.store(NUMBERS.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        self.dev.store(dev, Ordering::Relaxed);
        self.quiet.store(0, Ordering::Relaxed);
        self.requests.clear();
    }

    #[inline]
    pub(crate) fn inner(&self) -> *mut c_void {
        self.inner.load(Ordering::Relaxed)
    }

    pub(crate) fn scope(&self) -> u64 {
        self.scope.load(Ordering::Relaxed)
    }

    /// Unique in the process.
    pub(crate) fn number(&self) -> u64 {
        self.number.load(Ordering::Relaxed)
    }

    pub(crate) fn dev(&self) -> u32 {
        self.dev.load(Ordering::Relaxed)
    }

    /// Does no policy care for its transfers, as of the newest plan?
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet.load(Ordering::Relaxed) == crate::reload::offers()
    }

    /// From now on, until somebody offers a plan, its transfers are not looked at.
    pub(crate) fn hush(&self, offers: u64) {
        self.quiet.store(offers, Ordering::Relaxed);
    }
}
