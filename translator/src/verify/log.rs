//! [`Verifier::log`]: each step of the search with the registers and stack slots that it changes, as the kernel's verifier logs it
//! at level 2.

use super::explore::explore_watched;
use super::state::State;
use super::trail::{Trail, Watch};
use super::{Machine, Verifier};
use crate::isa::Pc;
use crate::isa::encode::encode;
use crate::program::Program;
use std::io::{self, Write};

/// Column at which what has changed begins.
const CHANGES_AT: usize = 40;

impl Verifier {
    /// Runs the search and writes what it does, up to `limit` lines; the last lines tell the verdict in any case.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn log(&self, program: &Program, out: &mut dyn Write, limit: u64) -> io::Result<()> {
        let m = Machine::new(program, &self.env);
        let mut log = Log::new(&m, out, limit);
        let result = explore_watched(&m, Some(&mut log));
        log.finish_step(None);
        let hidden = log.lines.saturating_sub(limit);
        log.failed?;
        if hidden > 0 {
            writeln!(out, "({hidden} more lines are not shown: the limit is {limit})")?;
        }
        let stats = match &result {
            Ok(c) => (c.visited, c.nodes.len() as u64),
            Err(r) => (r.stats().insns, r.stats().states),
        };
        if let Err(r) = &result {
            writeln!(out, "{r}")?;
        }
        let budget = self.env.insn_budget;
        writeln!(out, "processed {} insns (limit {budget}) total_states {}", stats.0, stats.1)
    }
}

/// Names and values of registers and slots.
type Shown = Vec<(String, String)>;

struct Log<'a> {
    m: &'a Machine<'a>,
    out: &'a mut dyn Write,
    failed: io::Result<()>,
    lines: u64,
    limit: u64,
    /// By step: its instruction.
    pcs: Vec<Pc>,
    /// The step that is not written yet: its text, and the state before it.
    open: Option<(String, usize, Shown)>,
    /// Source line written last.
    line: Option<(String, u32)>,
}

impl<'a> Log<'a> {
    fn new(m: &'a Machine<'a>, out: &'a mut dyn Write, limit: u64) -> Log<'a> {
        Log { m, out, failed: Ok(()), lines: 0, limit, pcs: Vec::new(), open: None, line: None }
    }

    fn write(&mut self, text: &str) {
        self.lines += 1;
        if self.lines <= self.limit && self.failed.is_ok() {
            self.failed = writeln!(self.out, "{text}");
        }
    }

    /// Is what would be written still read?
    fn is_shown(&self) -> bool {
        self.lines < self.limit && self.failed.is_ok()
    }

    /// Writes the open step with what it has changed, if the path goes on to `state`.
    fn finish_step(&mut self, state: Option<&State>) {
        let Some((text, depth, before)) = self.open.take() else { return };
        let after = state.filter(|s| s.depth() == depth).map(|s| self.m.notation(s));
        let changed: Vec<String> = after
            .unwrap_or_default()
            .into_iter()
            .filter(|entry| !before.contains(entry))
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        match (changed.is_empty(), state) {
            (false, _) => self.write(&format!("{text:<CHANGES_AT$} ; {}", changed.join(" "))),
            (true, _) => self.write(&text),
        }
        if let Some(s) = state.filter(|s| s.depth() != depth) {
            let whole = self.m.notation_line(s);
            self.write(&format!("{}:{whole}", if s.depth() > depth { "caller" } else { "returning" }));
        }
    }

    fn source_line(&mut self, pc: Pc) {
        let Some(line) = self.m.program.line_at(pc) else { return };
        if self.line.as_ref().is_none_or(|(file, n)| (file, *n) != (&line.file, line.line)) {
            self.line = Some((line.file.clone(), line.line));
            self.write(&format!("; {} @ {}:{}", line.text.trim(), line.file, line.line));
        }
    }

    fn text(&self, pc: Pc) -> String {
        let Some(insn) = self.m.program.insn(pc) else { return String::new() };
        let code = encode(pc, insn).map_or(0, |(slot, _)| slot.code);
        let text = self.m.program.insn_text(pc).map_or(String::new(), |t| t.to_string());
        format!("{pc}: ({code:02x}) {text}")
    }
}

impl Watch for Log<'_> {
    fn resume(&mut self, _: Trail) {}

    fn step(&mut self, trail: Trail, pc: Pc, state: &State) -> Trail {
        let goes_on = trail.0 as usize == self.pcs.len();
        if self.is_shown() {
            self.finish_step(Some(state).filter(|_| goes_on));
            if !goes_on || self.pcs.is_empty() {
                let from = (trail.0 as usize).checked_sub(1).and_then(|i| self.pcs.get(i));
                let place = from.map_or(format!("{pc}:"), |from| format!("from {from} to {pc}:"));
                let whole = self.m.notation_line(state);
                self.write(&(place + &whole));
                self.line = None;
            }
            self.source_line(pc);
            self.open = Some((self.text(pc), state.depth(), self.m.notation(state)));
        } else {
            self.lines += 1;
        }
        self.pcs.push(pc);
        Trail(self.pcs.len() as u32)
    }

    fn covered(&mut self, pc: Pc, state: &State) {
        if self.is_shown() {
            self.finish_step(Some(state));
            self.write(&format!("{pc}: safe"));
        }
    }
}

#[cfg(all(test, feature = "asm"))]
mod tests {
    use super::*;
    use crate::isa::asm::assemble;
    use crate::verify::Env;
    use std::sync::Arc;

    fn log(text: &str, limit: u64) -> String {
        let (program, mut out) = (assemble(text, &[]).unwrap(), Vec::new());
        Verifier::new(Arc::new(Env::generic(64))).log(&program, &mut out, limit).unwrap();
        String::from_utf8(out).unwrap()
    }

    const TEXT: &str = "
        r2 = *(u8 *)(r1 + 0)
        r2 &= 63
        *(u64 *)(r10 - 8) = r2
        *(u16 *)(r10 - 12) = 0
        if r2 > 7 goto big
        r0 = 0
        exit
    big:
        r1 += r2
        r0 = *(u8 *)(r1 + 8)
        exit";

    #[test]
    fn the_log_reads_as_the_kernels() {
        let want = "\
0: R1=ctx() R10=fp0
0: (71) r2 = *(u8 *)(r1 + 0)             ; R2=scalar(smin=smin32=0,smax=umax=smax32=umax32=255,var_off=(0x0; 0xff))
1: (57) r2 &= 63                         ; R2=scalar(smin=smin32=0,smax=umax=smax32=umax32=63,var_off=(0x0; 0x3f))
2: (7b) *(u64 *)(r10 - 8) = r2           ; R2=scalar(id=1,smin=smin32=0,smax=umax=smax32=umax32=63,var_off=(0x0; 0x3f)) fp-8=scalar(id=1,smin=smin32=0,smax=umax=smax32=umax32=63,var_off=(0x0; 0x3f))
3: (6a) *(u16 *)(r10 - 12) = 0           ; fp-16=??00????
4: (25) if r2 > 7 goto +2                ; R2=scalar(id=1,smin=smin32=0,smax=umax=smax32=umax32=7,var_off=(0x0; 0x7)) fp-8=scalar(id=1,smin=smin32=0,smax=umax=smax32=umax32=7,var_off=(0x0; 0x7))
5: (b7) r0 = 0                           ; R0=0
6: (95) exit
from 4 to 7: R1=ctx() R2=scalar(smin=umin=smin32=umin32=8,smax=umax=smax32=umax32=63,var_off=(0x0; 0x3f)) R10=fp0
7: (0f) r1 += r2                         ; R1=ctx(smin=umin=smin32=umin32=8,smax=umax=smax32=umax32=63,var_off=(0x0; 0x3f))
8: (71) r0 = *(u8 *)(r1 + 8)
reject[ctx-oob] main@8: 1-byte read at r1+8: offset [16, 71] in a context of 64 bytes
processed 9 insns (limit 1000000) total_states 2
";
        let got = log(TEXT, u64::MAX);
        assert_eq!(got, want, "got:\n{got}");
    }

    #[test]
    fn a_limit_keeps_the_verdict() {
        let got = log(TEXT, 3);
        assert_eq!(got.lines().filter(|l| l.starts_with(['0', '1'])).count(), 3, "{got}");
        assert!(got.contains("more lines are not shown: the limit is 3"), "{got}");
        assert!(got.ends_with("total_states 2\n") && got.contains("reject[ctx-oob]"), "{got}");
    }

    #[test]
    fn a_sink_that_fails_ends_the_log() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let program = assemble(TEXT, &[]).unwrap();
        let e = Verifier::new(Arc::new(Env::generic(64))).log(&program, &mut Closed, 9).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::BrokenPipe);
    }
}
