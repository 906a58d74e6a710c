//! An [`Explanation`] for people, and as JSON.

use super::Out;
use ringfence_translator::SourceLine;
use ringfence_translator::verify::{Explanation, FixLine, Origin, PathKind, PathStep, Site};
use serde_json::{Map, Value, json};
use std::io;

/// Makers of the value at fault that are shown without `--explain`.
const FEW: usize = 3;
/// Characters of source text that the column of a path is wide at most.
const WIDEST: usize = 48;

/// `line | text`, as a refusal shows its source; no number for a line that is new.
fn source_line(out: Out<'_>, line: Option<u32>, mark: char, text: &str) -> io::Result<()> {
    let line = line.map_or(String::new(), |n| n.to_string());
    writeln!(out, "  {line:>5} {mark} {text}")
}

/// The name of a file without its folder.
pub(super) fn base_name(file: &str) -> &str {
    file.rsplit('/').next().unwrap_or(file)
}

/// Where a step is: the line, with the file where it is another one than the refusal's, else the instruction.
fn place(site: &Site, home: Option<&SourceLine>) -> String {
    match &site.source {
        Some(s) if home.is_some_and(|h| h.file != s.file) => format!("{}:{}", base_name(&s.file), s.line),
        Some(s) => s.line.to_string(),
        None => format!("{}@{}", site.func, site.pc),
    }
}

fn text_of(site: &Site) -> &str {
    site.source.as_ref().map_or("", |s| s.text.trim().trim_end_matches(['{', ';']).trim_end())
}

/// `3rd`.
fn ordinal(n: usize) -> String {
    let ending = match (n % 100, n % 10) {
        (11..=13, _) => "th",
        (_, 1) => "st",
        (_, 2) => "nd",
        (_, 3) => "rd",
        _ => "th",
    };
    format!("{n}{ending}")
}

/// What happens at a turn: `n_nodes <= 8, on to line 15`.
fn happening(step: &PathStep) -> String {
    match &step.kind {
        PathKind::Branch { condition, next_line: Some(line), .. } => {
            format!("{condition}, on to line {line}")
        }
        PathKind::Branch { condition, .. } => condition.clone(),
        PathKind::Loop { round, condition } => {
            let test = condition.as_ref().map_or(String::new(), |c| format!(", {c}"));
            format!("loop, {} time round{test}", ordinal(*round))
        }
        PathKind::Call { callee } => format!("calls {callee}"),
        _ => String::new(),
    }
}

/// Prints path, makers of the value at fault and advice; with `long` also registers and an example of a fix.
pub(super) fn print(e: &Explanation, long: bool, out: Out<'_>) -> io::Result<()> {
    let home = e.rejection().source();
    print_path(e, home, out)?;
    let origins = shown_origins(e.origins(), long);
    if let (Some(reg), false) = (e.rejection().reg(), origins.is_empty()) {
        writeln!(out, "  where {reg} comes from:")?;
        for o in origins {
            writeln!(out, "  {:>5} : {}", place(&o.site, home), o.text)?;
        }
    }
    if long {
        print_registers(e, out)?;
    }
    if let Some(hint) = e.hint() {
        writeln!(out, "  hint: {hint}")?;
    }
    if long && !e.fix().is_empty() {
        writeln!(out, "  for example:")?;
        e.fix().iter().try_for_each(|l: &FixLine| source_line(out, l.line, l.mark, &l.text))?;
    }
    Ok(())
}

/// All makers of the value at fault; in short, the latest of those that all began with, and the last one. None for what is
/// only an address on the stack.
fn shown_origins(all: &[Origin], long: bool) -> Vec<&Origin> {
    let Some((last, rest)) = all.split_last().filter(|_| !long) else { return all.iter().collect() };
    let sources: Vec<&Origin> = rest.iter().filter(|o| o.is_source).collect();
    if sources.is_empty() && !last.is_source {
        return Vec::new();
    }
    let from = sources.len().saturating_sub(FEW - 1);
    sources[from..].iter().copied().chain([last]).collect()
}

fn print_path(e: &Explanation, home: Option<&SourceLine>, out: Out<'_>) -> io::Result<()> {
    if e.path().is_empty() {
        return Ok(());
    }
    let earlier = match e.left_out() {
        0 => String::new(),
        n => format!(" (after {n} earlier turns)"),
    };
    writeln!(out, "  path{earlier}:")?;
    let widest = e.path().iter().map(|s| text_of(&s.site).chars().count()).filter(|n| *n <= WIDEST).max();
    let widest = widest.unwrap_or(0);
    for step in e.path() {
        let (place, text) = (place(&step.site, home), text_of(&step.site));
        writeln!(out, "  {place:>5} | {text:<widest$}  -> {}", happening(step))?;
    }
    Ok(())
}

fn print_registers(e: &Explanation, out: Out<'_>) -> io::Result<()> {
    if e.registers().is_empty() {
        return Ok(());
    }
    writeln!(out, "  registers and stack before it:")?;
    e.registers().iter().try_for_each(|(name, value)| writeln!(out, "  {name:>9} = {value}"))
}

fn source_json(source: Option<&SourceLine>) -> Value {
    source.map_or(Value::Null, |s| json!({"file": s.file, "line": s.line, "text": s.text}))
}

fn step_json(step: &PathStep) -> Value {
    let mut v = json!({
        "func": step.site.func,
        "pc": step.site.pc.0,
        "source": source_json(step.site.source.as_ref()),
    });
    match &step.kind {
        PathKind::Branch { taken, condition, next_line } => {
            v["kind"] = "branch".into();
            v["taken"] = (*taken).into();
            v["condition"] = condition.as_str().into();
            v["next_line"] = json!(next_line);
        }
        PathKind::Loop { round, condition } => {
            v["kind"] = "loop".into();
            v["round"] = json!(round);
            v["condition"] = json!(condition);
        }
        PathKind::Call { callee } => {
            v["kind"] = "call".into();
            v["callee"] = callee.as_str().into();
        }
        _ => {}
    }
    v
}

/// The keys that an explanation adds to a verdict.
pub(super) fn json(e: &Explanation) -> Map<String, Value> {
    let origins: Vec<Value> = e
        .origins()
        .iter()
        .map(|o| {
            let source = source_json(o.site.source.as_ref());
            json!({"func": o.site.func, "pc": o.site.pc.0, "source": source, "text": o.text})
        })
        .collect();
    let fix: Vec<Value> =
        e.fix().iter().map(|l| json!({"line": l.line, "mark": l.mark.to_string(), "text": l.text})).collect();
    let registers: Map<String, Value> =
        e.registers().iter().map(|(k, v)| (k.clone(), v.as_str().into())).collect();
    let pairs = [
        ("register", json!(e.rejection().reg().map(|r| r.to_string()))),
        ("path", e.path().iter().map(step_json).collect()),
        ("path_left_out", json!(e.left_out())),
        ("origins", origins.into()),
        ("registers", registers.into()),
        ("hint", json!(e.hint())),
        ("fix", fix.into()),
    ];
    pairs.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinals() {
        let said: Vec<String> = [1, 2, 3, 4, 11, 12, 13, 21, 102, 111].map(ordinal).into();
        assert_eq!(said, ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "102nd", "111th"]);
    }
}
