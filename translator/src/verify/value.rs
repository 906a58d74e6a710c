//! [`Value`]: what is known of a register or a spilled stack slot; [`IdMap`] carries links between values
//! from one state to another.

use super::domain::Scalar;
use super::env::RankLabel;
use crate::isa::{MapIdx, Pc};

/// Memory that a pointer points into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Home {
    /// The context.
    Ctx,
    /// The stack of that frame, counted from the entry's; offsets are relative to that frame's r10.
    Stack(u8),
    /// A value of that map.
    Map(MapIdx),
    /// A record of so many bytes in that ring buffer; the pointer's id is that of the reference.
    Record(MapIdx, u32),
    /// A copy of a key of that map, for a callback to read.
    Key(MapIdx),
}

/// A number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Num {
    pub(crate) s: Scalar,
    /// Values with the same id, other than 0, are equal up to `delta`: what one learns, all learn.
    pub(crate) id: u32,
    /// Modulo 2^64, the value less `delta` is the same for all with this id. 0 if there is none.
    pub(crate) delta: i64,
    /// The link holds for the low halves alone (modulo 2^32): 32-bit arithmetic has been at it that may have wrapped.
    pub(crate) half: bool,
    /// May ranks disagree on it? Carried along, enforced elsewhere.
    pub(crate) label: RankLabel,
}

impl Num {
    pub(crate) fn new(s: Scalar, label: RankLabel) -> Num {
        Num { s, id: 0, delta: 0, half: false, label }
    }
}

/// A pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ptr {
    pub(crate) home: Home,
    /// Bytes from the start of the home, as a signed number.
    pub(crate) off: Scalar,
    /// Pointers to one home with the same id point into the same object; 0 for homes that are one object.
    pub(crate) id: u32,
    /// May be null; then `off` is 0.
    pub(crate) nullable: bool,
}

/// What a register or a spilled slot may hold. `Uninit` is the top of the order: nothing may be done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Value {
    /// Anything; not readable.
    Uninit,
    /// A number.
    Num(Num),
    /// A pointer.
    Ptr(Ptr),
    /// A map object, as helpers take it.
    MapObject(MapIdx),
    /// The function that starts there, as a callback.
    Func(Pc),
}

impl Value {
    pub(crate) fn constant(x: u64) -> Value {
        Value::Num(Num::new(Scalar::constant(x), RankLabel::Uniform))
    }

    pub(crate) fn num(s: Scalar, label: RankLabel) -> Value {
        Value::Num(Num::new(s, label))
    }

    /// A non-null pointer into a home that is one object.
    pub(crate) fn pointer(home: Home, off: i64) -> Value {
        Value::Ptr(Ptr { home, off: Scalar::constant(off as u64), id: 0, nullable: false })
    }

    /// The number 0.
    pub(crate) fn is_null(&self) -> bool {
        matches!(self, Value::Num(n) if n.s.as_const() == Some(0))
    }

    /// Equal values have equal fingerprints.
    pub(crate) fn fingerprint(&self) -> u64 {
        match self {
            Value::Uninit => 1,
            Value::Num(n) => {
                let link = u64::from(n.id) ^ n.delta as u64 ^ u64::from(n.half) << 40;
                n.s.fingerprint().wrapping_add(link) ^ (n.label as u64) << 50
            }
            Value::Ptr(p) => {
                p.off.fingerprint().wrapping_add(u64::from(p.id) + 2) ^ u64::from(p.nullable) << 60
            }
            Value::MapObject(m) => 3 + u64::from(m.0),
            Value::Func(pc) => 5 + u64::from(pc.0),
        }
    }

    pub(crate) fn is_pointer(&self) -> bool {
        matches!(self, Value::Ptr(_) | Value::MapObject(_) | Value::Func(_))
    }

    pub(crate) fn label(&self) -> RankLabel {
        match self {
            Value::Num(n) => n.label,
            _ => RankLabel::Uniform,
        }
    }

    /// Does everything that `self` may be lie in `other`? `ids` records which id of `other` stands for which of `self`.
    pub(crate) fn is_subset(&self, other: &Value, ids: &mut IdMap) -> bool {
        match (self, other) {
            (_, Value::Uninit) => true,
            (Value::Num(a), Value::Num(b)) => {
                a.label <= b.label && a.s.is_subset(b.s) && (b.id == 0 || ids.bind(b.id, Link::of(a, b)))
            }
            (Value::Ptr(a), Value::Ptr(b)) => {
                a.home == b.home
                    && (b.nullable || !a.nullable)
                    && a.off.is_subset(b.off)
                    && ids.bind_object(b.id, a.id)
            }
            (Value::MapObject(a), Value::MapObject(b)) => a == b,
            (Value::Func(a), Value::Func(b)) => a == b,
            _ => false,
        }
    }
}

/// What an id of one state is in another: ways to tell that two values are equal.
#[derive(Clone, Copy)]
pub(crate) struct Link {
    /// The value has that id, other than 0, plus so much.
    id: (u32, i64),
    /// It is this constant.
    constant: Option<u64>,
}

impl Link {
    /// What stands for the id of `kept`.
    fn of(n: &Num, kept: &Num) -> Link {
        let delta = kept.delta;
        let constant = n.s.as_const().map(|x| x.wrapping_sub(delta as u64));
        // A link of halves does not make one of the whole.
        let id = if n.half && !kept.half { 0 } else { n.id };
        Link { id: (id, n.delta.wrapping_sub(delta)), constant }
    }

    fn to_object(id: u32) -> Link {
        Link { id: (id, 0), constant: None }
    }

    fn is_same(self, b: Link) -> bool {
        (self.id.0 != 0 && self.id == b.id) || (self.constant.is_some() && self.constant == b.constant)
    }
}

/// A function from the ids of a kept state to those of a new one. It need not be injective: a
/// new state may link more than the kept one promises, never less.
#[derive(Default)]
pub(crate) struct IdMap(Vec<(u32, Link)>);

impl IdMap {
    /// Binds the id of an object to the id of an object.
    pub(crate) fn bind_object(&mut self, id: u32, to: u32) -> bool {
        (id, to) == (0, 0) || (id != 0 && self.bind(id, Link::to_object(to)))
    }

    /// What the id of an object is bound to.
    pub(crate) fn object(&self, id: u32) -> Option<u32> {
        self.0.iter().find(|(k, _)| *k == id).map(|(_, link)| link.id.0)
    }

    /// Binds `id` to `link`; false if it is bound to something else: two values that are linked there are not
    /// known to be linked here.
    fn bind(&mut self, id: u32, link: Link) -> bool {
        match self.0.iter().find(|(k, _)| *k == id) {
            Some((_, known)) => known.is_same(link),
            None => {
                self.0.push((id, link));
                true
            }
        }
    }
}
