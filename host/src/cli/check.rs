//! [`Verdict`]: `ringfence check`, the verifier's answer for every program of an object.

use super::{Exit, Out, explain, hook, input};
use crate::hooks::Hook;
use anyhow::Context;
use ringfence_translator::verify::{Explanation, Verifier};
use ringfence_translator::{At, Error, Object, Program, Rejection, SourceLine, Stats, Verified};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Arguments of `ringfence check`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// eBPF objects.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    hook: hook::HookArgs,
    /// For each refusal: the whole path, registers and stack, and an example of a fix.
    #[arg(long)]
    explain: bool,
    /// Write what the verifier does, step by step, in the notation of the kernel's log: to FILE, or else before the
    /// verdict (with --json, to standard error).
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    log: Option<Option<PathBuf>>,
    /// Lines of the log for one program.
    #[arg(long, value_name = "LINES", default_value_t = 100_000)]
    log_limit: u64,
    /// One JSON object a line.
    #[arg(long)]
    pub(super) json: bool,
}

/// Runs the command.
pub(super) fn run(args: &Args, out: Out<'_>) -> anyhow::Result<Exit> {
    let mut exit = Exit::Ok;
    let hook = args.hook.resolve()?;
    let mut log = LogFile::open(args)?;
    for file in &args.files {
        let object = match input::load_object(file) {
            Ok(object) => object,
            Err(e) => {
                unreadable(file, &e, args.json, out)?;
                exit = exit.or(Exit::Usage);
                continue;
            }
        };
        for verdict in judge_all(&object, hook) {
            if verdict.refusal.is_some() {
                exit = exit.or(Exit::Refused);
            }
            log.write(args, &object, &verdict, hook, out)?;
            let explanation = verdict.refusal.as_ref().and_then(|_| verdict.explain(&object, hook));
            verdict.print(file, args, explanation.as_ref(), out)?;
        }
    }
    log.close()?;
    Ok(exit)
}

/// Where `--log` goes.
enum LogFile {
    Nowhere,
    Output,
    File(BufWriter<File>),
}

impl LogFile {
    fn open(args: &Args) -> anyhow::Result<LogFile> {
        Ok(match &args.log {
            None => LogFile::Nowhere,
            Some(None) => LogFile::Output,
            Some(Some(path)) => {
                let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
                LogFile::File(BufWriter::new(file))
            }
        })
    }

    fn write(
        &mut self,
        args: &Args,
        object: &Object,
        v: &Verdict,
        hook: Option<Hook>,
        out: Out<'_>,
    ) -> io::Result<()> {
        let mut stderr = io::stderr();
        let to: Out<'_> = match self {
            LogFile::Nowhere => return Ok(()),
            LogFile::Output if args.json => &mut stderr,
            LogFile::Output => out,
            LogFile::File(file) => file,
        };
        let Some((verifier, program)) = v.load(object, hook) else { return Ok(()) };
        writeln!(to, "log of {} ({})", v.program, v.section)?;
        verifier.log(&program, to, args.log_limit)
    }

    fn close(self) -> io::Result<()> {
        match self {
            LogFile::File(mut file) => file.flush(),
            LogFile::Nowhere | LogFile::Output => Ok(()),
        }
    }
}

fn unreadable(file: &Path, error: &anyhow::Error, json: bool, out: Out<'_>) -> io::Result<()> {
    if json {
        writeln!(out, "{}", json!({"file": file.to_string_lossy(), "error": format!("{error:#}")}))
    } else {
        out.flush()?;
        writeln!(io::stderr(), "ringfence: {error:#}")
    }
}

/// Why a program was refused.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) kind: String,
    /// Slot from the program's start, where one is at fault.
    pub(super) pc: Option<u32>,
    pub(super) source: Option<SourceLine>,
    /// What was found and what is needed, without the place.
    pub(super) message: String,
    /// The whole as one line.
    pub(super) line: String,
    pub(super) hint: Option<String>,
}

/// The answer for one program.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) program: String,
    section: String,
    pub(super) refusal: Option<Refusal>,
    stats: Stats,
    /// Linking, decoding and verifying.
    micros: u64,
}

/// Checks all programs of an object.
pub(super) fn judge_all(object: &Object, hook: Option<Hook>) -> Vec<Verdict> {
    object
        .programs()
        .map(|spec| {
            let start = Instant::now();
            let (result, stats) = judge(object, spec.name(), spec.section(), hook);
            Verdict {
                program: spec.name().to_owned(),
                section: spec.section().to_owned(),
                refusal: result.err(),
                stats,
                micros: start.elapsed().as_micros() as u64,
            }
        })
        .collect()
}

/// Links and verifies one program as `hook`, or else as its section says.
fn judge(object: &Object, name: &str, section: &str, hook: Option<Hook>) -> (Result<(), Refusal>, Stats) {
    let Some(hook) = hook.or_else(|| Hook::from_section(section)) else {
        return (Err(Refusal::unknown_hook(section)), Stats::default());
    };
    let program = match object.program(name) {
        Ok(program) => program,
        Err(e) => return (Err(Refusal::of_error(&e)), Stats::default()),
    };
    match Verifier::new(hook.env()).verify(program) {
        Ok(verified) => (Ok(()), Verified::stats(&verified)),
        Err(rejection) => (Err(Refusal::of_rejection(&rejection)), rejection.stats()),
    }
}

impl Refusal {
    fn unknown_hook(section: &str) -> Refusal {
        let message = format!("section \"{section}\" names no hook ({})", hook::names());
        Refusal {
            kind: "unknown-hook".into(),
            pc: None,
            source: None,
            line: format!("reject[unknown-hook] {message}"),
            message: format!("{message}; use --hook to say which it is for, or --schema for a library's"),
            hint: Some(
                "write SEC(\"tuner\") before the function, use --hook to say which it is for, or --schema FILE to bring a library's \
                 hook".into(),
            ),
        }
    }

    /// A loader's error: the object as a whole is readable, this program is not.
    pub(super) fn of_error(error: &Error) -> Refusal {
        let kind = kebab(&format!("{:?}", error.kind()));
        let pc = match error.at() {
            At::Insn { pc, .. } => Some(pc.0),
            _ => None,
        };
        Refusal {
            line: format!("reject[{kind}] {error}"),
            kind,
            pc,
            source: None,
            message: error.message().to_owned(),
            hint: None,
        }
    }

    pub(super) fn of_rejection(rejection: &Rejection) -> Refusal {
        Refusal {
            kind: rejection.kind().name().to_owned(),
            pc: Some(rejection.pc().0),
            source: rejection.source().cloned(),
            message: rejection.message().to_owned(),
            line: rejection.to_string(),
            hint: rejection.hint().map(str::to_owned),
        }
    }

    /// The refusal for people: the line, the source with a mark, the advice.
    pub(super) fn print(&self, out: Out<'_>) -> io::Result<()> {
        self.print_place(out)?;
        self.hint.as_ref().map_or(Ok(()), |hint| writeln!(out, "  hint: {hint}"))
    }

    fn print_place(&self, out: Out<'_>) -> io::Result<()> {
        writeln!(out, "  {}", self.line)?;
        if let Some(source) = self.source.as_ref().filter(|s| !s.text.trim().is_empty()) {
            let text = source.text.trim();
            writeln!(out, "  {:>5} | {text}", source.line)?;
            writeln!(out, "        | {}", "^".repeat(text.chars().count()))?;
        }
        Ok(())
    }
}

/// `BadInsn` as `bad-insn`.
fn kebab(camel: &str) -> String {
    let mut text = String::new();
    for c in camel.chars() {
        if c.is_ascii_uppercase() && !text.is_empty() {
            text.push('-');
        }
        text.push(c.to_ascii_lowercase());
    }
    text
}

impl Verdict {
    /// The verifier and the linked program, where the section names a hook and the program can be linked.
    fn load(&self, object: &Object, hook: Option<Hook>) -> Option<(Verifier, Program)> {
        let hook = hook.or_else(|| Hook::from_section(&self.section))?;
        Some((Verifier::new(hook.env()), object.program(&self.program).ok()?))
    }

    /// Why the verifier refuses it, at length.
    fn explain(&self, object: &Object, hook: Option<Hook>) -> Option<Explanation> {
        let (verifier, program) = self.load(object, hook)?;
        verifier.explain(&program)
    }

    fn print(&self, file: &Path, args: &Args, why: Option<&Explanation>, out: Out<'_>) -> io::Result<()> {
        if !args.json {
            return self.text(file, args, why, out);
        }
        let mut line = self.json(file);
        if let (Value::Object(keys), Some(why)) = (&mut line, why) {
            keys.append(&mut explain::json(why));
        }
        writeln!(out, "{line}")
    }

    /// A bound, if the program was accepted.
    fn proved(&self, bound: u64) -> Option<u64> {
        self.refusal.is_none().then_some(bound)
    }

    fn json(&self, file: &Path) -> Value {
        let r = self.refusal.as_ref();
        let source = r.and_then(|r| r.source.as_ref());
        json!({
            "file": file.to_string_lossy(),
            "program": self.program,
            "section": self.section,
            "verdict": if r.is_some() { "rejected" } else { "accepted" },
            "kind": r.map(|r| &r.kind),
            "pc": r.and_then(|r| r.pc),
            "source": source.map(|s| json!({"file": s.file, "line": s.line, "text": s.text})),
            "message": r.map(|r| &r.message),
            "hint": r.and_then(|r| r.hint.as_ref()),
            "insns": self.stats.insns,
            "states": self.stats.states,
            "max_insns": self.proved(self.stats.max_insns),
            "max_fuel": self.proved(self.stats.max_fuel),
            "micros": self.micros,
        })
    }

    fn text(&self, file: &Path, args: &Args, why: Option<&Explanation>, out: Out<'_>) -> io::Result<()> {
        let word = if self.refusal.is_some() { "rejected" } else { "accepted" };
        let (insns, micros) = (self.stats.insns, self.micros);
        let (file, program, section) = (file.display(), &self.program, &self.section);
        write!(out, "{word}  {file} {program} ({section}, {insns} insns, {micros} µs)")?;
        if let Some(most) = self.proved(self.stats.max_insns) {
            write!(out, ": runs at most {most} insns, {} fuel", self.stats.max_fuel)?;
        }
        writeln!(out)?;
        match (&self.refusal, why) {
            (Some(refusal), Some(why)) => {
                refusal.print_place(out)?;
                explain::print(why, args.explain, out)
            }
            (Some(refusal), None) => refusal.print(out),
            (None, _) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_the_loader_are_kebab_case() {
        for (camel, want) in
            [("BadInsn", "bad-insn"), ("Unsupported", "unsupported"), ("NotEbpf", "not-ebpf")]
        {
            assert_eq!(kebab(camel), want);
        }
    }
}
