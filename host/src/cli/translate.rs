//! `ringfence translate`: one program, verified, as WebAssembly.

use super::check::Refusal;
use super::{Exit, Out, hook, input};
use crate::hooks::Hook;
use anyhow::{Context, ensure};
use ringfence_translator::Program;
use ringfence_translator::verify::{Verified, Verifier};
use ringfence_translator::wasm::Translator;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Arguments of `ringfence translate`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// eBPF object.
    file: PathBuf,
    /// Where to write; text goes to standard output if not given.
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,
    /// Write WebAssembly text instead of a binary module.
    #[arg(long)]
    wat: bool,
    /// The program, where the object holds several.
    #[arg(long, value_name = "NAME")]
    program: Option<String>,
    #[command(flatten)]
    hook: hook::HookArgs,
}

/// Runs the command: exit code 1 if the program is refused; nothing is written then.
pub(super) fn run(args: &Args, out: Out<'_>) -> anyhow::Result<Exit> {
    ensure!(args.wat || args.output.is_some(), "a binary module needs -o OUT.wasm (or --wat for text)");
    let object = input::load_object(&args.file)?;
    let program = input::choose_program(&object, args.program.as_deref())?;
    let hook = hook_of(&program, args.hook.resolve()?)?;
    let Some(verified) = verify(program, hook)? else { return Ok(Exit::Refused) };
    let module = Translator::new()
        .translate(&verified)
        .map_err(|e| anyhow::anyhow!("{}: {e}", args.file.display()))?;
    if args.wat {
        let text = wasmprinter::print_bytes(module.bytes()).context("the module cannot be printed")?;
        match &args.output {
            Some(path) => write(path, text.as_bytes())?,
            None => write!(out, "{text}")?,
        }
    } else if let Some(path) = &args.output {
        write(path, module.bytes())?;
    }
    Ok(Exit::Ok)
}

fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

/// The hook that is asked for, or that the section names.
pub(super) fn hook_of(program: &Program, asked: Option<Hook>) -> anyhow::Result<Hook> {
    asked.or_else(|| Hook::from_section(program.section())).with_context(|| {
        format!("section \"{}\" names no hook; say --hook ({})", program.section(), hook::names())
    })
}

/// Verifies; tells a refusal on standard error and gives `None`.
fn verify(program: Program, hook: Hook) -> io::Result<Option<Verified>> {
    match Verifier::new(hook.env()).verify(program) {
        Ok(verified) => Ok(Some(verified)),
        Err(rejection) => {
            Refusal::of_rejection(&rejection).print(&mut io::stderr())?;
            Ok(None)
        }
    }
}
