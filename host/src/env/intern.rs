//! [`Interner`]: the answers that NCCL was given, kept to the end of the process.

use std::collections::HashSet;
use std::ffi::{CStr, CString};

/// Most different answers, and most bytes of them, in a process. NCCL has some 200 settings; a policy that makes up new values
/// all the time reaches the end here and not in the memory of the job.
const MAX_ANSWERS: usize = 4096;
const MAX_BYTES: usize = 1 << 20;

/// Strings that are never freed: NCCL holds an answer until it asks for the same name again, and some to its very end.
#[derive(Default)]
pub(crate) struct Interner {
    known: HashSet<&'static CStr>,
    bytes: usize,
    refused: u64,
}

impl Interner {
    /// The answer as a C string that stays; `None` if it holds a NUL, or if there were too many. The same answer is the same string.
    pub(crate) fn keep(&mut self, answer: Vec<u8>) -> Option<&'static CStr> {
        let text = CString::new(answer).ok()?;
        if let Some(known) = self.known.get(text.as_c_str()) {
            return Some(known);
        }
        let bytes = text.as_bytes_with_nul().len();
        if self.known.len() >= MAX_ANSWERS || self.bytes + bytes > MAX_BYTES {
            self.refused += 1;
            return None;
        }
        self.bytes += bytes;
        let kept: &'static CStr = Box::leak(text.into_boxed_c_str());
        self.known.insert(kept);
        Some(kept)
    }

    /// Answers that there was no room for.
    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_answer_is_the_same_string() {
        let mut interner = Interner::default();
        let a = interner.keep(b"Ring".to_vec()).unwrap();
        assert_eq!(a, c"Ring");
        assert!(std::ptr::eq(a, interner.keep(b"Ring".to_vec()).unwrap()));
        assert_ne!(a.as_ptr(), interner.keep(b"Tree".to_vec()).unwrap().as_ptr());
        assert_eq!(interner.keep(b"a\0b".to_vec()), None);
        assert_eq!(interner.keep(Vec::new()).unwrap(), c"");
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut interner = Interner::default();
        let kept = (0..10_000).filter(|n: &u32| interner.keep(n.to_string().into_bytes()).is_some()).count();
        assert_eq!((kept, interner.refused()), (MAX_ANSWERS, 10_000 - MAX_ANSWERS as u64));
        assert!(interner.keep(b"17".to_vec()).is_some(), "what is known stays known");
        let mut interner = Interner::default();
        assert!(interner.keep(vec![b'x'; MAX_BYTES]).is_none());
        assert!(interner.keep(vec![b'x'; MAX_BYTES - 1]).is_some());
        assert!(interner.keep(b"y".to_vec()).is_none());
    }
}
