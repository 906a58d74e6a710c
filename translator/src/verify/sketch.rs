//! [`Sketch`]: a state in few words, to see at a glance that one state cannot include another.
//!
//! A search compares each state with dozens of kept ones, most of which differ in the kind of a value or in a constant.
//! Kept states are large and lie apart, so that looking into them is what the comparison costs. A sketch never says
//! "no" where [`State::is_subset`] would say "yes"; nothing rests on it but speed.

use super::stack::{ByteSet, StackMem};
use super::state::State;
use super::value::{Home, Value};

/// What a state is, and where a state that it includes must be alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Alike {
    code: u128,
    mask: u128,
}

impl Alike {
    fn put(&mut self, at: usize, (code, mask): (u16, u16)) {
        self.code |= u128::from(code) << at;
        self.mask |= u128::from(mask) << at;
    }
}

/// A small set of (place, byte): a member may seem to be in it that is not, never the other way round.
type Bloom = [u64; 4];

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sketch {
    /// [`REG_BITS`] bits for each register of the running frame.
    regs: Alike,
    /// Two bits for each 8 bytes of its stack: a pointer is kept there, numbers, or nothing.
    slots: Alike,
    /// One byte of each constant that it keeps on the stack.
    needs: Bloom,
}

/// Bits of a register.
const REG_BITS: usize = 11;
/// Kinds of a value, in the two highest bits; 0 is for what is not set.
const NUMBER: u16 = 1 << 9;
const POINTER: u16 = 2 << 9;
const OTHER: u16 = 3 << 9;
const KIND: u16 = 3 << 9;
/// Of a number: it is constant. Of a pointer: it is not null.
const EXACT: u16 = 1 << 8;
const ALL: u16 = (1 << REG_BITS) - 1;

/// A few bits of a number.
fn hash(x: u64, bits: u32) -> u16 {
    (x.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - bits)) as u16
}

/// Code and mask of a value.
fn value(v: &Value) -> (u16, u16) {
    match v {
        Value::Uninit => (0, 0),
        Value::Num(n) => {
            let s = n.s;
            let is =
                [s.umin() > 0, s.umax() >> 32 == 0, s.umax() >> 16 == 0, s.umax() >> 8 == 0, s.smin() >= 0];
            let flags = (0..).zip(is).fold(0, |f, (i, b)| f | u16::from(b) << i);
            match s.as_const() {
                Some(x) => (NUMBER | EXACT | hash(x, 3) << 5 | flags, ALL),
                None => (NUMBER | flags, KIND | flags),
            }
        }
        Value::Ptr(p) => {
            let home = match p.home {
                Home::Ctx => 0,
                Home::Stack(f) => 1 + u64::from(f),
                Home::Map(m) => 256 + u64::from(m.0),
                Home::Record(m, size) => u64::from(m.0) << 32 | u64::from(size),
                Home::Key(m) => 1 << 48 | u64::from(m.0),
            };
            let sure = if p.nullable { 0 } else { EXACT };
            (POINTER | sure | hash(home, 8), ALL & !EXACT | sure)
        }
        Value::MapObject(m) => (OTHER | hash(m.0.into(), 8), ALL),
        Value::Func(pc) => (OTHER | hash(pc.0.into(), 8), ALL),
    }
}

fn slots(m: &StackMem) -> Alike {
    let mut out = Alike::default();
    let mut pointers = ByteSet::default();
    for s in m.spills().iter().filter(|s| s.value.is_pointer()) {
        pointers.insert(s.start().into(), s.size().into());
    }
    for i in 0..64 {
        if pointers.intersects(i * 8, 8) {
            out.put(i * 2, (1, 3));
        } else if m.initialised().intersects(i * 8, 8) {
            out.put(i * 2, (2, 3));
        }
    }
    out
}

fn mark(b: &mut Bloom, at: usize, byte: u8) {
    let h = hash((at as u64) << 8 | u64::from(byte), 8);
    b[usize::from(h >> 6)] |= 1 << (h & 63);
}

/// Spilled constants: where they start, and their bytes.
fn constants(m: &StackMem) -> impl Iterator<Item = (usize, u64, usize)> + '_ {
    m.spills().iter().filter_map(|s| match *s.value {
        Value::Num(n) => Some((s.start().into(), n.s.as_const()?, s.size().into())),
        _ => None,
    })
}

impl Sketch {
    pub(super) fn of(s: &State) -> Sketch {
        let (mut regs, mut needs) = (Alike::default(), Bloom::default());
        let Some(frame) = s.frames().last() else { return Sketch { regs, slots: regs, needs } };
        for (i, v) in frame.regs().iter().enumerate() {
            regs.put(i * REG_BITS, value(v));
        }
        for (start, x, _) in constants(frame.stack()) {
            mark(&mut needs, start, x as u8);
        }
        Sketch { regs, slots: slots(frame.stack()), needs }
    }

    /// May a state with this sketch, and with these known bytes, lie in one with that?
    pub(super) fn may_lie_in(&self, kept: &Sketch, known: &Bloom) -> bool {
        self.regs.code & kept.regs.mask == kept.regs.code
            && self.slots.code & kept.slots.mask == kept.slots.code
            && kept.needs.iter().zip(known).all(|(n, k)| n & !k == 0)
    }

    /// All bytes of a state's stack that are known.
    pub(super) fn known(s: &State) -> Bloom {
        let mut out = Bloom::default();
        let Some(frame) = s.frames().last() else { return out };
        let stack = frame.stack();
        for (start, x, size) in constants(stack) {
            (0..size).for_each(|i| mark(&mut out, start + i, (x >> (8 * i)) as u8));
        }
        // Bytes of numbers that are not constant may be known as well.
        for s in stack.spills() {
            if let Value::Num(n) = *s.value
                && n.s.as_const().is_none()
            {
                let t = n.s.tnum();
                for i in (0..usize::from(s.size())).filter(|i| t.mask >> (8 * i) & 0xff == 0) {
                    mark(&mut out, usize::from(s.start()) + i, (t.value >> (8 * i)) as u8);
                }
            }
        }
        stack.zeroes().iter().for_each(|i| mark(&mut out, i, 0));
        out
    }
}

#[cfg(all(test, feature = "asm"))]
mod tests {
    use super::*;
    use crate::isa::asm::assemble;
    use crate::verify::explore::explore;
    use crate::verify::{Env, Machine};

    /// On all pairs of states that a search keeps: included only if the sketches allow it, and they do tell some apart.
    #[test]
    fn a_sketch_refuses_no_state_that_is_included() {
        let text = "
            r6 = r1
            r2 = *(u64 *)(r1 + 0)
            if r2 == 0 goto a
            *(u64 *)(r10 - 8) = r2
            r6 = r10
        a:
            r7 = 0
            if r2 == 5 goto b
            r7 = r2
        b:
            r3 = *(u64 *)(r1 + 8)
            if r3 > 9 goto c
            r7 = 7
        c:
            if r3 > 3 goto d
            r6 = 1
        d:
            r0 = r7
            if r6 == 0 goto e
            r0 = 1
        e:
            exit";
        let (program, env) = (assemble(text, &[]).unwrap(), Env::generic(64));
        let m = Machine::new(&program, &env);
        let Ok(cert) = explore(&m) else { panic!("the program is refused") };
        let (mut included, mut apart) = (0, 0);
        for a in &cert.nodes {
            for b in cert.nodes.iter().filter(|b| b.pc == a.pc) {
                let known = Sketch::known(&a.state);
                let may = Sketch::of(&a.state).may_lie_in(&Sketch::of(&b.state), &known);
                let does = a.state.is_subset(&b.state);
                assert!(may || !does, "{:?}\n{:?}", a.state, b.state);
                included += u32::from(does);
                apart += u32::from(!may);
            }
        }
        assert!(included > 5 && apart > 5, "{included} {apart}");
    }
}
