//! Plugin for the bpf_conformance runner: runs one eBPF program on the product's own path and prints r0.
//!
//! ```text
//! ringfence-conformance [MEMORY_HEX] [OPTION...] < PROGRAM_HEX
//! ```
//! Memory and program are bytes in hex, with or without spaces; the program is one line of standard input, or what
//! `--program` gives. r1 points to the memory and r2 is its size. Prints r0 in hex and exits
//! with 0; otherwise one line on standard error, and 1 for a program that is refused or faults, 2 for a wrong use.
//!
//! | option | meaning |
//! |---|---|
//! | `--program HEX` | the program, instead of standard input |
//! | `--elf` | the program is an ELF object with one program |
//! | `--verify` | verify the program (hook `generic`); without it, it runs unverified, in the sandbox alone |
//! | `--wat` | print the translation as well, on standard error |
//! | `--debug`, `--cpu_version V`, `--cpu-version V` | accepted for runners that pass them; change nothing |

use anyhow::{Context, Result, anyhow, bail, ensure};
use ringfence_host::raw;
use ringfence_translator::verify::Verifier;
use ringfence_translator::wasm::layout::CTX_MAX;
use ringfence_translator::{Env, Object, Program, Translator, translate_unverified};
use std::io::Read;
use std::process::ExitCode;
use std::sync::Arc;

/// Fuel of a run; the longest test needs some thousands.
const FUEL: u64 = 100_000_000;
/// Most bytes read from standard input: hex text of the largest object, with a space after each byte.
const MAX_INPUT: u64 = 3 * (16 << 20);

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => return failure(2, &error),
    };
    match run(options) {
        Ok(r0) => {
            println!("{r0:x}");
            ExitCode::SUCCESS
        }
        Err(error) => failure(1, &error),
    }
}

fn failure(code: u8, error: &anyhow::Error) -> ExitCode {
    eprintln!("{error:#}");
    ExitCode::from(code)
}

#[derive(Default)]
struct Options {
    memory: Vec<u8>,
    program: Option<String>,
    elf: bool,
    verify: bool,
    wat: bool,
}

impl Options {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Options> {
        let mut options = Options::default();
        let mut memory = None;
        while let Some(arg) = args.next() {
            let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--program" => options.program = Some(value()?),
                "--elf" => options.elf = true,
                "--verify" => options.verify = true,
                "--wat" => options.wat = true,
                "--debug" => {}
                "--cpu_version" | "--cpu-version" => drop(value()?),
                other if other.starts_with("--") => bail!("unknown option {other}"),
                _ => {
                    ensure!(memory.is_none(), "two arguments for the memory");
                    memory = Some(hex(&arg).context("memory")?);
                }
            }
        }
        options.memory = memory.unwrap_or_default();
        ensure!(options.memory.len() <= CTX_MAX as usize, "memory of more than {CTX_MAX} bytes");
        Ok(options)
    }

    fn program(&mut self) -> Result<Program> {
        let text = match self.program.take() {
            Some(text) => text,
            None => {
                let mut text = String::new();
                std::io::stdin().take(MAX_INPUT).read_to_string(&mut text).context("standard input")?;
                text
            }
        };
        let bytes = hex(&text).context("program")?;
        if !self.elf {
            return Ok(Program::from_code("main", &bytes)?);
        }
        let object = Object::parse(&bytes)?;
        let mut specs = object.programs();
        let (Some(spec), None) = (specs.next(), specs.next()) else {
            bail!("{} programs in the object, need one", object.programs().len());
        };
        Ok(object.program(spec.name())?)
    }
}

/// Bytes from pairs of hex digits; white space may stand between pairs.
fn hex(text: &str) -> Result<Vec<u8>> {
    let digit = |c: char| c.to_digit(16).ok_or_else(|| anyhow!("{c:?} is no hex digit"));
    text.split_whitespace().try_fold(Vec::new(), |mut bytes, word| {
        let digits: Vec<u32> = word.chars().map(digit).collect::<Result<_>>()?;
        ensure!(digits.len().is_multiple_of(2), "odd number of hex digits in {word:?}");
        bytes.extend(digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8));
        Ok(bytes)
    })
}

fn run(mut options: Options) -> Result<u64> {
    let program = options.program()?;
    let mut memory = std::mem::take(&mut options.memory);
    if options.verify {
        return run_verified(program, &mut memory, options.wat);
    }
    let module = translate_unverified(&program, &Env::base_helpers())?;
    print_wat(module.bytes(), options.wat)?;
    Ok(raw::run_unverified(&module, &mut memory, FUEL)?)
}

fn run_verified(program: Program, memory: &mut [u8], wat: bool) -> Result<u64> {
    let env = Arc::new(Env::generic(memory.len() as u32));
    let verified = Verifier::new(env).verify(program)?;
    let module = Translator::new().translate(&verified)?;
    print_wat(module.bytes(), wat)?;
    ringfence_tests::run::verified(module, memory, FUEL)
}

fn print_wat(wasm: &[u8], wanted: bool) -> Result<()> {
    if wanted {
        eprintln!("{}", wasmprinter::print_bytes(wasm)?);
    }
    Ok(())
}
