//! Abstract states in the notation of the kernel's log, for people who read that: `R2=scalar(umax=63,var_off=(0x0; 0x3f))`.
//!
//! Small departures: our stack keeps spilled numbers of 4 bytes at any offset, printed as `fp-4:4=7`, and values that are at a
//! distance from others carry it with their id (`id=1+8`; `id=1+8w` if only the low halves are).

use super::Machine;
use super::domain::{Scalar, Tnum};
use super::stack::StackMem;
use super::state::State;
use super::value::{Home, Num, Ptr, Value};
use crate::isa::{MapIdx, Reg};
use crate::limits::STACK_BYTES;

/// Numbers up to this are printed in decimal, larger ones in hexadecimal.
const MAX_DECIMAL: u64 = u16::MAX as u64;

fn unsigned(x: u64) -> String {
    if x <= MAX_DECIMAL { x.to_string() } else { format!("{x:#x}") }
}

fn signed(x: i64) -> String {
    if i16::try_from(x).is_ok() { x.to_string() } else { format!("{x:#x}") }
}

/// `smin=umin=1,smax=63`: bounds of one value share their name; those that say nothing are left out.
fn bounds(s: Scalar) -> Vec<String> {
    let half = s.half();
    // In the order of the log: (name, value, says nothing).
    let all = [
        ("smin", s.smin() as u64, s.smin() == i64::MIN),
        ("smax", s.smax() as u64, s.smax() == i64::MAX),
        ("umin", s.umin(), s.umin() == 0),
        ("umax", s.umax(), s.umax() == u64::MAX),
        ("smin32", low(half.smin), half.smin == i32::MIN.into()),
        ("smax32", low(half.smax), half.smax == i32::MAX.into()),
        ("umin32", half.umin, half.umin == 0),
        ("umax32", half.umax, half.umax == u32::MAX.into()),
    ];
    let negative = |name: &str, x: u64| name.starts_with('s') && (x as i64) < 0;
    let mut done = [false; 8];
    let mut out = Vec::new();
    for i in 0..all.len() {
        let (name, x, silent) = all[i];
        if silent || done[i] {
            continue;
        }
        let mut names = format!("{name}=");
        for j in (i + 2..all.len()).step_by(2) {
            let (other, y, silent) = all[j];
            if !silent && !done[j] && x == y && negative(name, x) == negative(other, y) {
                done[j] = true;
                names += &format!("{other}=");
            }
        }
        out.push(names + &if name.starts_with('s') { signed(x as i64) } else { unsigned(x) });
    }
    out
}

/// A bound of the low half: negative ones that are small stay so, others are shown as their 32 bits.
fn low(x: i64) -> u64 {
    if i16::try_from(x).is_ok() { x as u64 } else { u64::from(x as u32) }
}

fn bits(t: Tnum) -> String {
    format!("({:#x}; {:#x})", t.value, t.mask)
}

/// Bounds and known bits of what is no constant.
fn range(s: Scalar) -> Vec<String> {
    let mut parts = bounds(s);
    if s.tnum() != Tnum::unknown(64) {
        parts.push(format!("var_off={}", bits(s.tnum())));
    }
    parts
}

fn number(n: &Num) -> String {
    if let Some(x) = n.s.as_const() {
        return signed(x as i64);
    }
    let delta = if n.delta == 0 { String::new() } else { format!("{:+}", n.delta) };
    let half = if n.half { "w" } else { "" };
    let id = (n.id != 0).then(|| format!("id={}{delta}{half}", n.id));
    format!("scalar({})", id.into_iter().chain(range(n.s)).collect::<Vec<_>>().join(","))
}

impl Machine<'_> {
    /// Registers and stack of the running frame, by name.
    pub(crate) fn notation(&self, state: &State) -> Vec<(String, String)> {
        let frame = state.current();
        let regs = Reg::all().map(|r| (r, state.reg(r))).filter(|(_, v)| *v != Value::Uninit);
        let mut out: Vec<(String, String)> =
            regs.map(|(r, v)| (format!("R{}", r.index()), self.value_notation(frame, &v))).collect();
        if let Some(stack) = state.stack(frame) {
            self.stack_notation(frame, stack, &mut out);
        }
        if !state.refs().is_empty() {
            let ids: Vec<String> = state.refs().iter().map(|r| r.id.to_string()).collect();
            out.push(("refs".into(), ids.join(",")));
        }
        out
    }

    /// The whole in one line, with the frame's number where there are several.
    pub(crate) fn notation_line(&self, state: &State) -> String {
        let frame = state.current();
        let start = if frame > 0 { format!(" frame{frame}:") } else { String::new() };
        self.notation(state).into_iter().fold(start, |line, (name, v)| format!("{line} {name}={v}"))
    }

    fn value_notation(&self, frame: u8, v: &Value) -> String {
        match v {
            Value::Uninit => "?".into(),
            Value::Num(n) => number(n),
            Value::MapObject(m) => format!("map_ptr({})", self.map_shape(*m)),
            Value::Func(pc) => format!("func({})", self.program.func_at(*pc).name),
            Value::Ptr(p) => self.pointer(frame, p),
        }
    }

    fn map_shape(&self, m: MapIdx) -> String {
        let (ks, vs) = self.map(m).map_or((0, 0), |d| (d.key_size, d.value_size));
        format!("map={},ks={ks},vs={vs}", self.map_name(m))
    }

    fn pointer(&self, frame: u8, p: &Ptr) -> String {
        let constant = p.off.as_const().map(|x| x as i64);
        let (name, shape) = match p.home {
            Home::Ctx => ("ctx".to_string(), None),
            Home::Stack(f) => (if f == frame { "fp".to_string() } else { format!("fp[{f}]") }, None),
            Home::Map(m) => ("map_value".to_string(), Some(self.map_shape(m))),
            Home::Record(_, bytes) => {
                ("ringbuf_mem".to_string(), Some(format!("ref_obj_id={},sz={bytes}", p.id)))
            }
            Home::Key(m) => ("map_key".to_string(), Some(self.map_shape(m))),
        };
        if let (Home::Stack(_), Some(off)) = (p.home, constant) {
            return format!("{name}{off}");
        }
        let mut parts: Vec<String> =
            (p.id != 0).then(|| format!("id={}", p.id)).into_iter().chain(shape).collect();
        match constant {
            Some(0) => {}
            Some(off) => parts.push(format!("off={}", signed(off))),
            None => parts.extend(range(p.off)),
        }
        format!("{name}{}({})", if p.nullable { "_or_null" } else { "" }, parts.join(","))
    }

    fn stack_notation(&self, frame: u8, stack: &StackMem, out: &mut Vec<(String, String)>) {
        for slot in 1..=STACK_BYTES as usize / 8 {
            let (start, name) = (STACK_BYTES as usize - 8 * slot, format!("fp-{}", 8 * slot));
            let spills: Vec<_> = stack
                .spills()
                .iter()
                .filter(|s| (start..start + 8).contains(&usize::from(s.start())))
                .collect();
            if let [s] = spills[..]
                && s.size() == 8
                && usize::from(s.start()) == start
            {
                out.push((name, self.value_notation(frame, &s.value)));
                continue;
            }
            let kinds: String = (start..start + 8).rev().map(|at| stack.kind_of_byte(at)).collect();
            if kinds.chars().any(|k| k != '?') {
                out.push((name, kinds));
            }
            for s in spills {
                let at = STACK_BYTES as usize - usize::from(s.start());
                out.push((format!("fp-{at}:{}", s.size()), self.value_notation(frame, &s.value)));
            }
        }
    }
}
