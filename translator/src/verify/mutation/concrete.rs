//! [`Concrete`]: one state of the machine that an abstract [`State`] stands for. Drawing one and testing for membership
//! are written from the meaning of states, apart from the verifier's own inclusion.

use super::Random;
use crate::isa::{MapIdx, Pc};
use crate::limits::STACK_BYTES;
use crate::verify::domain::Scalar;
use crate::verify::env::RankLabel;
use crate::verify::ghost::{Counter, Ghost};
use crate::verify::stack::StackMem;
use crate::verify::state::{LAPS, Ref, State};
use crate::verify::value::{Home, Num, Ptr, Value};
use std::collections::HashMap;

/// A value at run time. Pointers are told from numbers, and objects from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Datum {
    Junk,
    Num(u64),
    Ptr(Home, u64, u32),
    Map(MapIdx),
    Func(Pc),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Byte {
    Junk,
    Num(u8),
    /// A part of a pointer.
    Pointer,
}

/// The bytes of a frame, the lowest first.
type Bytes = Vec<(Byte, RankLabel)>;

struct ConcreteFrame {
    /// Return, function, and whether a helper called it.
    call: (Pc, Pc, bool),
    regs: Vec<(Datum, RankLabel)>,
    bytes: Bytes,
    /// Pointers on the stack, by their first byte.
    pointers: HashMap<usize, Datum>,
}

/// A concrete state.
pub(super) struct Concrete {
    frames: Vec<ConcreteFrame>,
    ghosts: Vec<(Ghost, Datum)>,
    /// References that are held: object and scope.
    refs: Vec<(u32, u8)>,
    lock: Option<(MapIdx, u32)>,
}

/// What an id stands for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    /// The number less its delta.
    Base(u64),
    Object(u32),
    Null,
}

/// Draws one concrete state.
struct Draw<'a> {
    r: &'a mut Random,
    ids: HashMap<u32, Class>,
}

/// A number of the element, often at its border.
fn pick(s: Scalar, r: &mut Random) -> Option<u64> {
    for _ in 0..24 {
        let t = s.tnum();
        let x = match r.below(8) {
            0 => s.umin(),
            1 => s.umax(),
            2 => s.smin() as u64,
            3 => s.smax() as u64,
            4 => s.umin().wrapping_add(r.below((s.umax() - s.umin()).saturating_add(1))),
            5 => s.umin().wrapping_add(r.below(4)),
            6 => t.value | (r.next() & t.mask & (u64::MAX >> r.below(64))),
            _ => t.value | (r.next() & t.mask),
        };
        if s.contains(x) {
            return Some(x);
        }
    }
    None
}

impl Draw<'_> {
    fn num(&mut self, n: &Num) -> Option<u64> {
        let x = match self.ids.get(&n.id) {
            Some(Class::Base(base)) if n.id != 0 => base.wrapping_add(n.delta as u64),
            _ => pick(n.s, self.r)?,
        };
        if n.id != 0 {
            self.ids.insert(n.id, Class::Base(x.wrapping_sub(n.delta as u64)));
        }
        n.s.contains(x).then_some(x)
    }

    fn ptr(&mut self, p: &Ptr) -> Option<Datum> {
        let null = p.nullable && self.r.below(3) == 0;
        let fresh = if null { Class::Null } else { Class::Object(p.id) };
        let class = if p.id == 0 { fresh } else { *self.ids.entry(p.id).or_insert(fresh) };
        match class {
            Class::Null if p.nullable => Some(Datum::Num(0)),
            Class::Object(o) => Some(Datum::Ptr(p.home, pick(p.off, self.r)?, o)),
            _ => None,
        }
    }

    fn value(&mut self, v: &Value) -> Option<(Datum, RankLabel)> {
        let datum = match v {
            Value::Uninit => Datum::Junk,
            Value::Num(n) => Datum::Num(self.num(n)?),
            Value::Ptr(p) => self.ptr(p)?,
            Value::MapObject(m) => Datum::Map(*m),
            Value::Func(pc) => Datum::Func(*pc),
        };
        Some((datum, v.label()))
    }

    fn stack(&mut self, m: &StackMem) -> Option<(Bytes, HashMap<usize, Datum>)> {
        let mut bytes = vec![(Byte::Junk, RankLabel::Uniform); STACK_BYTES as usize];
        for i in m.initialised().iter() {
            let x = if m.zeroes().contains(i, 1) { 0 } else { self.r.next() as u8 };
            let label = if m.locals().contains(i, 1) { RankLabel::RankLocal } else { RankLabel::Uniform };
            bytes[i] = (Byte::Num(x), label);
        }
        let mut pointers = HashMap::new();
        for s in m.spills() {
            let (start, size) = (usize::from(s.start()), usize::from(s.size()));
            let (datum, label) = self.value(&s.value)?;
            for i in 0..size {
                let byte = match datum {
                    Datum::Num(x) => Byte::Num((x >> (8 * i)) as u8),
                    _ => Byte::Pointer,
                };
                bytes[start + i] = (byte, label.max(bytes[start + i].1));
            }
            if !matches!(datum, Datum::Num(_)) {
                pointers.insert(start, datum);
            }
        }
        Some((bytes, pointers))
    }
}

/// One concrete state of `s`; `None` if the dice find none.
pub(super) fn draw(s: &State, r: &mut Random) -> Option<Concrete> {
    let mut d = Draw { r, ids: HashMap::new() };
    let mut frames = Vec::new();
    for f in s.frames() {
        let regs = f.regs().iter().map(|v| d.value(v)).collect::<Option<Vec<_>>>()?;
        let (bytes, pointers) = d.stack(f.stack())?;
        frames.push(ConcreteFrame { call: (f.ret, f.func, f.callback), regs, bytes, pointers });
    }
    let ghost = |g: &Ghost| Some((g.clone(), Datum::Num(d.num(&g.num)?)));
    let ghosts = s.ghosts().iter().map(ghost).collect::<Option<Vec<_>>>()?;
    // What turned out to be null was not got.
    let held = |id: u32| match d.ids.get(&id) {
        Some(Class::Null) => None,
        Some(Class::Object(o)) => Some(*o),
        _ => Some(id),
    };
    let refs = s.refs().iter().filter_map(|r| Some((held(r.id)?, r.scope))).collect();
    let lock = match s.lock() {
        Some(l) => Some((l.map, held(l.id)?)),
        None => None,
    };
    Some(Concrete { frames, ghosts, refs, lock })
}

/// Tests one concrete state.
#[derive(Default)]
struct Member {
    ids: HashMap<u32, Class>,
}

impl Member {
    fn linked(&mut self, id: u32, class: Class) -> bool {
        id == 0 || *self.ids.entry(id).or_insert(class) == class
    }

    fn value(&mut self, v: &Value, datum: Datum, label: RankLabel) -> bool {
        match (v, datum) {
            (Value::Uninit, _) => true,
            (Value::Num(n), Datum::Num(x)) => {
                let class = Class::Base(x.wrapping_sub(n.delta as u64));
                label <= n.label && n.s.contains(x) && self.linked(n.id, class)
            }
            (Value::Ptr(p), Datum::Num(0)) => p.nullable && self.linked(p.id, Class::Null),
            (Value::Ptr(p), Datum::Ptr(home, off, object)) => {
                let known = if p.id == 0 { object == 0 } else { self.linked(p.id, Class::Object(object)) };
                known && p.home == home && p.off.contains(off)
            }
            (Value::MapObject(m), Datum::Map(x)) => *m == x,
            (Value::Func(pc), Datum::Func(x)) => *pc == x,
            _ => false,
        }
    }

    fn stack(&mut self, m: &StackMem, f: &ConcreteFrame) -> bool {
        let spilled = |i: usize| {
            m.spills().iter().find(|s| {
                (usize::from(s.start())..usize::from(s.start()) + usize::from(s.size())).contains(&i)
            })
        };
        let plain = m
            .initialised()
            .iter()
            .filter(|i| spilled(*i).is_none())
            .all(|i| matches!(f.bytes[i].0, Byte::Num(_)));
        let zero = m.zeroes().iter().all(|i| f.bytes[i].0 == Byte::Num(0));
        let local = |i: usize| f.bytes[i].1 == RankLabel::RankLocal;
        let labels = m.initialised().iter().all(|i| !local(i) || m.locals().contains(i, 1));
        plain
            && zero
            && labels
            && m.spills().iter().all(|s| {
                let (start, size) = (usize::from(s.start()), usize::from(s.size()));
                let bytes = &f.bytes[start..start + size];
                let label = bytes.iter().map(|b| b.1).max().unwrap_or(RankLabel::Uniform);
                let datum = match f.pointers.get(&start) {
                    Some(p) if size == 8 && bytes[0].0 == Byte::Pointer => *p,
                    _ => number(bytes).map_or(Datum::Junk, Datum::Num),
                };
                datum != Datum::Junk && self.value(&s.value, datum, label)
            })
    }
}

impl Member {
    /// All that is held must be known to be; what a value names as held must be.
    fn held(&self, s: &State, c: &Concrete) -> bool {
        let mut left = c.refs.clone();
        let (named, lost): (Vec<&Ref>, Vec<&Ref>) =
            s.refs().iter().partition(|r| self.ids.contains_key(&r.id));
        let all = named.iter().all(|r| match self.ids[&r.id] {
            Class::Object(o) => {
                let found = left.iter().position(|l| *l == (o, r.scope));
                found.map(|i| left.swap_remove(i)).is_some()
            }
            Class::Null => true,
            Class::Base(_) => false,
        });
        for r in lost {
            if let Some(i) = left.iter().position(|l| l.1 == r.scope) {
                left.swap_remove(i);
            }
        }
        all && left.is_empty()
    }

    fn locked(&mut self, s: &State, c: &Concrete) -> bool {
        match (s.lock(), c.lock) {
            (None, None) => true,
            (Some(l), Some((map, o))) => {
                l.map == map && if l.id == 0 { o == 0 } else { self.linked(l.id, Class::Object(o)) }
            }
            _ => false,
        }
    }
}

/// The number that bytes make, the lowest first.
fn number(bytes: &[(Byte, RankLabel)]) -> Option<u64> {
    bytes.iter().rev().try_fold(0, |x, (b, _)| match b {
        Byte::Num(n) => Some(x << 8 | u64::from(*n)),
        _ => None,
    })
}

impl Concrete {
    /// Is this one of the states that `s` stands for?
    pub(super) fn lies_in(&self, s: &State) -> bool {
        let mut m = Member::default();
        self.frames.len() == s.depth()
            && self.frames.iter().zip(s.frames()).all(|(c, f)| {
                let laps = f.regs()[LAPS] == Value::Uninit && c.regs[LAPS].0 != Datum::Junk;
                c.call == (f.ret, f.func, f.callback)
                    // Laps that are not counted are laps that were not made.
                    && !laps
                    && c.regs.iter().zip(f.regs()).all(|((d, l), v)| m.value(v, *d, *l))
                    && m.stack(f.stack(), c)
            })
            && s.ghosts().iter().all(|g| {
                let same = |c: &&(Ghost, Datum)| (c.0.of, c.0.frame, c.0.region) == (g.of, g.frame, g.region);
                let mine = self.ghosts.iter().find(same);
                mine.is_some_and(|(c, x)| m.value(&Value::Num(g.num), *x, c.num.label))
            })
            && m.locked(s, self)
            && m.held(s, self)
    }

    /// The counter at that place, and what it was when the run last passed invariant `of`.
    pub(super) fn lap(&self, of: u32, at: Counter) -> Option<(u64, u64)> {
        let f = self.frames.last()?;
        let frame = self.frames.len() - 1;
        let now = match at {
            Counter::Laps => match f.regs[LAPS].0 {
                Datum::Num(x) => x,
                _ => return None,
            },
            Counter::Reg(r) => match f.regs.get(r.index())?.0 {
                Datum::Num(x) => x,
                _ => return None,
            },
            Counter::Stack(start, size) => {
                number(f.bytes.get(usize::from(start)..usize::from(start) + usize::from(size))?)?
            }
        };
        let ghost = self.ghosts.iter().find(|(g, _)| g.of == of && usize::from(g.frame) == frame)?;
        match ghost.1 {
            Datum::Num(then) => Some((then, now)),
            _ => None,
        }
    }
}
