//! Duties of loads, stores and atomics: where a pointer may point, and what a read of it gives.
//!
//! Soundness rests on this file and on the domain: every access passes through [`Machine::place`].

use super::Machine;
use super::domain::Scalar;
use super::env::{CtxField, CtxLayout, RankLabel, Rights};
use super::explain::{Duty, refuse_reg, span};
use super::fact::{Access, Region};
use super::rejection::RejectKind as K;
use super::stack::{StackFault, StackMem};
use super::state::State;
use super::value::{Home, Ptr, Value};
use crate::isa::{MapIdx, Reg};
use crate::limits::STACK_BYTES;
use crate::map::{MapDecl, MapKind};

/// Bytes of a read-only table whose elements are looked at one by one.
const MAX_TABLE_ELEMENTS: u64 = 256;

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Read,
    Write,
    /// Reads and writes.
    Atomic,
}

impl Act {
    fn name(self) -> &'static str {
        match self {
            Act::Read => "read",
            Act::Write => "write",
            Act::Atomic => "atomic access",
        }
    }
}

/// An access that stays inside its home.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) home: Home,
    /// First byte, relative to the home (a frame's r10 for the stack).
    pub(crate) off: Scalar,
    pub(crate) size: u32,
}

impl Place {
    /// As a fact: an offset only where it is one constant, and relative to the *running* frame.
    pub(crate) fn access(&self, current: u8) -> Access {
        let region = match self.home {
            Home::Ctx => Region::Ctx,
            Home::Stack(_) => Region::Stack,
            Home::Map(m) | Home::Record(m, _) => Region::Map(m),
            Home::Key(_) => Region::Key,
        };
        let constant = self.off.as_const().and_then(|x| i32::try_from(x as i64).ok());
        let mine = !matches!(self.home, Home::Stack(f) if f != current);
        Access { region, offset: constant.filter(|_| mine) }
    }

    /// All bytes that may be touched, from the home's start.
    pub(crate) fn reach(&self) -> (i64, i64) {
        (self.off.smin(), self.off.smax().saturating_add(self.size.into()))
    }

    /// Index of the lowest byte of the stack that may be touched.
    pub(crate) fn stack_start(&self) -> usize {
        (self.off.smin() + i64::from(STACK_BYTES)) as usize
    }

    /// Bytes of the stack that may be touched.
    pub(crate) fn stack_len(&self) -> usize {
        (self.off.smax() - self.off.smin()) as usize + self.size as usize
    }

    fn is_exact(&self) -> bool {
        self.off.as_const().is_some()
    }
}

/// An access before it is judged; for messages.
#[derive(Clone, Copy)]
pub(crate) struct Ask {
    pub(crate) base: Reg,
    pub(crate) off: i16,
    pub(crate) size: u32,
    pub(crate) act: Act,
}

impl Ask {
    fn text(&self) -> String {
        format!("{}-byte {} at {}{:+}", self.size, self.act.name(), self.base, self.off)
    }

    fn refuse<T>(&self, kind: K, why: impl AsRef<str>) -> Duty<T> {
        refuse_reg(kind, self.base, format!("{}: {}", self.text(), why.as_ref()))
    }
}

impl Machine<'_> {
    pub(crate) fn map_name(&self, m: MapIdx) -> &str {
        self.program.maps().get(usize::from(m.0)).map_or("?", |d| &d.name)
    }

    pub(crate) fn map(&self, m: MapIdx) -> Duty<&MapDecl> {
        match self.program.maps().get(usize::from(m.0)) {
            Some(d) => Ok(d),
            None => super::explain::refuse(K::Internal, format!("map {} is not declared", m.0)),
        }
    }

    /// Judges an access: the base is a pointer, not null, in bounds, with the right to do it.
    pub(crate) fn place(&self, state: &State, ask: Ask) -> Duty<Place> {
        let p = match state.reg(ask.base) {
            Value::Ptr(p) => p,
            Value::Uninit => {
                return refuse_reg(
                    K::UninitRegister,
                    ask.base,
                    format!("{} is read before it is set", ask.base),
                );
            }
            v => {
                let what = format!("{} is {}, not a pointer to memory", ask.base, self.describe(&v));
                return ask.refuse(K::NotPointer, what);
            }
        };
        if p.nullable {
            let what = self.describe(&Value::Ptr(p));
            return ask.refuse(K::NullDeref, format!("{} is {what}", ask.base));
        }
        let off = add_const(p.off, ask.off.into());
        let place = Place { home: p.home, off, size: ask.size };
        match p.home {
            Home::Stack(f) => {
                self.in_stack(&place, ask)?;
                if let Some(func) = state.func_of(f) {
                    self.stack.note(func, off.smin());
                }
            }
            Home::Map(m) => self.in_map(&place, m, ask)?,
            // Whatever the search has joined: what is not held is not there.
            Home::Record(..) if !state.holds(p.id) => {
                return ask.refuse(K::Reference, format!("the record of {} is not held", ask.base));
            }
            Home::Record(m, bytes) => self.in_record(&place, m, bytes, ask)?,
            Home::Key(m) => self.in_key(&place, m, ask)?,
            Home::Ctx => self.in_ctx(&place, ask)?,
        }
        if ask.act == Act::Atomic && !off.tnum().is_aligned(ask.size.into()) {
            return ask
                .refuse(K::Misaligned, format!("offset {} must be a multiple of {}", span(off), ask.size));
        }
        Ok(place)
    }

    fn in_stack(&self, place: &Place, ask: Ask) -> Duty {
        let limit = i64::from(STACK_BYTES);
        if place.off.smin() < -limit || place.off.smax() > -i64::from(ask.size) {
            let why = format!("offset {} from r10, must be in [-{limit}, -{}]", span(place.off), ask.size);
            return ask.refuse(K::StackOob, why);
        }
        Ok(())
    }

    fn in_map(&self, place: &Place, m: MapIdx, ask: Ask) -> Duty {
        let map = self.map(m)?;
        let room = i64::from(map.value_size) - i64::from(ask.size);
        if place.off.smin() < 0 || place.off.smax() > room {
            let value = format!("the {}-byte value of map {}", map.value_size, map.name);
            let why = if room < 0 {
                format!("larger than {value}")
            } else {
                let needed = if room == 0 { "0".into() } else { format!("in [0, {room}]") };
                format!("offset {}, must be {needed} in {value}", span(place.off))
            };
            return ask.refuse(K::MapOob, why);
        }
        if map.read_only && ask.act != Act::Read {
            return ask.refuse(K::ReadOnlyMap, format!("map {} is read-only", map.name));
        }
        let (lo, hi) = place.reach();
        if map.touches_lock(lo, hi) {
            let at = map.spin_lock.unwrap_or_default();
            let why =
                format!("offset {} touches the bpf_spin_lock at {at} of map {}", span(place.off), map.name);
            return ask.refuse(K::SpinLock, why);
        }
        Ok(())
    }

    fn in_record(&self, place: &Place, m: MapIdx, bytes: u32, ask: Ask) -> Duty {
        let room = i64::from(bytes) - i64::from(ask.size);
        if place.off.smin() < 0 || place.off.smax() > room {
            let why =
                format!("offset {} in a record of {bytes} bytes of {}", span(place.off), self.map_name(m));
            return ask.refuse(K::MapOob, why);
        }
        Ok(())
    }

    /// A copy of a key, as a callback of `for_each_map_elem` gets it.
    fn in_key(&self, place: &Place, m: MapIdx, ask: Ask) -> Duty {
        let map = self.map(m)?;
        let room = i64::from(map.key_size) - i64::from(ask.size);
        if place.off.smin() < 0 || place.off.smax() > room {
            let (at, key) = (span(place.off), map.key_size);
            return ask.refuse(K::MapOob, format!("offset {at} in the {key}-byte key of map {}", map.name));
        }
        if ask.act != Act::Read {
            return ask.refuse(K::ReadOnlyMap, format!("a key of map {} is read-only", map.name));
        }
        Ok(())
    }

    fn in_ctx(&self, place: &Place, ask: Ask) -> Duty {
        let size = i64::from(self.env.ctx.size());
        if place.off.smin() < 0 || place.off.smax() > size - i64::from(ask.size) {
            let why = format!("offset {} in a context of {size} bytes", span(place.off));
            return ask.refuse(K::CtxOob, why);
        }
        match &self.env.ctx {
            CtxLayout::Buffer { .. } => Ok(()),
            CtxLayout::Fields { fields, .. } => self.in_fields(place, fields, ask),
        }
    }

    fn in_fields(&self, place: &Place, fields: &[CtxField], ask: Ask) -> Duty {
        let writes = ask.act != Act::Read;
        let wrong = if writes { K::CtxWrite } else { K::CtxField };
        let at = span(place.off);
        let Some(field) = field_of(fields, place.reach()) else {
            return ask.refuse(wrong, format!("offset {at} {}", across(fields, place.reach())));
        };
        let name = field.name;
        if ask.act == Act::Atomic {
            return ask.refuse(wrong, format!("{name} is no memory for atomics"));
        }
        if writes && field.rights == Rights::Read {
            return ask.refuse(wrong, format!("{name} (offset {at}) is an input"));
        }
        let fits = if writes { ask.size == field.width } else { ask.size <= field.width };
        let rel = add_const(place.off, -i64::from(field.offset));
        if !fits || !rel.tnum().is_aligned(ask.size.into()) {
            let why = format!("{name} (offset {at}) has elements of {} bytes", field.width);
            return super::explain::advise(ask.refuse(wrong, why), super::explain::HINT_WIDTH);
        }
        Ok(())
    }

    /// What a read of a judged place gives.
    pub(crate) fn load(&self, state: &State, place: &Place, ask: Ask) -> Duty<Value> {
        let any = Scalar::bits(8 * place.size);
        match place.home {
            Home::Stack(f) => match state.stack(f) {
                Some(stack) => load_stack(stack, place, ask),
                None => super::explain::refuse(K::Internal, "a pointer into a frame that is gone"),
            },
            Home::Map(m) => {
                let map = self.map(m)?;
                let known =
                    if map.read_only && map.kind == MapKind::Global { table(map, place) } else { None };
                let label = if known.is_some() { RankLabel::Uniform } else { map_label(map) };
                Ok(Value::num(known.unwrap_or(any), label))
            }
            Home::Record(m, _) | Home::Key(m) => Ok(Value::num(any, map_label(self.map(m)?))),
            Home::Ctx => {
                let field = field_of(self.env.ctx.fields(), place.reach());
                Ok(Value::num(any, field.map_or(RankLabel::Uniform, |f| f.label)))
            }
        }
    }

    /// Stores `value` to a judged place; `reg` is the register that it came from.
    pub(crate) fn store(
        &self,
        state: &mut State,
        place: &Place,
        value: &Value,
        reg: Option<Reg>,
        ask: Ask,
    ) -> Duty {
        if value.is_pointer() {
            self.may_keep_pointer(state, place, value, reg, ask)?;
        }
        let Home::Stack(f) = place.home else { return Ok(()) };
        let Some(stack) = state.stack_mut(f) else {
            return super::explain::refuse(K::Internal, "a pointer into a frame that is gone");
        };
        if place.is_exact() {
            stack.write(place.stack_start(), place.size as usize, value);
        } else {
            stack.write_somewhere(place.stack_start(), place.stack_len(), value);
        }
        Ok(())
    }

    /// A pointer may be kept whole in an aligned slot of a stack that does not outlive what it points to.
    fn may_keep_pointer(&self, state: &State, place: &Place, v: &Value, reg: Option<Reg>, ask: Ask) -> Duty {
        let what = self.describe(v);
        let reg = reg.unwrap_or(ask.base);
        let text = ask.text();
        let Home::Stack(f) = place.home else {
            return refuse_reg(
                K::PointerLeak,
                reg,
                format!("{text}: {reg} is {what}; only numbers may be stored there"),
            );
        };
        if place.size != 8 {
            return refuse_reg(
                K::PointerLeak,
                reg,
                format!("{text}: only a part of {reg}, {what}, is stored"),
            );
        }
        if !place.is_exact() {
            return refuse_reg(K::PointerLeak, reg, format!("{text}: {what} stored at a variable offset"));
        }
        if !place.off.tnum().is_aligned(8) {
            return refuse_reg(
                K::Misaligned,
                reg,
                format!("{text}: {what} needs an offset that is a multiple of 8"),
            );
        }
        // A pointer into this call's stack would dangle there. One into an older frame would not, but the kernel makes no
        // difference ("cannot spill pointers to stack into stack frame of the caller"), and nothing honest needs it.
        if f != state.current() && matches!(v, Value::Ptr(Ptr { home: Home::Stack(_), .. })) {
            let why = format!("{text}: {reg} points into a stack, and may not be kept in a caller's stack");
            return refuse_reg(K::PointerLeak, reg, why);
        }
        Ok(())
    }

    /// Judges the `size` bytes behind a helper's argument: readable, initialised, numbers.
    pub(crate) fn readable(&self, state: &State, reg: Reg, size: u32) -> Duty<Place> {
        let ask = Ask { base: reg, off: 0, size, act: Act::Read };
        match state.reg(reg) {
            Value::Ptr(Ptr { home: Home::Ctx, nullable: false, off, .. })
                if matches!(self.env.ctx, CtxLayout::Fields { .. }) =>
            {
                self.fields_readable(off, ask)
            }
            Value::Ptr(_) | Value::Uninit => {
                let place = self.place(state, ask)?;
                if matches!(place.home, Home::Stack(_)) {
                    self.stack_numbers(state, &place, ask)?;
                }
                Ok(place)
            }
            v => {
                let what = self.describe(&v);
                refuse_reg(K::HelperArg, reg, format!("{reg} is {what}, must point to {size} readable bytes"))
            }
        }
    }

    fn stack_numbers(&self, state: &State, place: &Place, ask: Ask) -> Duty {
        let Home::Stack(f) = place.home else { return Ok(()) };
        let Some(stack) = state.stack(f) else { return Ok(()) };
        numbers(stack, place, ask)
    }

    /// Bytes handed to a helper may span fields, but hold no padding.
    fn fields_readable(&self, off: Scalar, ask: Ask) -> Duty<Place> {
        let place = Place { home: Home::Ctx, off, size: ask.size };
        let (lo, hi) = place.reach();
        if lo < 0 || hi > i64::from(self.env.ctx.size()) {
            let why = format!("offset {} in a context of {} bytes", span(off), self.env.ctx.size());
            return ask.refuse(K::CtxOob, why);
        }
        let mut covered = lo;
        for f in self.env.ctx.fields() {
            if i64::from(f.offset) <= covered && covered < i64::from(f.offset + f.bytes()) {
                covered = (f.offset + f.bytes()).into();
            }
        }
        if covered < hi {
            return ask.refuse(K::CtxField, format!("byte {covered} of the context is padding"));
        }
        Ok(place)
    }
}

/// `s + k`.
pub(crate) fn add_const(s: Scalar, k: i64) -> Scalar {
    s.alu(crate::isa::AluOp::Add, Scalar::constant(k as u64), crate::isa::Width::W64)
}

/// The field that holds all of `[lo, hi)`.
fn field_of(fields: &[CtxField], (lo, hi): (i64, i64)) -> Option<&CtxField> {
    fields.iter().find(|f| i64::from(f.offset) <= lo && hi <= i64::from(f.offset) + i64::from(f.bytes()))
}

/// How bytes that lie in no field lie to the fields.
fn across(fields: &[CtxField], (lo, hi): (i64, i64)) -> String {
    let end = |f: &CtxField| i64::from(f.offset + f.bytes());
    let touched: Vec<&CtxField> = fields.iter().filter(|f| i64::from(f.offset) < hi && lo < end(f)).collect();
    match touched[..] {
        [] => "is padding".into(),
        [f] if lo >= f.offset.into() && f.count > 1 => {
            format!("runs past {} ({} elements of {} bytes at {})", f.name, f.count, f.width, f.offset)
        }
        [f] => format!("reaches from {} into padding", f.name),
        [first, .., last] => format!("reaches across fields, from {} to {}", first.name, last.name),
    }
}

/// Map contents: rank-local until a map's scope says that it is agreed between ranks.
fn map_label(_map: &MapDecl) -> RankLabel {
    RankLabel::RankLocal
}

fn numbers(stack: &StackMem, place: &Place, ask: Ask) -> Duty {
    match stack.check_numbers(place.stack_start(), place.stack_len()) {
        Ok(()) => Ok(()),
        Err(StackFault::Uninit(at)) => {
            let at = at as i64 - i64::from(STACK_BYTES);
            let why =
                format!("the byte at r10{at:+} was never written, or is left of an overwritten pointer");
            ask.refuse(K::UninitStack, why)
        }
        Err(StackFault::Pointer) => ask.refuse(K::PointerLeak, "these bytes hold a pointer"),
    }
}

fn load_stack(stack: &StackMem, place: &Place, ask: Ask) -> Duty<Value> {
    if place.is_exact()
        && let Ok(v) = stack.read(place.stack_start(), place.size as usize)
    {
        return Ok(v);
    }
    numbers(stack, place, ask)?;
    let label = stack.label(place.stack_start(), place.stack_len());
    Ok(Value::num(Scalar::bits(8 * place.size), label))
}

/// The numbers that a read of constant data may give; `None` if it has too many places to look at.
fn table(map: &MapDecl, place: &Place) -> Option<Scalar> {
    let (lo, hi) = (place.off.umin(), place.off.umax());
    let step = 1u64 << place.off.tnum().possible().trailing_zeros().min(3);
    if hi.checked_sub(lo)? / step >= MAX_TABLE_ELEMENTS {
        return None;
    }
    let at = |off: u64| {
        let start = usize::try_from(off).ok()?;
        let bytes = map.init.get(start..start.checked_add(place.size as usize)?)?;
        let x = bytes.iter().rev().fold(0u64, |x, b| x << 8 | u64::from(*b));
        Some(Scalar::constant(x))
    };
    (lo..=hi).filter(|&o| place.off.contains(o)).map(at).reduce(|a, b| Some(a?.join(b?)))?
}
