//! `enter`: the wall around every entry from NCCL. A panic stops here, the caller always sees success.

use super::types::{NcclResult, SUCCESS};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

static PANICS: AtomicU64 = AtomicU64::new(0);

/// Runs `body` and returns success, whatever happens in it. A panic is counted, never passed on: unwinding
/// through NCCL's frames is undefined, and an error code would end the training job.
///
/// `AssertUnwindSafe` is sound here because a communicator whose call panicked keeps its try-lock (see
/// [`super::handles`]) and is never entered again.
#[inline]
pub(crate) fn enter(body: impl FnOnce()) -> NcclResult {
    if catch_unwind(AssertUnwindSafe(body)).is_err() {
        count_panic();
    }
    SUCCESS
}

#[cold]
fn count_panic() {
    PANICS.fetch_add(1, Ordering::Relaxed);
}

/// Panics caught at the border since the library was loaded.
pub fn panics() -> u64 {
    PANICS.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_success_and_is_counted() {
        let before = panics();
        assert_eq!(enter(|| panic!("on purpose")), SUCCESS);
        assert_eq!(panics(), before + 1);
        assert_eq!(enter(|| ()), SUCCESS);
        assert_eq!(panics(), before + 1);
    }
}
