//! [`NcclLogger`]: NCCL's own log, as a safe call.

use super::types::{Logger, level, subsys};
use std::ffi::CString;

/// Longest text passed on, in bytes: NCCL's line buffer has 1024, prefix included.
const MAX_TEXT: usize = 900;

/// Importance of a line in NCCL's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Shown from `NCCL_DEBUG=WARN` on; the text also becomes `ncclGetLastError`.
    Warn,
    /// Shown from `NCCL_DEBUG=INFO` on.
    Info,
    /// Shown with `NCCL_DEBUG=TRACE`.
    Trace,
}

/// The logger that NCCL gave to `init`.
#[derive(Clone, Copy)]
pub struct NcclLogger(Logger);

impl NcclLogger {
    /// Takes the function that NCCL passed; null means that there is none.
    ///
    /// # Safety
    /// `logger` is NCCL's, and its library stays loaded for as long as the value is used.
    pub unsafe fn new(logger: Option<Logger>) -> Option<NcclLogger> {
        logger.map(NcclLogger)
    }

    /// The function itself, for a plugin that is chained behind us.
    pub(crate) fn function(self) -> Logger {
        self.0
    }

    /// Writes one line under INIT and TUNING. NCCL shows only INIT, BOOTSTRAP and ENV unless
    /// `NCCL_DEBUG_SUBSYS` says otherwise, hence INIT. The text is never a format; it is cut to fit NCCL's buffer,
    /// and line ends and NULs become blanks.
    pub fn line(self, severity: Severity, text: &str) {
        let mut end = text.len().min(MAX_TEXT);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let clean: Vec<u8> = text.as_bytes()[..end]
            .iter()
            .map(|b| if matches!(b, 0 | b'\n' | b'\r') { b' ' } else { *b })
            .collect();
        let Ok(clean) = CString::new(clean) else { return };
        let level = match severity {
            Severity::Warn => level::WARN,
            Severity::Info => level::INFO,
            Severity::Trace => level::TRACE,
        };
        let flags = subsys::INIT | subsys::TUNING;
        // SAFETY: the function is NCCL's (see `new`); all strings are C strings that outlive the call, and "%s" takes
        // exactly the one that follows.
        unsafe { (self.0)(level, flags, c"ringfence".as_ptr(), 0, c"%s".as_ptr(), clean.as_ptr()) };
    }
}

impl std::fmt::Debug for NcclLogger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NcclLogger")
    }
}
