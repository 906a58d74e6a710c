//! Loops without an end that can be proved.

use super::super::flow::{Flow, Loop};
use super::{Advice, Scene, kept, new};
use crate::isa::{Insn, Pc};
use crate::program::SourceLine;

/// The loop that is refused: the innermost that begins at the place, else the innermost around it.
fn find<'a>(s: &Scene<'a>) -> Option<(Flow<'a>, Loop)> {
    let at = s.rejection.pc();
    let flow = Flow::new(s.m.program, s.m.program.func_at(at));
    let loops = flow.loops();
    let of_head = loops.iter().find(|l| l.head == at);
    let found = of_head.or_else(|| loops.iter().filter(|l| l.holds(at)).min_by_key(|l| l.last.0 - l.head.0));
    found.copied().map(|l| (flow, l))
}

/// Lines of the tests that may leave the loop.
fn exits<'a>(s: &Scene<'a>, flow: &Flow<'_>, l: Loop) -> Vec<&'a SourceLine> {
    let leaves = |pc: &Pc| {
        matches!(s.m.program.insn(*pc), Some(Insn::JumpIf { .. }))
            && flow.after(*pc).iter().any(|to| !l.holds(*to))
    };
    let mut lines: Vec<&SourceLine> =
        (l.head.0..=l.last.0).map(Pc).filter(leaves).filter_map(|pc| s.m.program.line_at(pc)).collect();
    lines.dedup_by_key(|l| l.line);
    lines
}

/// A loop that may run for ever, or longer than the budget.
pub(super) fn endless(s: &Scene<'_>) -> Option<Advice> {
    let (flow, l) = find(s)?;
    let exits = exits(s, &flow, l);
    let Some(test) = exits.first() else {
        return Some(Advice::new(
            "no test leaves this loop: give it one on a counter, for (int i = 0; i < 64; i++)",
        ));
    };
    let text = test.text.trim().trim_end_matches('{').trim_end();
    if text.is_empty() || text.starts_with("asm") {
        let by = format!("the loop ends only by the test in line {}", test.line);
        return Some(Advice::new(format!(
            "{by}, and no bound on its rounds follows from that: count them, and stop at a number that is always enough"
        )));
    }
    let hint = format!(
        "the loop ends only by `{text}` (line {}), and no bound on its rounds follows from that: count them, and stop at a number \
         that is always enough, `for (int i = 0; i < 64; i++)` with the test inside",
        test.line
    );
    let body = s.rejection.source().filter(|r| r.line != test.line);
    let inside = condition(text).map_or("if (done)".to_string(), |c| format!("        if (!({c}))"));
    let fix = [new("for (int i = 0; i < 64; i++) {"), new(inside), new("                break;")];
    Some(Advice::new(hint).with(fix.into_iter().chain(body.map(kept))))
}

/// What stands in the parentheses of `while (...)`.
fn condition(text: &str) -> Option<&str> {
    let inside = text.split_once("while")?.1.trim_start().strip_prefix('(')?;
    inside.trim_end_matches(';').trim_end().strip_suffix(')')
}
