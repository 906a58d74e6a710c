//! [`Warning`]: what NCCL's example tuner silently misreads, and [`Sink`], which collects a bounded number of them.

use std::fmt;

/// Most warnings that are kept; the rest is counted.
const MAX_WARNINGS: usize = 1000;
/// Most bytes of the file's own text in a message.
const MAX_QUOTE: usize = 40;

/// Something in a configuration that does not do what it seems to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// Line of the file, from 1; 0 for the file as a whole.
    pub line: u32,
    /// Its kind, in kebab case.
    pub code: &'static str,
    /// What is read, and how it differs from what is written.
    pub message: String,
    /// How to write what is meant.
    pub fix: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "warning[{}]: {}\n    fix: {}", self.code, self.message, self.fix)
    }
}

/// Collects warnings.
#[derive(Debug, Default)]
pub(super) struct Sink {
    pub(super) kept: Vec<Warning>,
    pub(super) dropped: usize,
}

impl Sink {
    pub(super) fn warn(
        &mut self,
        line: u32,
        code: &'static str,
        message: impl Into<String>,
        fix: impl Into<String>,
    ) {
        if self.kept.len() < MAX_WARNINGS {
            self.kept.push(Warning { line, code, message: message.into(), fix: fix.into() });
        } else {
            self.dropped += 1;
        }
    }
}

/// Text of the file in quotes, fit to print: short, without control characters.
pub(super) fn quote(text: &[u8]) -> String {
    let cut = &text[..text.len().min(MAX_QUOTE)];
    let clean = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    let shown: String = String::from_utf8_lossy(cut).chars().map(clean).collect();
    format!("\"{shown}{}\"", if cut.len() < text.len() { "..." } else { "" })
}
