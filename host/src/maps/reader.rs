//! [`Reader`]: an instance's part in [`Grace`], and how a map becomes one from which entries are deleted.

use super::grace::Grace;
use crate::memory::{can_fence_all_threads, fence_all_threads};
use std::cell::Cell;
use std::sync::{Arc, OnceLock};

/// Instances that may look up in hashes at a time, in the whole process: 256 KiB.
const READERS: usize = 4096;

/// The one of this process. Maps may be shared by any instances, so their readers are known to all maps.
pub(super) fn grace() -> Arc<Grace> {
    static GRACE: OnceLock<Arc<Grace>> = OnceLock::new();
    Arc::clone(GRACE.get_or_init(|| Arc::new(Grace::new(READERS))))
}

/// Can a fence be forced upon all threads here? If not, every look-up in a hash takes its own.
pub(super) fn is_asymmetric() -> bool {
    static ASYMMETRIC: OnceLock<bool> = OnceLock::new();
    *ASYMMETRIC.get_or_init(can_fence_all_threads)
}

/// After this, the notes of all calls under way are visible.
pub(super) fn make_notes_visible() -> bool {
    !is_asymmetric() || fence_all_threads()
}

/// An instance that looks up in hashes. It belongs to one thread at a time.
#[derive(Debug)]
pub(crate) struct Reader {
    grace: Arc<Grace>,
    number: u32,
    /// The note of the running call was made visible.
    settled: Cell<bool>,
}

impl Reader {
    /// A new one; `None` if there are too many.
    pub(crate) fn join() -> Option<Reader> {
        let grace = grace();
        let number = grace.join()?;
        Some(Reader { grace, number, settled: Cell::new(false) })
    }

    /// A call begins.
    #[inline]
    pub(crate) fn enter(&self) {
        self.settled.set(false);
        self.grace.enter(self.number);
    }

    /// To be called before a look-up in a map that [`reclaims`](super::Map::reclaims).
    #[inline]
    pub(crate) fn settle(&self) {
        if !self.settled.get() {
            self.settled.set(true);
            self.grace.settle(self.number);
        }
    }

    /// The call is over.
    #[inline]
    pub(crate) fn exit(&self) {
        self.grace.exit(self.number);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.grace.leave(self.number);
    }
}
