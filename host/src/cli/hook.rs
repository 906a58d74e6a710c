//! [`parse`]: hooks on the command line.

use crate::hooks::Hook;

/// The hook of that name, for clap.
pub(crate) fn parse(text: &str) -> Result<Hook, String> {
    Hook::parse(text).ok_or_else(|| format!("no such hook; there are {}", names()))
}

/// All names, for messages.
pub(crate) fn names() -> String {
    Hook::ALL.map(Hook::name).join(", ")
}
