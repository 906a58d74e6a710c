//! [`State::widened`]: one state that includes two. Untrusted: its result is tested for inclusion, as all kept states are.

use super::domain::Scalar;
use super::stack::{ByteSet, Spill, StackMem};
use super::state::{Lock, Ref, State};
use super::value::{Num, Ptr, Value};
use std::rc::Rc;

/// How two different numbers become one.
type Wider<'a> = &'a mut dyn FnMut(Scalar, Scalar) -> Scalar;

/// Pairs of ids that became one: two values are linked in the result if they are in both states.
pub(super) struct Joiner<'a> {
    ids: Vec<(u32, u32, i64)>,
    wider: Wider<'a>,
}

impl Joiner<'_> {
    fn id(&mut self, a: u32, b: u32, apart: i64) -> u32 {
        if a == 0 || b == 0 {
            return 0;
        }
        let at = self.ids.iter().position(|x| *x == (a, b, apart)).unwrap_or_else(|| {
            self.ids.push((a, b, apart));
            self.ids.len() - 1
        });
        at as u32 + 1
    }

    fn scalar(&mut self, a: Scalar, b: Scalar) -> Scalar {
        if b.is_subset(a) { a } else { (self.wider)(a, b) }
    }

    fn num(&mut self, a: &Num, b: &Num) -> Num {
        let s = self.scalar(a.s, b.s);
        let id = self.id(a.id, b.id, a.delta.wrapping_sub(b.delta));
        let delta = if id == 0 { 0 } else { a.delta };
        let half = id != 0 && (a.half || b.half);
        Num { s, id, delta, half, label: a.label.max(b.label) }
    }

    fn ptr(&mut self, a: &Ptr, b: &Ptr) -> Value {
        let off = self.scalar(a.off, b.off);
        let id = self.id(a.id, b.id, 0);
        let nullable = a.nullable || b.nullable;
        let objects = (a.id == 0) == (b.id == 0);
        // Only an untouched pointer may be null.
        if a.home != b.home || !objects || (nullable && off.as_const() != Some(0)) {
            return Value::Uninit;
        }
        Value::Ptr(Ptr { home: a.home, off, id, nullable })
    }

    pub(super) fn value(&mut self, a: &Value, b: &Value) -> Value {
        match (a, b) {
            (Value::Num(a), Value::Num(b)) => Value::Num(self.num(a, b)),
            (Value::Ptr(a), Value::Ptr(b)) => self.ptr(a, b),
            (a, b) if a == b => *a,
            _ => Value::Uninit,
        }
    }
}

impl State {
    /// A state that includes both, or `None` if they stand in different calls. `wider` is asked where a number of `b` is not in ours.
    pub(crate) fn widened(&self, b: &State, wider: Wider<'_>) -> Option<State> {
        if !self.same_calls(b) {
            return None;
        }
        let mut j = Joiner { ids: Vec::new(), wider };
        let mut out = self.clone();
        for (f, g) in out.frames_mut().iter_mut().zip(b.frames()).rev() {
            if Rc::ptr_eq(f, g) && !g.has_ids() {
                continue;
            }
            let f = Rc::make_mut(f);
            for (x, y) in f.regs_mut().iter_mut().zip(g.regs()) {
                *x = j.value(x, y);
            }
            let stack = f.stack().widened(g.stack(), &mut j);
            f.set_stack(stack);
        }
        let mut ghosts = self.ghosts().to_vec();
        ghosts.retain_mut(|g| {
            let same = |h: &&super::ghost::Ghost| (h.of, h.frame, h.region) == (g.of, g.frame, g.region);
            let other = b.ghosts().iter().find(same);
            other.is_some_and(|h| {
                g.num = j.num(&g.num, &h.num);
                true
            })
        });
        *out.ghosts_mut() = ghosts;
        out.join_held(b, &mut j)?;
        out.ids_from(j.ids.len() as u32 + 1);
        Some(out)
    }
}

impl State {
    /// References and the lock under their joined ids; `None` if the states do not hold alike.
    fn join_held(&mut self, b: &State, j: &mut Joiner<'_>) -> Option<()> {
        let mut rest = b.refs().to_vec();
        let mut refs = Vec::with_capacity(rest.len());
        for r in self.refs().to_vec() {
            let partner = j.ids.iter().find(|x| x.0 == r.id).map(|x| x.1);
            let fits = |o: &Ref| o.scope == r.scope && partner.is_none_or(|id| id == o.id);
            let other = rest.swap_remove(rest.iter().position(fits)?);
            refs.push(Ref { id: j.id(r.id, other.id, 0), scope: r.scope });
        }
        let lock = match (self.lock(), b.lock()) {
            (None, None) => None,
            (Some(x), Some(y)) if x.map == y.map => Some(Lock { map: x.map, id: j.id(x.id, y.id, 0) }),
            _ => return None,
        };
        self.set_held(refs, lock);
        rest.is_empty().then_some(())
    }
}

impl StackMem {
    /// Bytes that are numbers in both are numbers; what was stored whole in ours stays whole if the other can be read so.
    fn widened(&self, b: &StackMem, j: &mut Joiner<'_>) -> StackMem {
        let mut out = self.meet_bytes(b);
        for s in self.spills() {
            let (start, size) = (usize::from(s.start()), usize::from(s.size()));
            let other = b.read(start, size).ok();
            match other.map(|o| j.value(&s.value, &o)) {
                Some(Value::Uninit) | None => out.unset(start, size),
                Some(v) => out.put(Spill::new(s.start(), s.size(), v)),
            }
        }
        for s in b.spills().iter().filter(|s| s.value.is_pointer()) {
            let (start, size) = (usize::from(s.start()), usize::from(s.size()));
            let whole = out.spills().iter().any(|o| (o.start(), o.size()) == (s.start(), s.size()));
            if !whole {
                out.unset(start, size);
            }
        }
        out
    }

    /// Initialised, zero and local bytes of both; no spills.
    fn meet_bytes(&self, b: &StackMem) -> StackMem {
        let zero = self.zeroes().meet(&b.all_zeroes(self.zeroes()));
        StackMem::from_bytes(self.initialised().meet(b.initialised()), zero, self.locals().union(b.locals()))
    }

    /// Those of `wanted` that are zero here.
    fn all_zeroes(&self, wanted: &ByteSet) -> ByteSet {
        let mut out = ByteSet::default();
        let bytes = (0..crate::limits::STACK_BYTES as usize).filter(|&i| wanted.contains(i, 1));
        bytes.filter(|&i| self.is_zero(i)).for_each(|i| out.insert(i, 1));
        out
    }
}
