//! `ringfence-nccl`: the worker of the scenarios, and the table of their findings.

use std::fs;

use anyhow::Result;
use clap::{Parser, Subcommand};
use ringfence_nccl::record::Record;
use ringfence_nccl::{record, report, scenarios, worker};

/// Stock NCCL releases call our plugin on a machine without a GPU.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Carry out the script on standard input: one process of a scenario
    Worker,
    /// Write docs/nccl-behaviour.md from tests/nccl/behaviour.toml
    Report,
    /// List the scenarios
    List,
}

fn main() -> Result<()> {
    match Args::parse().command {
        Command::Worker => worker::run(),
        Command::Report => {
            let record = Record::read(&record::path())?;
            Ok(fs::write(report::path(), report::table(&record, &scenarios::all()))?)
        }
        Command::List => {
            for scenario in scenarios::all() {
                println!("{}: {}", scenario.name, scenario.about);
            }
            Ok(())
        }
    }
}
