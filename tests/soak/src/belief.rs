//! [`Beliefs`]: what the generator thinks of registers and stack at one place: which accesses the verifier should
//! accept there. Programs that ignore it would be refused at once; a belief that is wrong costs a refusal, no more.

/// 8-byte stack slots that programs use; slot `s` lies at r10 - 8 * (s + 1).
pub const SLOTS: usize = 12;

/// Memory that a pointer points into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// The context.
    Ctx,
    /// This function's stack.
    Stack,
    /// So many initialised bytes of a caller's stack.
    Lent(u16),
    /// A value of that map.
    Map(u16),
    /// Global data: the only value of that map.
    Data(u16),
    /// A key that a callback gets.
    Key,
    /// A record of so many bytes in the ring buffer.
    Record(u16),
}

/// A pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ptr {
    /// Where it points.
    pub home: Home,
    /// Bytes from the start of the home (from r10), at least.
    pub lo: i32,
    /// At most.
    pub hi: i32,
    /// The part that varies is a multiple of this: 1, 2, 4 or 8.
    pub align: u8,
}

impl Ptr {
    /// A pointer to one place.
    pub fn at(home: Home, off: i32) -> Ptr {
        Ptr { home, lo: off, hi: off, align: 8 }
    }
}

/// A register, or a slot that was stored whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Not to be read.
    Unset,
    /// A number, at most this.
    Number(u64),
    /// A pointer that is not null.
    Pointer(Ptr),
    /// What a look-up gives before it is compared.
    MaybeNull(Ptr),
}

impl Kind {
    /// Any number.
    pub const NUMBER: Kind = Kind::Number(u64::MAX);

    /// Is it a number?
    pub fn is_number(self) -> bool {
        matches!(self, Kind::Number(_))
    }

    fn meet(self, other: Kind) -> Kind {
        match (self, other) {
            (Kind::Number(a), Kind::Number(b)) => Kind::Number(a.max(b)),
            (Kind::Pointer(a), Kind::Pointer(b)) if a.home == b.home => {
                let align = a.align.min(b.align).min(if a.lo == b.lo { 8 } else { 1 });
                Kind::Pointer(Ptr { home: a.home, lo: a.lo.min(b.lo), hi: a.hi.max(b.hi), align })
            }
            (a, b) if a == b => a,
            _ => Kind::Unset,
        }
    }
}

/// Eight bytes of stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// A bit for each initialised byte, the lowest address first.
    pub init: u8,
    /// What was stored whole; a number if only bytes are known.
    pub whole: Kind,
}

impl Slot {
    /// Never written.
    pub const UNSET: Slot = Slot { init: 0, whole: Kind::Unset };
    /// Eight bytes of a number.
    pub const NUMBER: Slot = Slot { init: 0xff, whole: Kind::NUMBER };

    /// Can these bytes be read as a number?
    pub fn holds_number(self, first: u32, len: u32) -> bool {
        let mask = ((1u32 << len) - 1) << first;
        u32::from(self.init) & mask == mask && !matches!(self.whole, Kind::Pointer(_) | Kind::MaybeNull(_))
    }

    /// After a store of part of it.
    pub fn overwritten(self, first: u32, len: u32) -> Slot {
        let mask = (((1u32 << len) - 1) << first) as u8;
        match self.whole {
            // What is left of a pointer is of no use.
            Kind::Pointer(_) | Kind::MaybeNull(_) => Slot { init: mask, whole: Kind::Unset },
            _ => {
                let init = self.init | mask;
                Slot { init, whole: if init == 0xff { Kind::NUMBER } else { Kind::Unset } }
            }
        }
    }

    fn meet(self, other: Slot) -> Slot {
        let whole = self.whole.meet(other.whole);
        let pointer = |s: Slot| matches!(s.whole, Kind::Pointer(_) | Kind::MaybeNull(_));
        let spoilt = pointer(self) != pointer(other) || (pointer(self) && whole == Kind::Unset);
        if spoilt { Slot::UNSET } else { Slot { init: self.init & other.init, whole } }
    }
}

/// Registers r0 to r9 and the stack of one function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beliefs {
    /// r0 to r9.
    pub regs: [Kind; 10],
    /// The stack.
    pub slots: [Slot; SLOTS],
    /// No path leads here.
    pub dead: bool,
}

impl Beliefs {
    /// Nothing is set.
    pub fn new() -> Beliefs {
        Beliefs { regs: [Kind::Unset; 10], slots: [Slot::UNSET; SLOTS], dead: false }
    }

    /// What holds on both ways.
    pub fn meet(&mut self, other: &Beliefs) {
        if other.dead {
            return;
        }
        if self.dead {
            *self = *other;
            return;
        }
        self.regs.iter_mut().zip(other.regs).for_each(|(a, b)| *a = a.meet(b));
        self.slots.iter_mut().zip(other.slots).for_each(|(a, b)| *a = a.meet(b));
    }

    /// What a call leaves: r0 is a number, r1 to r5 are gone.
    pub fn clobber(&mut self) {
        self.regs[..6].fill(Kind::Unset);
        self.regs[0] = Kind::NUMBER;
    }

    /// Values of maps may be gone.
    pub fn forget_values(&mut self) {
        self.forget(|home| matches!(home, Home::Map(_)));
    }

    /// Records have been given back.
    pub fn forget_records(&mut self) {
        self.forget(|home| matches!(home, Home::Record(_)));
    }

    fn forget(&mut self, gone: impl Fn(Home) -> bool) {
        let value = |k: &Kind| matches!(k, Kind::Pointer(p) | Kind::MaybeNull(p) if gone(p.home));
        self.regs.iter_mut().filter(|k| value(k)).for_each(|k| *k = Kind::Unset);
        self.slots.iter_mut().filter(|s| value(&s.whole)).for_each(|s| *s = Slot::UNSET);
    }
}

impl Default for Beliefs {
    fn default() -> Beliefs {
        Beliefs::new()
    }
}
