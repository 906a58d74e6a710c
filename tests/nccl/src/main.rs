//! `ringfence-nccl`: the worker of the scenarios, and the table of their findings.

use std::fs;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use ringfence_nccl::record::Record;
use ringfence_nccl::versions::{LIBRARIES, libraries};
use ringfence_nccl::{Lab, demo, native, record, report, scenarios, worker};

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
    /// Decisions by size and a reload, with the first NCCL of RINGFENCE_NCCL_LIBS
    Demo,
}

fn show() -> Result<()> {
    let value = std::env::var(LIBRARIES).unwrap_or_default();
    let (version, library) =
        libraries(&value)?.into_iter().next().with_context(|| format!("{LIBRARIES} is not set"))?;
    let scratch = native::repository().join("target/nccl/scratch/demo");
    demo::run(&Lab::new(version, library, std::env::current_exe()?, scratch)?)
}

fn main() -> Result<()> {
    match Args::parse().command {
        Command::Worker => worker::run(),
        Command::Report => {
            let record = Record::read(&record::path())?;
            Ok(fs::write(report::path(), report::table(&record, &scenarios::all()))?)
        }
        Command::Demo => show(),
        Command::List => {
            for scenario in scenarios::all() {
                println!("{}: {}", scenario.name, scenario.about);
            }
            Ok(())
        }
    }
}
