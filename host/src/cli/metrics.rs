//! `ringfence metrics`: the state of jobs for Prometheus.

use super::{Exit, Out, process};
use crate::observe::{prometheus, replace};
use anyhow::Context;
use std::path::PathBuf;

/// Arguments of `ringfence metrics`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Only this process; all of this user without it.
    #[arg(long, value_name = "PID")]
    pid: Option<process::Pid>,
    /// Write to this file, in one step, instead of to standard output.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Runs the command.
pub(super) fn run(args: &Args, out: Out<'_>) -> anyhow::Result<Exit> {
    let found = process::find(args.pid)?;
    let statuses: Vec<_> = found.into_iter().map(|p| p.status).collect();
    let text = prometheus::render(&statuses);
    match &args.out {
        Some(path) => {
            replace(path, text.as_bytes()).with_context(|| format!("cannot write {}", path.display()))?
        }
        None => out.write_all(text.as_bytes())?,
    }
    match args.pid {
        Some(pid) if statuses.is_empty() => {
            eprintln!("ringfence: process {pid} {}", process::nothing());
            Ok(Exit::Refused)
        }
        _ => Ok(Exit::Ok),
    }
}
