//! [`spoils`]: all corruptions of one kept state and of what the certificate says of it.

use crate::isa::{MapIdx, Pc, Reg};
use crate::verify::domain::{Scalar, Tnum};
use crate::verify::env::RankLabel;
use crate::verify::explore::{Arrival, Certificate, Invariant, PASSED};
use crate::verify::ghost::Counter;
use crate::verify::stack::{Spill, StackMem};
use crate::verify::state::{Frame, Lock, Ref, State};
use crate::verify::value::{Home, Num, Ptr, Value};
use std::rc::Rc;

/// A corruption by its kind.
pub(super) struct Spoilt {
    pub(super) kind: &'static str,
    pub(super) change: Change,
}

/// New contents of one node's part.
pub(super) enum Change {
    State(usize, State),
    Rank(usize, u32),
    Arrivals(usize, Vec<Arrival>),
    Invariant(usize, Option<Invariant>),
    Place(usize, Pc),
    Ranks(usize, usize),
}

/// Kinds that cannot but claim too much, wherever they strike.
pub(super) const ALWAYS_TOO_MUCH: [&str; 6] = [
    "arrivals: one dropped",
    "bytes: set without a write",
    "id: nothing seems to be used",
    "invariant: dropped",
    "rank: not finished",
    "value: a constant beside it",
];

impl Change {
    /// Makes the change; gives the one that undoes it.
    pub(super) fn apply(self, c: &mut Certificate) -> Change {
        use std::mem::replace;
        match self {
            Change::State(n, s) => Change::State(n, replace(&mut c.nodes[n].state, s)),
            Change::Rank(n, r) => Change::Rank(n, replace(&mut c.nodes[n].rank, r)),
            Change::Arrivals(n, a) => Change::Arrivals(n, replace(&mut c.nodes[n].arrivals, a)),
            Change::Invariant(n, i) => Change::Invariant(n, replace(&mut c.nodes[n].invariant, i)),
            Change::Place(n, pc) => Change::Place(n, replace(&mut c.nodes[n].pc, pc)),
            Change::Ranks(a, b) => {
                let (x, y) = (c.nodes[a].rank, c.nodes[b].rank);
                (c.nodes[a].rank, c.nodes[b].rank) = (y, x);
                Change::Ranks(a, b)
            }
        }
    }
}

/// All corruptions around one node.
pub(super) fn spoils(c: &Certificate, node: usize) -> Vec<Spoilt> {
    let mut out = Vec::new();
    let state = &c.nodes[node].state;
    for (kind, s) in states(state) {
        if s != *state {
            out.push(Spoilt { kind, change: Change::State(node, s) });
        }
    }
    paths(c, node, &mut out);
    measures(c, node, &mut out);
    out
}

type States = Vec<(&'static str, State)>;

/// All corruptions of a state.
fn states(s: &State) -> States {
    let mut out = States::new();
    for f in 0..s.depth() {
        for (i, v) in s.frames()[f].regs().iter().enumerate() {
            for (kind, new) in values(v, s) {
                let mut t = s.clone();
                Rc::make_mut(&mut t.frames_mut()[f]).regs_mut()[i] = new;
                out.push((kind, t));
            }
        }
        for (kind, m) in stacks(s.frames()[f].stack(), s) {
            let mut t = s.clone();
            Rc::make_mut(&mut t.frames_mut()[f]).set_stack(m);
            out.push((kind, t));
        }
        let mut with = |kind, f: &dyn Fn(&mut Frame)| {
            let mut t = s.clone();
            f(Rc::make_mut(&mut t.frames_mut()[s.depth() - 1]));
            out.push((kind, t));
        };
        with("frame: returns elsewhere", &|f| f.ret = f.ret.plus(1));
        with("frame: of another function", &|f| f.func = f.func.plus(1));
        with("frame: a callback's or not", &|f| f.callback = !f.callback);
    }
    ghosts(s, &mut out);
    held(s, &mut out);
    if s.frames().iter().any(|f| f.has_ids()) || !s.ghosts().is_empty() {
        let mut t = s.clone();
        t.ids_from(1);
        out.push(("id: nothing seems to be used", t));
    }
    // New ids are used by some corruptions above.
    for (kind, t) in &mut out {
        if *kind != "id: nothing seems to be used" {
            t.ids_from(1 << 20);
        }
    }
    out
}

/// Elements that hold less, or another number.
fn scalars(s: Scalar) -> Vec<(&'static str, Scalar)> {
    let (t, u, i) = (s.tnum(), (s.umin(), s.umax()), (s.smin(), s.smax()));
    if let Some(x) = s.as_const() {
        let beside = [x.wrapping_add(1), x.wrapping_sub(1), x ^ 1 << 63, x.wrapping_add(1 << 32)];
        let beside = beside.map(|y| ("value: a constant beside it", Scalar::constant(y)));
        return beside.into_iter().chain([("value: unknown", Scalar::unknown())]).collect();
    }
    let bounds = |u, i| Scalar::from_bounds(t, u, i);
    let mut out = vec![
        ("bounds: umin raised", bounds((u.0.saturating_add(1), u.1), i)),
        ("bounds: umax lowered", bounds((u.0, u.1.saturating_sub(1)), i)),
        ("bounds: smin raised", bounds(u, (i.0.saturating_add(1), i.1))),
        ("bounds: smax lowered", bounds(u, (i.0, i.1.saturating_sub(1)))),
        ("bounds: the lower half", bounds((u.0, u.0 + (u.1 - u.0) / 2), i)),
        ("bounds: the upper half", bounds((u.0 + (u.1 - u.0) / 2 + 1, u.1), i)),
        ("value: only its least", Scalar::constant(u.0)),
        ("value: only its greatest", Scalar::constant(u.1)),
        ("value: unknown", Scalar::unknown()),
    ];
    for bit in [t.mask & t.mask.wrapping_neg(), 1 << (63 - t.mask.leading_zeros().min(63))] {
        for set in [0, bit] {
            let known = Tnum { value: t.value | set, mask: t.mask & !bit };
            out.push(("bits: one known", Scalar::from_bounds(known, u, i)));
        }
    }
    let known = !t.mask;
    let flipped = known & known.wrapping_neg();
    out.push(("bits: one turned", Scalar::from_tnum(Tnum { value: t.value ^ flipped, mask: t.mask })));
    out
}

fn values(v: &Value, s: &State) -> Vec<(&'static str, Value)> {
    match v {
        Value::Uninit => {
            let unset = "register: set without a write";
            let any = Value::num(Scalar::unknown(), RankLabel::RankLocal);
            vec![(unset, any), (unset, Value::constant(0)), (unset, Value::pointer(Home::Ctx, 0))]
        }
        Value::Num(n) => numbers(n, s),
        Value::Ptr(p) => pointers(p),
        Value::MapObject(m) => vec![("map: another", Value::MapObject(MapIdx(m.0 + 1)))],
        Value::Func(pc) => vec![("function: another", Value::Func(pc.plus(1)))],
    }
}

fn numbers(n: &Num, s: &State) -> Vec<(&'static str, Value)> {
    let num = |n: Num| Value::Num(n);
    let mut out: Vec<_> = scalars(n.s).into_iter().map(|(k, s)| (k, num(Num { s, ..*n }))).collect();
    if n.label == RankLabel::RankLocal {
        out.push(("label: uniform", num(Num { label: RankLabel::Uniform, ..*n })));
    }
    out.push(("label: rank-local", num(Num { label: RankLabel::RankLocal, ..*n })));
    if n.id != 0 {
        out.push(("link: at another distance", num(Num { delta: n.delta.wrapping_add(1), ..*n })));
        out.push(("link: dropped", num(Num { id: 0, delta: 0, ..*n })));
    }
    for id in ids(s).into_iter().filter(|id| *id != n.id) {
        out.push(("link: to another", num(Num { id, ..*n })));
    }
    out.push(("value: a pointer", Value::pointer(Home::Ctx, 0)));
    out.push(("value: dropped", Value::Uninit));
    out
}

fn pointers(p: &Ptr) -> Vec<(&'static str, Value)> {
    let ptr = |p: Ptr| Value::Ptr(p);
    let mut out: Vec<_> = scalars(p.off).into_iter().map(|(k, off)| (k, ptr(Ptr { off, ..*p }))).collect();
    out.push(if p.nullable {
        ("pointer: not null", ptr(Ptr { nullable: false, ..*p }))
    } else {
        ("pointer: perhaps null", ptr(Ptr { nullable: true, ..*p }))
    });
    let home = match p.home {
        Home::Ctx => ("pointer: to the stack", Home::Stack(0)),
        Home::Stack(f) => ("pointer: of another frame", Home::Stack(f + 1)),
        Home::Map(m) => ("pointer: of another map", Home::Map(MapIdx(m.0 + 1))),
        Home::Record(m, size) => ("pointer: to a longer record", Home::Record(m, size + 8)),
        Home::Key(m) => ("pointer: to a value, not a key", Home::Map(m)),
    };
    out.push((home.0, ptr(Ptr { home: home.1, ..*p })));
    out.push(("pointer: another object", ptr(Ptr { id: if p.id == 0 { 77 } else { 0 }, ..*p })));
    out.push(("value: a number", Value::num(Scalar::unknown(), RankLabel::RankLocal)));
    out.push(("value: dropped", Value::Uninit));
    out
}

/// Some ids that numbers of the state have.
fn ids(s: &State) -> Vec<u32> {
    let of = |v: &Value| match v {
        Value::Num(n) if n.id != 0 => Some(n.id),
        _ => None,
    };
    let regs = s.frames().iter().flat_map(|f| f.regs().iter().filter_map(of).collect::<Vec<_>>());
    let mut all: Vec<u32> = regs.chain(s.ghosts().iter().map(|g| g.num.id)).collect();
    all.sort_unstable();
    all.dedup();
    all.truncate(3);
    all
}

fn stacks(m: &StackMem, s: &State) -> Vec<(&'static str, StackMem)> {
    let mut out = Vec::new();
    let rebuilt = |keep: &dyn Fn(&Spill) -> bool| {
        let (init, zero, local) = (*m.initialised(), *m.zeroes(), *m.locals());
        let mut new = StackMem::from_bytes(init, zero, local);
        m.spills().iter().filter(|s| keep(s)).for_each(|s| new.put(s.clone()));
        new
    };
    for at in m.spills() {
        let same = |o: &Spill| o.start() == at.start();
        let kind = if at.value.is_pointer() { "spill: a pointer's bytes" } else { "spill: dropped" };
        out.push((kind, rebuilt(&|o| !same(o))));
        for (kind, v) in values(&at.value, s) {
            let mut new = rebuilt(&|o| !same(o));
            new.put(Spill::new(at.start(), at.size(), v));
            out.push((kind, new));
        }
    }
    bytes(m, &mut out);
    out
}

fn bytes(m: &StackMem, out: &mut Vec<(&'static str, StackMem)>) {
    let spills = |new: &mut StackMem| m.spills().iter().for_each(|s| new.put(s.clone()));
    for at in [0, 248, 496, 500, 504, 508, 511] {
        if !m.initialised().contains(at, 1) {
            let mut init = *m.initialised();
            init.insert(at, 1);
            let mut new = StackMem::from_bytes(init, *m.zeroes(), *m.locals());
            spills(&mut new);
            out.push(("bytes: set without a write", new));
            let mut new = m.clone();
            let free = !m.spills().iter().any(|s| {
                usize::from(s.start()) + usize::from(s.size()) > at - at % 8
                    && usize::from(s.start()) < at - at % 8 + 8
            });
            if free {
                new.put(Spill::new((at - at % 8) as u16, 8, Value::constant(5)));
                out.push(("bytes: a number from nowhere", new));
            }
        } else {
            let mut new = m.clone();
            new.unset(at, 1);
            out.push(("bytes: forgotten", new));
            let spilled = m.spills().iter().any(|s| {
                (usize::from(s.start())..usize::from(s.start()) + usize::from(s.size())).contains(&at)
            });
            if !spilled && !m.zeroes().contains(at, 1) {
                let mut zero = *m.zeroes();
                zero.insert(at, 1);
                let mut new = StackMem::from_bytes(*m.initialised(), zero, *m.locals());
                spills(&mut new);
                out.push(("bytes: zero", new));
            }
            if m.locals().contains(at, 1) {
                let mut local = *m.locals();
                local.remove(at, 1);
                let mut new = StackMem::from_bytes(*m.initialised(), *m.zeroes(), local);
                spills(&mut new);
                out.push(("bytes: uniform", new));
            }
        }
    }
}

fn ghosts(s: &State, out: &mut States) {
    for (i, g) in s.ghosts().iter().enumerate() {
        let mut with = |kind, f: &dyn Fn(&mut Vec<crate::verify::ghost::Ghost>)| {
            let mut t = s.clone();
            f(t.ghosts_mut());
            out.push((kind, t));
        };
        with("ghost: dropped", &|all| {
            all.remove(i);
        });
        with("ghost: further away", &|all| all[i].num.delta = g.num.delta.wrapping_sub(1));
        with("ghost: nearer", &|all| all[i].num.delta = g.num.delta.wrapping_add(1));
        with("ghost: of another loop", &|all| all[i].of += 1);
        with("ghost: of another frame", &|all| all[i].frame += 1);
        with("ghost: of a wider loop", &|all| all[i].region.1 = all[i].region.1.plus(1));
        for (kind, narrow) in scalars(g.num.s) {
            with(kind, &|all| all[i].num.s = narrow);
        }
        for id in ids(s).into_iter().filter(|id| *id != g.num.id) {
            with("ghost: linked with another", &|all| all[i].num.id = id);
        }
    }
}

/// References and the lock.
fn held(s: &State, out: &mut States) {
    let mut with = |kind, refs: Vec<Ref>, lock| {
        let mut t = s.clone();
        t.set_held(refs, lock);
        out.push((kind, t));
    };
    let (refs, lock) = (s.refs().to_vec(), s.lock());
    let pointer = |v: &Value| match v {
        Value::Ptr(p) if p.id != 0 => Some(p.id),
        _ => None,
    };
    let id = s.frames().iter().find_map(|f| f.regs().iter().find_map(pointer)).unwrap_or(0);
    let more = |r: Ref| refs.iter().copied().chain([r]).collect::<Vec<_>>();
    with("reference: from nowhere", more(Ref { id, scope: 0 }), lock);
    for i in 0..refs.len() {
        let other = |f: &dyn Fn(&mut Ref)| {
            let mut all = refs.clone();
            f(&mut all[i]);
            all
        };
        let mut fewer = refs.clone();
        fewer.remove(i);
        with("reference: dropped", fewer, lock);
        with("reference: of another callback", other(&|r| r.scope += 1), lock);
        with("reference: to another", other(&|r| r.id += 1), lock);
    }
    match lock {
        Some(l) => {
            with("lock: not held", refs.clone(), None);
            with("lock: of another map", refs.clone(), Some(Lock { map: MapIdx(l.map.0 + 1), ..l }));
            with("lock: of another value", refs.clone(), Some(Lock { id: l.id + 1, ..l }));
        }
        None => with("lock: held", refs.clone(), Some(Lock { map: MapIdx(0), id })),
    }
}

/// Ranks, arrivals and places.
fn paths(c: &Certificate, node: usize, out: &mut Vec<Spoilt>) {
    let n = &c.nodes[node];
    let mut push = |kind, change| out.push(Spoilt { kind, change });
    push("rank: not finished", Change::Rank(node, 0));
    push("rank: raised", Change::Rank(node, n.rank + 1));
    push("rank: lowered", Change::Rank(node, n.rank.saturating_sub(1)));
    for other in [node + 1, node + 2, c.nodes.len() / 2] {
        if other < c.nodes.len() && other != node {
            push("rank: exchanged", Change::Ranks(node, other));
        }
    }
    push("place: the next", Change::Place(node, n.pc.plus(1)));
    for i in 0..n.arrivals.len() {
        let with = |f: &dyn Fn(&mut Vec<Arrival>)| {
            let mut a = n.arrivals.clone();
            f(&mut a);
            Change::Arrivals(node, a)
        };
        push(
            "arrivals: one dropped",
            with(&|a| {
                a.remove(i);
            }),
        );
        push("arrivals: to none", with(&|a| a[i] = c.nodes.len() as u32));
        if n.arrivals[i] != PASSED {
            push("arrivals: passed by", with(&|a| a[i] = PASSED));
        }
        let here = c.nodes.get(n.arrivals[i] as usize).map(|t| t.pc);
        let alike = (0..c.nodes.len()).filter(|&o| here == Some(c.nodes[o].pc) && o as u32 != n.arrivals[i]);
        for o in alike.take(4) {
            push("arrivals: to another alike", with(&|a| a[i] = o as u32));
        }
        push("arrivals: back to the start", with(&|a| a[i] = node as u32));
        if i + 1 < n.arrivals.len() {
            push("arrivals: exchanged", with(&|a| a.swap(i, i + 1)));
        }
    }
}

/// What shows that loops end.
fn measures(c: &Certificate, node: usize, out: &mut Vec<Spoilt>) {
    let n = &c.nodes[node];
    let mut push = |kind, inv| out.push(Spoilt { kind, change: Change::Invariant(node, inv) });
    let regs = (0..Reg::COUNT).filter_map(|i| Reg::new(i as u8)).map(Counter::Reg);
    let spills = n.state.stack(n.state.current()).map_or(&[][..], |m| m.spills());
    let places: Vec<Counter> =
        regs.chain(spills.iter().map(|s| Counter::Stack(s.start(), s.size()))).collect();
    let Some(inv) = n.invariant else { return };
    push("invariant: dropped", None);
    for counter in places.into_iter().filter(|p| *p != inv.counter) {
        push("invariant: another counter", Some(Invariant { counter, ..inv }));
    }
    let (first, last) = inv.region;
    push("invariant: a shorter loop", Some(Invariant { region: (first, Pc(last.0 - 1)), ..inv }));
    push("invariant: a loop elsewhere", Some(Invariant { region: (last.plus(1), last.plus(2)), ..inv }));
}
