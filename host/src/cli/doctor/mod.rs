//! [`Finding`]: `ringfence doctor`, what NCCL would load here and why not.

use super::{Exit, Out};
use serde_json::json;
use std::path::{Path, PathBuf};

mod library;
mod nccl;
mod policy;
mod search;
mod system;

/// Arguments of `ringfence doctor`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The plugin's file or name; otherwise what NCCL_TUNER_PLUGIN, nccl.conf and the library path give.
    #[arg(long, value_name = "SO")]
    plugin: Option<PathBuf>,
    /// The policy object or directory; otherwise RINGFENCE_POLICY.
    #[arg(long, value_name = "PATH")]
    policy: Option<PathBuf>,
    /// One JSON object a line.
    #[arg(long)]
    pub(super) json: bool,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Ok,
    Warn,
    Fail,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Warn => "warn",
            Level::Fail => "fail",
        }
    }
}

/// One line of the report.
#[derive(Debug)]
struct Finding {
    level: Level,
    /// What was looked at, in kebab case.
    topic: &'static str,
    message: String,
    /// What to do about it; empty for `ok`.
    advice: String,
}

/// The report under construction.
#[derive(Debug, Default)]
struct Report(Vec<Finding>);

impl Report {
    fn ok(&mut self, topic: &'static str, message: impl Into<String>) {
        self.0.push(Finding { level: Level::Ok, topic, message: message.into(), advice: String::new() });
    }
    fn warn(&mut self, topic: &'static str, message: impl Into<String>, advice: impl Into<String>) {
        self.0.push(Finding { level: Level::Warn, topic, message: message.into(), advice: advice.into() });
    }
    fn fail(&mut self, topic: &'static str, message: impl Into<String>, advice: impl Into<String>) {
        self.0.push(Finding { level: Level::Fail, topic, message: message.into(), advice: advice.into() });
    }

    fn worst(&self) -> Level {
        self.0.iter().map(|f| f.level).max().unwrap_or(Level::Ok)
    }

    fn print(&self, json: bool, out: Out<'_>) -> std::io::Result<()> {
        for f in &self.0 {
            if json {
                let advice = (!f.advice.is_empty()).then_some(&f.advice);
                let line = json!({"level": f.level.name(), "topic": f.topic, "message": f.message, "advice": advice});
                writeln!(out, "{line}")?;
            } else {
                writeln!(out, "{:<4}  {:<14} {}", f.level.name(), f.topic, f.message)?;
                if !f.advice.is_empty() {
                    writeln!(out, "                     -> {}", f.advice)?;
                }
            }
        }
        Ok(())
    }
}

/// Runs the command: exit code 1 if anything fails.
pub(super) fn run(args: &Args, out: Out<'_>) -> anyhow::Result<Exit> {
    let mut report = Report::default();
    if let Some(path) = search::locate(args.plugin.as_deref(), &mut report) {
        library::inspect(&path, &mut report);
    }
    let policy = args.policy.clone().or_else(|| std::env::var_os("RINGFENCE_POLICY").map(PathBuf::from));
    policy::inspect(policy.as_deref().filter(|p| *p != Path::new("")), &mut report);
    system::inspect(&mut report);
    report.print(args.json, out)?;
    if !args.json {
        let count = |level| report.0.iter().filter(|f| f.level == level).count();
        writeln!(out, "\n{} ok, {} warn, {} fail", count(Level::Ok), count(Level::Warn), count(Level::Fail))?;
    }
    Ok(if report.worst() == Level::Fail { Exit::Refused } else { Exit::Ok })
}
