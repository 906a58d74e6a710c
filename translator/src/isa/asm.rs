//! [`assemble`]: the text form of a program, read back. For tests and tools.
//!
//! The notation is clang's (`llvm-objdump -d`): `r1 = 5`, `w2 += w3`, `r0 = *(u32 *)(r1 + 8)`,
//! `if r1 s> 5 goto +3`, `lock *(u64 *)(r1 + 0) += r2`, `call 1`, `exit`; and beyond it:
//!
//! - `name:` is a label for `goto name`; `fn name:` starts a function, and `call fn name` calls one (or a label);
//! - `r1 = map[name] ll` is a map object, `r1 = map[name][0] + 8 ll` an address in its first value, with `map[#2]`
//!   for a map by index; `r1 = fn name ll` is a function's address;
//! - helpers have names: `call map_lookup_elem`;
//! - `;`, `#` and `//` start comments; a number and a colon before an instruction are ignored.

mod parse;
mod token;

use crate::error::Error;
use crate::isa::Pc;
use crate::isa::decode::Slot;
use crate::isa::encode::{encode, jump};
use crate::map::MapDecl;
use crate::program::{Func, LinkInput, Program};
use parse::{Parsed, parse};
use std::collections::BTreeMap;
use std::fmt;
use token::{Tok, tokens};

/// Why text is no program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AsmError {
    line: usize,
    message: String,
    link: Option<Error>,
}

impl AsmError {
    fn new(line: usize, message: impl Into<String>) -> AsmError {
        AsmError { line, message: message.into(), link: None }
    }
    /// Line of the text, from 1.
    pub fn line(&self) -> usize {
        self.line
    }
    /// The text without the line.
    pub fn message(&self) -> &str {
        &self.message
    }
    /// The linker's error, where the text itself was well-formed.
    pub fn link_error(&self) -> Option<&Error> {
        self.link.as_ref()
    }
}

impl fmt::Display for AsmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.message)
    }
}

impl std::error::Error for AsmError {}

/// Assembles and links a program; `map[NAME]` refers to `maps`. The entry function is named by a first `fn` line, else `main`.
///
/// # Errors
/// The first line that is no instruction, names something unknown, or does not link.
pub fn assemble(text: &str, maps: &[MapDecl]) -> Result<Program, AsmError> {
    let source = Source::read(text, maps)?;
    let (code, mut funcs) = source.code()?;
    funcs.entry(Pc(0)).or_insert_with(|| "main".to_owned());
    let end = Pc((code.len() / 8) as u32);
    let ends = funcs.keys().copied().skip(1).chain([end]).collect::<Vec<_>>();
    let funcs: Vec<Func> =
        funcs.into_iter().zip(ends).map(|((start, name), end)| Func::new(name, start, end)).collect();
    let name = funcs.first().map(|f| f.name.clone()).unwrap_or_default();
    let input = LinkInput { name, code, funcs, maps: maps.to_vec(), ..LinkInput::default() };
    Program::link(input).map_err(|error| AsmError {
        line: source.line_of(&error),
        message: error.to_string(),
        link: Some(error),
    })
}

/// The text taken apart: instructions with their places, and what labels stand for.
struct Source<'a> {
    insns: Vec<(usize, Pc, Vec<Tok<'a>>)>,
    labels: BTreeMap<&'a str, Pc>,
    funcs: BTreeMap<Pc, &'a str>,
    maps: &'a [MapDecl],
}

impl<'a> Source<'a> {
    fn read(text: &'a str, maps: &'a [MapDecl]) -> Result<Source<'a>, AsmError> {
        let mut source = Source { insns: Vec::new(), labels: BTreeMap::new(), funcs: BTreeMap::new(), maps };
        let mut pc = Pc(0);
        for (line, text) in (1..).zip(text.lines()) {
            let toks = tokens(text).map_err(|message| AsmError::new(line, message))?;
            let toks = match toks.as_slice() {
                [Tok::Num(_), Tok::P(":"), rest @ ..] => rest.to_vec(),
                _ => toks,
            };
            match toks.as_slice() {
                [] => {}
                [Tok::Label(name)] => source.label(line, name, pc)?,
                [Tok::FnLabel(name)] => {
                    source.label(line, name, pc)?;
                    source.funcs.insert(pc, name);
                }
                _ => {
                    let slots = if toks.last() == Some(&Tok::Id("ll")) { 2 } else { 1 };
                    source.insns.push((line, pc, toks));
                    pc = pc.plus(slots);
                }
            }
        }
        Ok(source)
    }

    fn label(&mut self, line: usize, name: &'a str, pc: Pc) -> Result<(), AsmError> {
        match self.labels.insert(name, pc) {
            Some(_) => Err(AsmError::new(line, format!("label {name} is defined twice"))),
            None => Ok(()),
        }
    }

    /// Machine code, and the functions that are named: by `fn` lines, or because they are called.
    fn code(&self) -> Result<(Vec<u8>, BTreeMap<Pc, String>), AsmError> {
        let mut funcs: BTreeMap<Pc, String> =
            self.funcs.iter().map(|(pc, name)| (*pc, (*name).to_owned())).collect();
        let mut code = Vec::new();
        for (line, pc, toks) in &self.insns {
            let fail = |message: String| AsmError::new(*line, message);
            let parsed = parse(&parse::Scope { pc: *pc, source: self }, toks).map_err(fail)?;
            let (first, second): (Slot, Option<Slot>) = match parsed {
                Parsed::Insn(insn) => encode(*pc, &insn).map_err(fail)?,
                Parsed::LongJump(target) => (jump(*pc, target, true).map_err(fail)?, None),
            };
            code.extend(first.bytes());
            code.extend(second.iter().flat_map(|slot| slot.bytes()));
            for tok in toks {
                if let Tok::Fn(name) = tok
                    && let Some(target) = self.labels.get(name)
                {
                    funcs.entry(*target).or_insert_with(|| (*name).to_owned());
                }
            }
        }
        Ok((code, funcs))
    }

    /// The line of a link error; the last line for errors of the whole.
    fn line_of(&self, error: &Error) -> usize {
        let crate::error::At::Insn { pc, .. } = error.at() else {
            return self.insns.last().map_or(1, |(line, _, _)| *line);
        };
        self.insns.iter().rev().find(|(_, at, _)| at <= pc).map_or(1, |(line, _, _)| *line)
    }
}

#[cfg(test)]
mod tests;
