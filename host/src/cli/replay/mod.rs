//! `ringfence replay`: drives a built plugin over a trace as NCCL does.
//!
//! The plugin reads `RINGFENCE_POLICY` from its process's environment and may, if it is broken, take the
//! process down. So the command stages a private copy of the policy, then runs itself again as a child with the
//! variable set; the child opens the plugin ([`session`]) and the parent reports if it dies.

use super::{Exit, Out};
use anyhow::{Context, ensure};
use clap::value_parser;
use stage::Stage;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

mod cpu;
mod group;
mod histogram;
mod model;
mod plot;
mod report;
mod rules;
mod session;
mod simulate;
mod stage;
mod switch;
mod worker;

/// Most contexts (ranks times communicators): each holds a Wasm instance per policy.
const MAX_CONTEXTS: u32 = 16384;
/// Set for the child, which must not inherit another one.
const POLICY_VAR: &str = "RINGFENCE_POLICY";

/// Level of the plugin's log.
const LOG_VAR: &str = "RINGFENCE_LOG";
/// Names of its levels, as the plugin writes them.
const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

/// Arguments of `ringfence replay`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The built plugin.
    #[arg(long, value_name = "SO")]
    plugin: PathBuf,
    /// The policy object or directory to start with.
    #[arg(long, value_name = "PATH")]
    policy: PathBuf,
    /// CSV of `collective,bytes[,count]` lines.
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
    /// Ranks of each communicator; all are driven from this process.
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u32).range(1..=4096))]
    ranks: u32,
    /// Nodes that the ranks are spread over.
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u32).range(1..=4096))]
    nodes: u32,
    /// Communicators; as many as threads if not given.
    #[arg(long, value_parser = value_parser!(u32).range(1..=1024))]
    comms: Option<u32>,
    /// Threads that drive them.
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u32).range(1..=256))]
    threads: u32,
    /// Collectives to replay in all (the trace is repeated); with a reload, as many again follow it.
    #[arg(long, default_value_t = 20_000, value_parser = value_parser!(u64).range(1..=1_000_000_000))]
    calls: u64,
    /// After this many collectives, replace the policy while the replay goes on.
    #[arg(long, value_name = "K", requires = "with")]
    reload_at: Option<u64>,
    /// The policy to switch to.
    #[arg(long, value_name = "PATH", requires = "reload_at")]
    with: Option<PathBuf>,
    /// Tuner version to use instead of the highest that the plugin exports.
    #[arg(long, value_name = "V", value_parser = value_parser!(u32).range(2..=6))]
    tuner_version: Option<u32>,
    #[command(flatten)]
    closed_loop: simulate::LoopArgs,
    /// One JSON object a line.
    #[arg(long)]
    pub(super) json: bool,
    /// (child) Directory of the staged policy.
    #[arg(long, hide = true)]
    staged: Option<PathBuf>,
    /// (child) Only measure the plugin without a policy.
    #[arg(long, hide = true)]
    pass_through: bool,
    /// (child) What the other child measured.
    #[arg(long, hide = true)]
    pass_through_ns: Option<f64>,
}

impl Args {
    fn comms(&self) -> u32 {
        self.comms.unwrap_or(self.threads)
    }

    fn check(&self) -> anyhow::Result<()> {
        ensure!(self.comms() >= self.threads, "{} threads need at least as many communicators", self.threads);
        ensure!(self.nodes <= self.ranks, "{} ranks cannot spread over {} nodes", self.ranks, self.nodes);
        ensure!(self.ranks.is_multiple_of(self.nodes), "--ranks must be a multiple of --nodes");
        let contexts = self.comms() * self.ranks;
        ensure!(contexts <= MAX_CONTEXTS, "{contexts} ranks in all are more than {MAX_CONTEXTS}");
        Ok(())
    }
}

/// Runs the command.
pub(super) fn run(args: &Args, out: Out<'_>) -> anyhow::Result<Exit> {
    if args.pass_through {
        return session::pass_through(args, out);
    }
    args.check()?;
    match &args.staged {
        Some(_) if args.closed_loop.simulates() => simulate::run(args, out),
        Some(root) => session::run(args, root, out),
        None => parent(args),
    }
}

fn parent(args: &Args) -> anyhow::Result<Exit> {
    super::trace::load(&args.trace)?;
    if args.closed_loop.profiles() {
        args.closed_loop.scenario()?;
    }
    ensure!(args.plugin.is_file(), "{} is no file", args.plugin.display());
    let temp =
        tempfile::Builder::new().prefix("ringfence-replay-").tempdir().context("cannot stage the policy")?;
    let stage = Stage::create(temp.path(), &args.policy, args.with.is_some())?;
    if let Some(with) = &args.with {
        // Wrong input is told before anything runs; the child switches to it.
        stage.check(with)?;
    }
    let baseline = if args.closed_loop.simulates() { None } else { measure_pass_through() };
    let mut child = myself()?;
    child.env(POLICY_VAR, stage.policy()).arg("--staged").arg(temp.path());
    if let Some(ns) = baseline {
        child.arg("--pass-through-ns").arg(ns.to_string());
    }
    if std::env::var_os(LOG_VAR).is_none() {
        child.env(LOG_VAR, "info");
    }
    let mut child = child.stderr(Stdio::piped()).spawn().context("cannot start the replay")?;
    if let Some(stderr) = child.stderr.take() {
        pass_on(stderr);
    }
    let status = child.wait().context("cannot wait for the replay")?;
    if let Some(signal) = status.signal() {
        eprintln!("ringfence: the plugin took the process down (signal {signal})");
        if args.json {
            println!("{}", serde_json::json!({"event": "crash", "signal": signal}));
        }
        return Ok(Exit::Refused);
    }
    Ok(match status.code() {
        Some(0) => Exit::Ok,
        Some(2) => Exit::Usage,
        Some(141) => Exit::BrokenPipe,
        _ => Exit::Refused,
    })
}

/// Hands on what the child writes to standard error, but for the plugin's log lines, which the report has.
fn pass_on(stderr: impl Read) {
    let mut reader = BufReader::new(stderr);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
        let logged = LEVELS.iter().any(|level| line.starts_with(format!("ringfence {level}: ").as_bytes()));
        if !logged {
            let _ = io::stderr().write_all(&line);
        }
        line.clear();
    }
}

/// This command again, with the same arguments.
fn myself() -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
    command.args(std::env::args_os().skip(1));
    Ok(command)
}

/// Nanoseconds of CPU per call of the plugin without a policy; `None` if it cannot be told. A plain comparison, so
/// its failure is no error.
fn measure_pass_through() -> Option<f64> {
    let mut command = myself().ok()?;
    command.env_remove(POLICY_VAR).arg("--pass-through").stderr(Stdio::null());
    let output = command.output().ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}
