//! Loops without an end that can be proved.

use super::super::flow::{Flow, Loop};
use super::{Advice, Scene, gone, new};
use crate::isa::{Insn, Pc};

/// The loop that is refused: the innermost that begins at the place, else the innermost around it.
fn find<'a>(s: &Scene<'a>) -> Option<(Flow<'a>, Loop)> {
    let at = s.rejection.pc();
    let flow = Flow::new(s.m.program, s.m.program.func_at(at));
    let loops = flow.loops();
    let of_head = loops.iter().find(|l| l.head == at);
    let found = of_head.or_else(|| loops.iter().filter(|l| l.holds(at)).min_by_key(|l| l.last.0 - l.head.0));
    found.copied().map(|l| (flow, l))
}

/// The first test that may leave the loop.
fn exit(s: &Scene<'_>, flow: &Flow<'_>, l: Loop) -> Option<Pc> {
    let leaves = |pc: &Pc| {
        matches!(s.m.program.insn(*pc), Some(Insn::JumpIf { .. }))
            && flow.after(*pc).iter().any(|to| !l.holds(*to))
    };
    (l.head.0..=l.last.0).map(Pc).find(leaves)
}

/// A loop that may run for ever, or longer than the budget.
pub(super) fn endless(s: &Scene<'_>) -> Option<Advice> {
    let (flow, l) = find(s)?;
    let Some(exit) = exit(s, &flow, l) else {
        return Some(Advice::new(
            "no test leaves this loop: give it one on a counter, for (int i = 0; i < 64; i++)",
        ));
    };
    let test = s.m.program.line_at(exit);
    let text = test.map_or("", |t| t.text.trim().trim_end_matches('{').trim_end());
    let Some(test) = test.filter(|_| !text.is_empty() && !text.starts_with("asm")) else {
        return Some(Advice::new(format!(
            "the loop ends only by the test at {}, and that does not keep its rounds few enough: count them, and stop at a number \
             that is always enough",
            test.map_or(format!("instruction {exit}"), |t| format!("line {}", t.line))
        )));
    };
    let hint = format!(
        "the loop ends only by `{text}` (line {}), and that does not keep its rounds few enough: count them, and stop at a \
         number that is always enough, `for (int i = 0; i < 64; i++)` with the test inside",
        test.line
    );
    let advice = Advice::new(hint);
    Some(match condition(&test.text) {
        Some(c) => advice.with([
            gone(test),
            new("for (int i = 0; i < 64; i++) {"),
            new(format!("        if (!({c}))")),
            new("                break;"),
        ]),
        None => advice,
    })
}

/// What stands in the parentheses of `while (...) {`.
fn condition(text: &str) -> Option<&str> {
    let inside = text.trim().strip_prefix("while")?.trim_start().strip_prefix('(')?;
    inside.strip_suffix('{')?.trim_end().strip_suffix(')')
}
