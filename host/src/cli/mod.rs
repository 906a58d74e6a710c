//! [`Cli`]: the `ringfence` command line, and [`Exit`], what its exit codes mean.
//!
//! Each command is one module with a clap `Args` struct and a `run` function that writes to [`Out`] and
//! returns an [`Exit`]. An `Err` from a command means that it was used wrongly or got input that it cannot
//! read, and becomes [`Exit::Usage`].

use clap::{Parser, Subcommand};
use serde_json::json;
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

mod chain;
mod check;
mod cost;
mod disasm;
mod doctor;
mod explain;
mod fields;
mod hook;
mod import;
mod input;
mod map;
mod metrics;
mod names;
pub(crate) mod number;
mod process;
mod replay;
mod run;
mod schema;
mod status;
mod table;
mod top;
mod trace;
mod translate;

/// What an exit code of `ringfence` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exit {
    /// 0: done; everything that was asked about is accepted.
    Ok,
    /// 1: a policy was refused, a decision failed, a rule of NCCL was broken, or doctor found a fault.
    Refused,
    /// 2: wrong use, or input that is no eBPF object.
    Usage,
    /// 141: nobody reads our output any more (as a shell reports SIGPIPE).
    BrokenPipe,
}

impl Exit {
    fn code(self) -> u8 {
        match self {
            Exit::Ok => 0,
            Exit::Refused => 1,
            Exit::Usage => 2,
            Exit::BrokenPipe => 141,
        }
    }

    /// The graver of two, for commands that look at several files.
    fn or(self, other: Exit) -> Exit {
        if other.code() > self.code() { other } else { self }
    }
}

/// Where a command writes its answer.
type Out<'a> = &'a mut dyn Write;

const AFTER: &str = "Exit codes: 0 accepted or done; 1 refused, or a decision that failed; 2 wrong use, or input that \
                     is no eBPF object.";

/// Checks, inspects, runs and replays eBPF policies for NCCL.
#[derive(Debug, Parser)]
#[command(name = "ringfence", version, after_help = AFTER, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Verify every program of the given objects.
    Check(check::Args),
    /// Show the instructions of an object with its source lines.
    Disasm(disasm::Args),
    /// Verify and translate one program to WebAssembly.
    Translate(translate::Args),
    /// Take one decision with a policy, through verifier, translator and wasmtime.
    Run(run::Args),
    /// Show hooks as data, and make headers from them.
    Schema(schema::Args),
    /// Drive a built plugin over a trace as NCCL does, with a hot reload on request.
    Replay(Box<replay::Args>),
    /// Turn the configuration of NCCL's example tuner (CSV) into a policy.
    ImportCsv(import::Args),
    /// Say what NCCL would load here, and why not.
    Doctor(doctor::Args),
    /// Show what the jobs of this user do with their policies.
    Status(status::Args),
    /// Read and write the maps of a running job.
    Map(map::Args),
    /// Show which policies stand on which hook, and in which order they are asked.
    Chain(chain::Args),
    /// A live table of policies and communicators.
    Top(top::Args),
    /// Write the state of running jobs for Prometheus.
    Metrics(metrics::Args),
}

impl Command {
    fn json(&self) -> bool {
        match self {
            Command::Check(a) => a.json,
            Command::Disasm(_) | Command::Translate(_) => false,
            Command::Run(a) => a.json,
            Command::Schema(a) => a.json(),
            Command::Replay(a) => a.json,
            Command::ImportCsv(a) => a.json,
            Command::Doctor(a) => a.json,
            Command::Status(a) => a.json,
            Command::Map(a) => a.json,
            Command::Chain(a) => a.json(),
            Command::Top(_) | Command::Metrics(_) => false,
        }
    }

    fn run(&self, out: Out<'_>) -> anyhow::Result<Exit> {
        match self {
            Command::Check(a) => check::run(a, out),
            Command::Disasm(a) => disasm::run(a, out),
            Command::Translate(a) => translate::run(a, out),
            Command::Run(a) => run::run(a, out),
            Command::Schema(a) => schema::run(a, out),
            Command::Replay(a) => replay::run(a, out),
            Command::ImportCsv(a) => import::run(a, out),
            Command::Doctor(a) => doctor::run(a, out),
            Command::Status(a) => status::run(a, out),
            Command::Map(a) => map::run(a, out),
            Command::Chain(a) => chain::run(a, out),
            Command::Top(a) => top::run(a, out),
            Command::Metrics(a) => metrics::run(a, out),
        }
    }
}

/// Runs the command line `args` (the first is the program's name) and returns the exit code.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(e) => {
            // Help and version are answers (code 0); the rest is wrong use (code 2). The stream may be closed.
            let _ = e.print();
            return ExitCode::from(e.exit_code() as u8);
        }
    };
    let stdout = io::stdout();
    let mut out = io::BufWriter::new(stdout.lock());
    let result = cli.command.run(&mut out).and_then(|exit| {
        out.flush()?;
        Ok(exit)
    });
    let exit = result.unwrap_or_else(|e| report(&e, cli.command.json(), &mut out));
    ExitCode::from(exit.code())
}

/// Tells the user about an error that ended a command.
fn report(error: &anyhow::Error, json: bool, out: Out<'_>) -> Exit {
    let broken = error
        .chain()
        .filter_map(|e| e.downcast_ref::<io::Error>())
        .any(|e| e.kind() == io::ErrorKind::BrokenPipe);
    if broken {
        return Exit::BrokenPipe;
    }
    if json {
        let _ = writeln!(out, "{}", json!({ "error": format!("{error:#}") })).and_then(|()| out.flush());
    }
    let _ = writeln!(io::stderr(), "ringfence: {error:#}");
    Exit::Usage
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn clap_definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_graver_exit_wins() {
        assert_eq!(Exit::Ok.or(Exit::Refused), Exit::Refused);
        assert_eq!(Exit::Usage.or(Exit::Refused), Exit::Usage);
        assert_eq!(Exit::Ok.or(Exit::Ok), Exit::Ok);
    }
}
