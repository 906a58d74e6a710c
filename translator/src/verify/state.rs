//! [`State`]: all frames of the machine at one place; [`Frame`]: registers and stack of one call.
//!
//! Meaning: all concrete states whose registers and stack bytes lie in the values, with equal numbers where ids are
//! equal. States share frames and stacks until written, so that a clone costs a few reference counts.

use super::domain::{Rel, Scalar};
use super::env::{CtxLayout, Env};
use super::ghost::Ghost;
use super::live::LiveAt;
use super::stack::StackMem;
use super::value::{Home, IdMap, Num, Ptr, Value};
use crate::isa::{AluOp, MapIdx, Pc, Reg, Width};
use std::rc::Rc;

/// A value's id, 0 for none, and its delta.
fn id_of(v: &Value) -> (u32, i64) {
    match v {
        Value::Num(n) => (n.id, n.delta),
        Value::Ptr(p) => (p.id, 0),
        _ => (0, 0),
    }
}

/// r0 to r9; r10 is known, and in its place stands [`LAPS`].
const REGS: usize = Reg::COUNT;
/// Where a frame keeps how many laps the helper has made that it called and that calls back: a number that no instruction
/// can touch, unset while no such helper has made one.
pub(crate) const LAPS: usize = Reg::FP.index();

/// One call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Frame {
    /// Where the caller goes on; 0 for the entry. For a callback the call of the helper itself, which
    /// then makes the next lap or is done.
    pub(crate) ret: Pc,
    /// Start of the function that runs.
    pub(crate) func: Pc,
    /// A helper called it.
    pub(crate) callback: bool,
    regs: [Value; REGS],
    stack: Rc<StackMem>,
}

impl Frame {
    pub(crate) fn regs(&self) -> &[Value] {
        &self.regs
    }

    pub(crate) fn regs_mut(&mut self) -> &mut [Value] {
        &mut self.regs
    }

    pub(crate) fn stack(&self) -> &StackMem {
        &self.stack
    }

    pub(crate) fn set_stack(&mut self, stack: StackMem) {
        self.stack = Rc::new(stack);
    }

    /// Is any value linked with another, or a pointer to a named object?
    pub(crate) fn has_ids(&self) -> bool {
        let spilled = self.stack.spills().iter().any(|s| id_of(&s.value).0 != 0);
        spilled || self.regs.iter().any(|v| id_of(v).0 != 0)
    }
}

/// Something that was taken and must be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ref {
    /// Id of the pointers to it.
    pub(crate) id: u32,
    /// Index of the callback's frame in which it was taken, and must be given back; 0 outside of callbacks.
    pub(crate) scope: u8,
}

/// A spin lock that is held: that of the value which pointers with this id point into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Lock {
    pub(crate) map: MapIdx,
    pub(crate) id: u32,
}

/// An abstract state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    /// The entry's frame first, the running one last; never empty.
    frames: Vec<Rc<Frame>>,
    /// Of the loops that this run is in and that have an invariant.
    ghosts: Vec<Ghost>,
    /// Ids from here on are unused.
    next_id: u32,
    /// References that are held.
    refs: Vec<Ref>,
    lock: Option<Lock>,
}

impl Frame {
    fn new(ret: Pc, func: Pc, callback: bool, regs: [Value; REGS]) -> Frame {
        Frame { ret, func, callback, regs, stack: Rc::default() }
    }

    /// Is a helper that calls back on its way, having made a lap?
    fn resumed(&self) -> bool {
        self.regs[LAPS] != Value::Uninit
    }

    /// Is this the same place of the same call?
    fn same_call(&self, other: &Frame) -> bool {
        (self.ret, self.func, self.callback, self.resumed())
            == (other.ret, other.func, other.callback, other.resumed())
    }
}

impl State {
    /// On entry of that function: r1 points to the context; r2 holds the size of a plain buffer.
    pub(crate) fn entry(env: &Env, func: Pc) -> State {
        let mut regs = [Value::Uninit; REGS];
        regs[1] = Value::pointer(Home::Ctx, 0);
        if let CtxLayout::Buffer { size } = env.ctx {
            regs[2] = Value::constant(size.into());
        }
        let frame = Frame::new(Pc(0), func, false, regs);
        let (frames, ghosts, refs) = (vec![Rc::new(frame)], Vec::new(), Vec::new());
        State { frames, ghosts, next_id: 1, refs, lock: None }
    }

    pub(crate) fn depth(&self) -> usize {
        self.frames.len()
    }

    /// Index of the running frame.
    pub(crate) fn current(&self) -> u8 {
        (self.frames.len() - 1) as u8
    }

    /// Where each frame returns to and how, the entry's first: two states can only be compared if these agree.
    pub(crate) fn same_calls(&self, other: &State) -> bool {
        self.frames.len() == other.frames.len()
            && self.frames.iter().zip(&other.frames).all(|(a, b)| a.same_call(b))
    }

    /// Does that function run in one of the frames?
    pub(crate) fn runs(&self, func: Pc) -> bool {
        self.frames.iter().any(|f| f.func == func)
    }

    /// The function of that frame.
    pub(crate) fn func_of(&self, frame: u8) -> Option<Pc> {
        self.frames.get(usize::from(frame)).map(|f| f.func)
    }

    /// Is the running function a callback?
    pub(crate) fn in_callback(&self) -> bool {
        self.top().callback
    }

    /// Index of the innermost callback's frame, 0 outside of callbacks: references are given back where they were taken.
    pub(crate) fn scope(&self) -> u8 {
        self.frames.iter().rposition(|f| f.callback).unwrap_or(0) as u8
    }

    /// Return addresses of the running calls.
    pub(crate) fn returns(&self) -> impl Iterator<Item = Pc> + '_ {
        self.frames.iter().skip(1).map(|f| f.ret)
    }

    fn top(&self) -> &Frame {
        &self.frames[self.frames.len() - 1]
    }

    fn top_mut(&mut self) -> &mut Frame {
        let last = self.frames.len() - 1;
        Rc::make_mut(&mut self.frames[last])
    }

    pub(crate) fn reg(&self, r: Reg) -> Value {
        match self.top().regs.get(r.index()) {
            Some(v) if r != Reg::FP => *v,
            _ => Value::pointer(Home::Stack(self.current()), 0),
        }
    }

    /// Sets a register; r10 has been ruled out by the caller.
    pub(crate) fn set(&mut self, r: Reg, v: Value) {
        if r != Reg::FP {
            self.top_mut().regs[r.index()] = v;
        }
    }

    pub(crate) fn stack(&self, frame: u8) -> Option<&StackMem> {
        self.frames.get(usize::from(frame)).map(|f| &*f.stack)
    }

    pub(crate) fn stack_mut(&mut self, frame: u8) -> Option<&mut StackMem> {
        let frame = self.frames.get_mut(usize::from(frame))?;
        Some(Rc::make_mut(&mut Rc::make_mut(frame).stack))
    }

    pub(crate) fn fresh_id(&mut self) -> u32 {
        self.next_id += 1;
        self.next_id - 1
    }

    /// Gives a number an id, so that a copy about to be made stays linked with it. Constants need none.
    pub(crate) fn linkable(&mut self, r: Reg) -> Value {
        let mut v = self.reg(r);
        if let Value::Num(n) = &mut v
            && n.id == 0
            && n.s.as_const().is_none()
        {
            n.id = self.fresh_id();
            self.set(r, v);
        }
        v
    }

    /// Enters the callee `func`: r1 to r5 are passed, the rest is uninitialised. The caller's frame keeps `across`,
    /// what it will look at after the call.
    pub(crate) fn push(&mut self, func: Pc, ret: Pc, across: &LiveAt) {
        let mut regs = [Value::Uninit; REGS];
        regs[1..=5].copy_from_slice(&self.top().regs[1..=5]);
        self.clean_frame(self.frames.len() - 1, across);
        self.frames.push(Rc::new(Frame::new(ret, func, false, regs)));
    }

    /// Enters the callback `func` of the helper that is called at `call`, with r1 to r5. The caller's frame keeps its
    /// registers, and goes on at `call`.
    pub(crate) fn push_callback(&mut self, func: Pc, call: Pc, args: [Value; 5], across: &LiveAt) {
        let mut regs = [Value::Uninit; REGS];
        regs[1..=5].copy_from_slice(&args);
        self.clean_frame(self.frames.len() - 1, across);
        self.frames.push(Rc::new(Frame::new(call, func, true, regs)));
    }

    /// Leaves the running function; where its caller goes on, `None` in the entry's frame. A callee leaves r0 behind, and r1
    /// to r5 are gone; a callback leaves the caller's registers as they were.
    pub(crate) fn pop(&mut self) -> Option<Pc> {
        if self.frames.len() == 1 {
            return None;
        }
        let r0 = self.reg(Reg::R0);
        let left = self.frames.pop()?;
        if left.callback {
            self.count_lap();
        } else {
            self.clobber();
            self.set(Reg::R0, r0);
        }
        Some(left.ret)
    }

    /// Laps that the helper has made which is called here; `None` before the first.
    pub(crate) fn laps(&self) -> Option<Num> {
        match self.top().regs[LAPS] {
            Value::Num(n) => Some(n),
            _ => None,
        }
    }

    /// A lap begins after so many.
    pub(crate) fn set_laps(&mut self, laps: Num) {
        self.top_mut().regs[LAPS] = Value::Num(laps);
    }

    /// A callback has returned.
    fn count_lap(&mut self) {
        if let Value::Num(n) = &mut self.top_mut().regs[LAPS] {
            n.s = n.s.alu(AluOp::Add, Scalar::constant(1), Width::W64);
            n.delta = if n.id == 0 { 0 } else { n.delta.wrapping_add(1) };
        }
    }

    /// The helper that calls back is done.
    pub(crate) fn end_laps(&mut self) {
        if self.top().resumed() {
            self.top_mut().regs[LAPS] = Value::Uninit;
        }
    }

    /// References that are held.
    pub(crate) fn refs(&self) -> &[Ref] {
        &self.refs
    }

    /// Is the reference of that id held?
    pub(crate) fn holds(&self, id: u32) -> bool {
        self.refs.iter().any(|r| r.id == id)
    }

    /// Takes a reference; its id.
    pub(crate) fn acquire(&mut self) -> u32 {
        let (id, scope) = (self.fresh_id(), self.scope());
        self.refs.push(Ref { id, scope });
        id
    }

    /// Gives a reference back: nothing points to it any more.
    pub(crate) fn release(&mut self, id: u32) {
        self.refs.retain(|r| r.id != id);
        let gone = |v: &Value| matches!(v, Value::Ptr(p) if p.id == id);
        for frame in &mut self.frames {
            if frame.regs.iter().any(gone) {
                let regs = &mut Rc::make_mut(frame).regs;
                regs.iter_mut().filter(|v| gone(v)).for_each(|v| *v = Value::Uninit);
            }
            if frame.stack.spills().iter().any(|s| gone(&s.value)) {
                Rc::make_mut(&mut Rc::make_mut(frame).stack).lose(gone);
            }
        }
    }

    /// The spin lock that is held.
    pub(crate) fn lock(&self) -> Option<Lock> {
        self.lock
    }

    pub(crate) fn set_held(&mut self, refs: Vec<Ref>, lock: Option<Lock>) {
        (self.refs, self.lock) = (refs, lock);
    }

    pub(crate) fn set_lock(&mut self, lock: Option<Lock>) {
        self.lock = lock;
    }

    /// Forgets r0 to r5, as a call does.
    pub(crate) fn clobber(&mut self) {
        self.top_mut().regs[..6].fill(Value::Uninit);
    }

    pub(crate) fn frames(&self) -> &[Rc<Frame>] {
        &self.frames
    }

    pub(crate) fn frames_mut(&mut self) -> &mut [Rc<Frame>] {
        &mut self.frames
    }

    /// Ids from `next` on are unused.
    pub(crate) fn ids_from(&mut self, next: u32) {
        self.next_id = next;
    }

    pub(crate) fn ghosts(&self) -> &[Ghost] {
        &self.ghosts
    }

    pub(crate) fn ghosts_mut(&mut self) -> &mut Vec<Ghost> {
        &mut self.ghosts
    }

    /// Applies `f` to all values that `hit` selects.
    fn update(&mut self, hit: impl Fn(&Value) -> bool, f: impl Fn(&mut Value)) {
        for g in &mut self.ghosts {
            let mut v = Value::Num(g.num);
            if hit(&v) {
                f(&mut v);
            }
            if let Value::Num(n) = v {
                g.num = n;
            }
        }
        for frame in &mut self.frames {
            if frame.regs.iter().any(&hit) {
                Rc::make_mut(frame).regs.iter_mut().filter(|v| hit(v)).for_each(&f);
            }
            if frame.stack.spills().iter().any(|s| hit(&s.value)) {
                let stack = Rc::make_mut(&mut Rc::make_mut(frame).stack);
                let spills = stack.spills_mut().iter_mut().filter(|s| hit(&s.value));
                spills.for_each(|s| f(Rc::make_mut(&mut s.value)));
            }
        }
    }

    /// A number has been found to lie in `s`: so do all that are linked with it.
    pub(crate) fn refine(&mut self, r: Reg, s: Scalar) {
        let Value::Num(n) = self.reg(r) else { return };
        if n.s == s {
            return;
        }
        self.set(r, Value::Num(Num { s, ..n }));
        if n.id != 0 {
            let hit = |v: &Value| matches!(v, Value::Num(m) if m.id == n.id && m.s != s);
            self.update(hit, |v| {
                if let Value::Num(m) = v {
                    let apart = Scalar::constant(m.delta.wrapping_sub(n.delta) as u64);
                    let width = if n.half || m.half { Width::W32 } else { Width::W64 };
                    let same = s.alu(AluOp::Add, apart, width);
                    // If they contradict each other, no run comes here; what is known stays true.
                    m.s = Scalar::assume(m.s, same, Rel::Eq, width).map_or(m.s, |(x, _)| x);
                }
            });
        }
    }

    /// A pointer has been found to be null or not: so are all copies of it.
    pub(crate) fn settle_null(&mut self, id: u32, is_null: bool) {
        if is_null {
            // What was not got need not be given back.
            self.refs.retain(|r| r.id != id);
        }
        let hit = |v: &Value| matches!(v, Value::Ptr(p) if p.nullable && p.id == id);
        self.update(hit, |v| {
            if is_null {
                *v = Value::constant(0);
            } else if let Value::Ptr(p) = v {
                p.nullable = false;
            }
        });
    }

    /// Forgets what the rest of the run, which goes on at `pc`, cannot look at, and numbers the ids in order of
    /// appearance: equal situations become equal states.
    pub(crate) fn clean(&mut self, pc: Pc, live: &LiveAt) {
        self.lay_ghosts(pc);
        self.clean_frame(self.frames.len() - 1, live);
        self.renumber();
    }

    fn clean_frame(&mut self, at: usize, live: &LiveAt) {
        let cleaned = |i: usize, v: &Value| match v {
            _ if i == LAPS => None,
            _ if live.regs >> i & 1 == 0 => Some(Value::Uninit).filter(|u| u != v),
            Value::Num(n) if live.numbers >> i & 1 == 0 => {
                Some(Value::num(Scalar::unknown(), n.label)).filter(|u| u != v)
            }
            _ => None,
        };
        let frame = &self.frames[at];
        if frame.regs.iter().enumerate().any(|(i, v)| cleaned(i, v).is_some()) {
            let regs = &mut Rc::make_mut(&mut self.frames[at]).regs;
            for (i, v) in regs.iter_mut().enumerate() {
                *v = cleaned(i, v).unwrap_or(*v);
            }
        }
        if let Some(stack) = self.frames[at].stack.cleaned(live.stack, live.stack_numbers) {
            Rc::make_mut(&mut self.frames[at]).stack = Rc::new(stack);
        }
    }

    fn renumber(&mut self) {
        if self.next_id == 1 {
            return;
        }
        // (id, times seen, the first one's delta, is it a pointer's?)
        let mut seen: Vec<(u32, u32, i64, bool)> = Vec::new();
        self.each_value(|v| {
            let (id, delta) = id_of(v);
            if id != 0 {
                match seen.iter_mut().find(|s| s.0 == id) {
                    Some(s) => s.1 += 1,
                    None => seen.push((id, 1, delta, matches!(v, Value::Ptr(_)))),
                }
            }
        });
        for id in self.held_ids().filter(|id| *id != 0) {
            if !seen.iter().any(|s| s.0 == id) {
                seen.push((id, 1, 0, true));
            }
        }
        let mut next = 1;
        // A number that is linked with nothing needs no id; a pointer's id also names its object.
        let map: Vec<(u32, u32, i64)> = seen
            .into_iter()
            .map(|(id, times, delta, pointer)| {
                let to = if times > 1 || pointer { next } else { 0 };
                next += u32::from(to != 0);
                (id, to, delta)
            })
            .collect();
        if map.iter().any(|(from, to, delta)| from != to || *delta != 0) {
            let to = |id: u32| map.iter().find(|m| m.0 == id).map_or((id, 0), |m| (m.1, m.2));
            self.update(
                |v| id_of(v).0 != 0,
                |v| match v {
                    Value::Num(n) => {
                        let (id, first) = to(n.id);
                        (n.id, n.delta) = (id, if id == 0 { 0 } else { n.delta.wrapping_sub(first) });
                        n.half &= id != 0;
                    }
                    Value::Ptr(p) => p.id = to(p.id).0,
                    _ => {}
                },
            );
            self.refs.iter_mut().for_each(|r| r.id = to(r.id).0);
            if let Some(lock) = &mut self.lock {
                lock.id = to(lock.id).0;
            }
        }
        self.refs.sort_unstable();
        self.next_id = next;
    }

    /// Equal states have equal fingerprints; others seldom do.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut h = 0u64;
        let mut mix = |x: u64| h = (h.rotate_left(5) ^ x).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for frame in &self.frames {
            frame.regs.iter().for_each(|v| mix(v.fingerprint()));
            // Loops that clear or fill a buffer differ in these alone.
            frame.stack.words().filter(|w| *w != 0).for_each(&mut mix);
            for s in frame.stack.spills() {
                mix(s.value.fingerprint() ^ u64::from(s.start()) << 8 ^ u64::from(s.size()));
            }
        }
        self.ghosts.iter().for_each(|g| mix(Value::Num(g.num).fingerprint() ^ u64::from(g.of)));
        h
    }

    fn each_value(&self, mut f: impl FnMut(&Value)) {
        for frame in &self.frames {
            frame.regs.iter().for_each(&mut f);
            frame.stack.spills().iter().for_each(|s| f(&s.value));
        }
        self.ghosts.iter().for_each(|g| f(&Value::Num(g.num)));
    }

    /// Ids of references and of the lock.
    fn held_ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.refs.iter().map(|r| r.id).chain(self.lock.map(|l| l.id))
    }

    /// Are the ids that will be handed out next unused? Otherwise strangers would be taken for linked.
    pub(crate) fn has_fresh_ids(&self) -> bool {
        let mut fresh = self.next_id > 0;
        self.each_value(|v| fresh &= id_of(v).0 < self.next_id);
        fresh && self.held_ids().all(|id| id < self.next_id)
    }

    /// Is every concrete state of `self` one of `other`? (True only if so.)
    pub(crate) fn is_subset(&self, other: &State) -> bool {
        let mut ids = IdMap::default();
        self.same_calls(other)
            && self.refs.len() == other.refs.len()
            && self.frames.iter().zip(&other.frames).rev().all(|(a, b)| {
                a.regs.iter().zip(&b.regs).all(|(x, y)| x.is_subset(y, &mut ids))
                    && a.stack.is_subset(&b.stack, &mut ids)
            })
            && other.ghosts.iter().all(|g| self.has_ghost(g, &mut ids))
            && self.holds_alike(other, &mut ids)
    }

    /// Are the lock and the references that are held those of `other`? Unlike other ids, those of two references of `other` must
    /// not stand for one of `self`: it would be given back twice.
    fn holds_alike(&self, other: &State, ids: &mut IdMap) -> bool {
        let lock = match (self.lock, other.lock) {
            (None, None) => true,
            (Some(a), Some(b)) => a.map == b.map && ids.bind_object(b.id, a.id),
            _ => false,
        };
        let mut free = self.refs.clone();
        let (named, lost): (Vec<&Ref>, Vec<&Ref>) =
            other.refs.iter().partition(|r| ids.object(r.id).is_some());
        let mut take = |r: &Ref, id: Option<u32>| {
            let found = free.iter().position(|f| f.scope == r.scope && id.is_none_or(|id| id == f.id));
            found.map(|i| free.swap_remove(i)).is_some()
        };
        // Those that no value of `other` names can be any.
        lock && named.iter().all(|r| take(r, ids.object(r.id))) && lost.iter().all(|r| take(r, None))
    }

    fn has_ghost(&self, of: &Ghost, ids: &mut IdMap) -> bool {
        let same = |g: &&Ghost| (g.of, g.frame, g.region) == (of.of, of.frame, of.region);
        self.ghosts.iter().find(same).is_some_and(|g| Value::Num(g.num).is_subset(&Value::Num(of.num), ids))
    }

    /// Does a spilled or passed value point into that frame's stack?
    pub(crate) fn points_into(v: &Value, frame: u8) -> bool {
        matches!(v, Value::Ptr(Ptr { home: Home::Stack(f), .. }) if *f == frame)
    }

    /// r0 to r9 of the running frame.
    #[cfg(feature = "interp")]
    pub(crate) fn regs(&self) -> &[Value] {
        &self.top().regs[..LAPS]
    }
}
