//! [`HookArgs`]: `--hook` and `--schema` on the command line.

use super::schema;
use crate::hooks::Hook;
use anyhow::Context;
use std::path::PathBuf;

/// Which hook a program is for.
#[derive(Debug, clap::Args)]
pub(super) struct HookArgs {
    /// Take programs as for this hook (tuner, profiler, ...), whatever their sections say.
    #[arg(long, value_name = "NAME")]
    hook: Option<String>,
    /// Schema of a library's hook, so that its sections and --hook know it. May be repeated.
    #[arg(long, value_name = "FILE")]
    schema: Vec<PathBuf>,
}

impl HookArgs {
    /// Reads the schemas; then the hook that was asked for, if one was.
    pub(super) fn resolve(&self) -> anyhow::Result<Option<Hook>> {
        schema::intern_all(&self.schema)?;
        self.hook.as_deref().map(parse).transpose()
    }
}

/// The hook of that name.
fn parse(text: &str) -> anyhow::Result<Hook> {
    Hook::parse(text).with_context(|| {
        format!("no hook is called \"{text}\"; there are {}; others come with --schema FILE", names())
    })
}

/// All names, for messages.
pub(super) fn names() -> String {
    Hook::offered().chain([Hook::Generic]).map(Hook::name).collect::<Vec<_>>().join(", ")
}
