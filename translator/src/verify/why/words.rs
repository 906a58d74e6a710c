//! [`Scene`]: a refusal with all that is known of its path, and the words for values, tests and makers of values.

use super::source;
use super::trace::{Trace, ValueId};
use super::turns::{Missing, Turn};
use crate::isa::{AluOp, Cond, Imm64, Insn, Operand, Pc, Reg, Width};
use crate::program::SourceLine;
use crate::verify::domain::Scalar;
use crate::verify::explain::span;
use crate::verify::state::State;
use crate::verify::trail::Trail;
use crate::verify::transfer::Flow;
use crate::verify::value::Value;
use crate::verify::{Machine, RejectKind, Rejection};
use std::collections::BTreeMap;

/// What a refusal is explained from.
pub(super) struct Scene<'a> {
    pub(super) m: &'a Machine<'a>,
    pub(super) rejection: &'a Rejection,
    pub(super) trace: Trace,
    /// Before the last step of the path.
    pub(super) last: Option<State>,
    /// Before other steps.
    pub(super) states: BTreeMap<Trail, State>,
    /// The value of the register at fault.
    pub(super) fault: ValueId,
    pub(super) missing: Option<Missing>,
    pub(super) turns: Vec<(usize, Turn)>,
}

impl Scene<'_> {
    /// The refused instruction.
    pub(super) fn insn(&self) -> Option<&Insn> {
        self.m.program.insn(self.rejection.pc())
    }

    /// The state that the refused instruction was to run on, if the path ends there.
    pub(super) fn state(&self) -> Option<&State> {
        let end = self.trace.points.last()?;
        self.last.as_ref().filter(|_| end.pc == self.rejection.pc())
    }

    /// What a register holds there.
    pub(super) fn value(&self, reg: Reg) -> Option<Value> {
        self.state().map(|s| s.reg(reg))
    }

    pub(super) fn pc(&self, step: usize) -> Pc {
        self.trace.points.get(step).map_or(Pc(0), |p| p.pc)
    }

    pub(super) fn line(&self, step: usize) -> Option<&SourceLine> {
        self.m.program.line_at(self.pc(step))
    }

    /// Text of the refused line; empty where it is not known.
    pub(super) fn text(&self) -> &str {
        self.rejection.source().map_or("", |s| s.text.trim())
    }

    pub(super) fn kind(&self) -> RejectKind {
        self.rejection.kind()
    }

    /// The state after a step of the path, where that before it was kept.
    pub(super) fn after(&self, step: usize) -> Option<State> {
        let mut state = self.states.get(&self.trace.points.get(step)?.trail)?.clone();
        let next = self.trace.points.get(step + 1).map(|p| p.pc);
        let flow = self.m.step(&mut state, self.pc(step)).ok()?.flow;
        Some(match flow {
            Flow::Branch { taken: Some((pc, other)), fall } if fall.is_none() || next == Some(pc) => other,
            _ => state,
        })
    }

    /// Name of the context's field that a value was read from, if it is that field as it stands.
    pub(super) fn field(&self, id: ValueId) -> Option<&'static str> {
        let root = self.trace.root(id);
        let at = self.trace.maker(root)?;
        let Insn::Load { off, .. } = *self.m.program.insn(self.pc(at))? else { return None };
        if !self.trace.is_context(self.trace.points[at].uses[0]) {
            return None;
        }
        let off = u32::try_from(off).ok()?;
        let mut fields = self.m.env.ctx.fields().iter();
        fields.find(|f| f.offset <= off && off < f.offset + f.bytes()).map(|f| f.name)
    }

    /// The helper that returned a value, if it did.
    pub(super) fn helper_of(&self, id: ValueId) -> Option<(&'static str, usize)> {
        let at = self.trace.maker(self.trace.root(id))?;
        let Insn::CallHelper { id } = *self.m.program.insn(self.pc(at))? else { return None };
        Some((self.m.env.helper(id)?.name, at))
    }

    /// The variable that a value was given to when it was made, by the text of that line.
    pub(super) fn variable(&self, id: ValueId) -> Option<&str> {
        if let Some((helper, at)) = self.helper_of(id) {
            return source::assigned(&self.line(at)?.text, helper);
        }
        let field = self.field(id)?;
        source::assigned(&self.line(self.trace.maker(self.trace.root(id))?)?.text, field)
    }

    /// A value in a test: its field, else its variable, else the register.
    fn operand(&self, id: ValueId, o: Operand, width: Width) -> String {
        let letter = if width == Width::W32 { 'w' } else { 'r' };
        match o {
            Operand::Imm(k) => k.to_string(),
            Operand::Reg(r) => match self.field(id).filter(|_| self.is_whole(id)) {
                Some(field) => field.to_string(),
                None => format!("{letter}{}", r.index()),
            },
        }
    }

    /// Is a value what its root is, unchanged but for a truncation?
    fn is_whole(&self, id: ValueId) -> bool {
        let made = |id| self.trace.maker(id).and_then(|at| self.m.program.insn(self.pc(at)));
        id == self.trace.root(id) || matches!(made(id), Some(Insn::Alu { op: AluOp::Mov, .. }))
    }

    /// What is known after the conditional jump at that step: `n_nodes <= 8`.
    pub(super) fn condition(&self, step: usize, taken: bool) -> Option<String> {
        let Insn::JumpIf { width, cond, dst, src, .. } = *self.m.program.insn(self.pc(step))? else {
            return None;
        };
        let p = &self.trace.points[step];
        let before = self.states.get(&p.trail).map(|s| s.reg(dst));
        let (equal, zero) = ((cond == Cond::Eq) == taken, src == Operand::Imm(0));
        if let (Some(Value::Ptr(_)), true, Cond::Eq | Cond::Ne) = (before, zero, cond) {
            let what = self.variable(p.uses[0]).map_or_else(|| dst.to_string(), str::to_string);
            return Some(format!("{what} is {}NULL", if equal { "" } else { "not " }));
        }
        let (a, b) = (self.operand(p.uses[0], Operand::Reg(dst), width), self.operand(p.uses[1], src, width));
        Some(relation(&a, &b, cond, taken))
    }

    /// How a step makes its value, in words.
    pub(super) fn making(&self, step: usize, reg: Reg) -> String {
        let Some(insn) = self.m.program.insn(self.pc(step)) else { return String::new() };
        let given = match *insn {
            Insn::Load { base, off, size, .. } => {
                let from = self.read_from(step, base, off.into());
                format!("{reg} = {} bytes of {from}", size.bytes())
            }
            Insn::CallHelper { id } => {
                let name = self.m.env.helper(id).map_or("a helper", |h| h.name);
                format!("{reg} = what {name} returns")
            }
            Insn::LoadImm64 { imm: Imm64::MapValue { map, offset }, .. } => {
                format!("{reg} = address of {}{offset:+}", self.m.map_name(map))
            }
            _ => self.m.program.insn_text(self.pc(step)).map_or(String::new(), |t| t.to_string()),
        };
        let plain = matches!(insn, Insn::Alu { op: AluOp::Mov, src: Operand::Imm(_), .. });
        match self.after(step).map(|s| s.reg(reg)).filter(|_| !plain) {
            Some(v) => format!("{given}: {}", self.m.value_words(&v)),
            None => given,
        }
    }

    fn read_from(&self, step: usize, base: Reg, off: i64) -> String {
        let id = self.trace.points[step].uses[0];
        if self.trace.is_context(id) {
            let fields = self.m.env.ctx.fields().iter();
            let mut name =
                fields.filter(|f| (f.offset..f.offset + f.bytes()).contains(&(off as u32))).map(|f| f.name);
            return format!(
                "the context, {}",
                name.next_back().map_or(format!("offset {off}"), str::to_string)
            );
        }
        let home = self.states.get(&self.trace.points[step].trail).map(|s| s.reg(base));
        match home {
            Some(Value::Ptr(p)) => self.m.home_words(p.home),
            _ => "memory".to_string(),
        }
    }
}

/// `a <= b` for what is known when `a > b` is false.
fn relation(a: &str, b: &str, cond: Cond, truth: bool) -> String {
    let (symbol, signed) = match (cond, truth) {
        (Cond::Set, true) => return format!("{a} & {b} is not 0"),
        (Cond::Set, false) => return format!("{a} & {b} is 0"),
        (Cond::Eq, true) | (Cond::Ne, false) => ("==", false),
        (Cond::Eq, false) | (Cond::Ne, true) => ("!=", false),
        (Cond::Gt, true) | (Cond::Le, false) => (">", false),
        (Cond::Ge, true) | (Cond::Lt, false) => (">=", false),
        (Cond::Lt, true) | (Cond::Ge, false) => ("<", false),
        (Cond::Le, true) | (Cond::Gt, false) => ("<=", false),
        (Cond::SGt, true) | (Cond::SLe, false) => (">", true),
        (Cond::SGe, true) | (Cond::SLt, false) => (">=", true),
        (Cond::SLt, true) | (Cond::SGe, false) => ("<", true),
        (Cond::SLe, true) | (Cond::SGt, false) => ("<=", true),
    };
    format!("{a} {symbol} {b}{}", if signed { " (signed)" } else { "" })
}

/// A number in words: `any 32-bit number`, `a number in [0, 124], a multiple of 4`.
pub(in crate::verify) fn number_words(s: Scalar) -> String {
    if s.as_const().is_some() {
        return span(s);
    }
    let full = |bits: u32| s == Scalar::bits(bits);
    if let Some(bits) = [64, 32, 16, 8].into_iter().find(|b| full(*b)) {
        return format!("any {bits}-bit number");
    }
    let unsigned = s.umax() - s.umin() < s.smax().wrapping_sub(s.smin()) as u64;
    let range = if unsigned { format!("[{}, {}]", s.umin(), s.umax()) } else { span(s) };
    match s.tnum().possible().trailing_zeros() {
        k @ 1..=12 => format!("a number in {range}, a multiple of {}", 1u32 << k),
        _ => format!("a number in {range}"),
    }
}

impl Machine<'_> {
    /// A value with all that is known of it.
    pub(in crate::verify) fn value_words(&self, v: &Value) -> String {
        match v {
            Value::Num(n) => number_words(n.s),
            Value::Ptr(p) if p.off.as_const() == Some(0) => self.describe(v),
            Value::Ptr(p) => format!("{}, at offset {}", self.describe(v), span(p.off)),
            _ => self.describe(v),
        }
    }
}
