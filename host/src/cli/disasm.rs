//! `ringfence disasm`: instructions with the lines of source between them.

use super::{Exit, Out, input};
use std::path::PathBuf;

/// Arguments of `ringfence disasm`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// eBPF object.
    file: PathBuf,
    /// Only this program.
    #[arg(long, value_name = "NAME")]
    program: Option<String>,
}

/// Runs the command: exit code 1 if a program cannot be linked or decoded.
pub(super) fn run(args: &Args, out: Out<'_>) -> anyhow::Result<Exit> {
    let object = input::load_object(&args.file)?;
    if let Some(name) = &args.program {
        let program = input::choose_program(&object, Some(name))?;
        writeln!(out, "; program {} (section {})", program.name(), program.section())?;
        write!(out, "{}", program.disassemble())?;
        return Ok(Exit::Ok);
    }
    let mut exit = Exit::Ok;
    for (i, spec) in object.programs().enumerate() {
        if i > 0 {
            writeln!(out)?;
        }
        writeln!(out, "; program {} (section {})", spec.name(), spec.section())?;
        match object.program(spec.name()) {
            Ok(program) => write!(out, "{}", program.disassemble())?,
            Err(e) => {
                writeln!(out, "; cannot be linked: {e}")?;
                exit = Exit::Refused;
            }
        }
    }
    Ok(exit)
}
