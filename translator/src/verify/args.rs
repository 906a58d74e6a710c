//! [`Args`]: the arguments of a helper call, judged by its signature before anything happens.

use super::Machine;
use super::env::{ArgKind, HelperSig, RankLabel};
use super::explain::{Duty, advise, refuse, refuse_reg, span};
use super::fact::CallFact;
use super::helpers;
use super::mem::{Act, Ask, Place};
use super::rejection::RejectKind as K;
use super::state::{Lock, State};
use super::transfer::Outcome;
use super::value::{Home, Num, Ptr, Value};
use crate::isa::{MapIdx, Pc, Reg};
use crate::map::MapKind;

/// Helpers that change the map.
const CHANGE_MAP: [u32; 2] = [helpers::MAP_UPDATE, helpers::MAP_DELETE];
/// Most bytes behind a pointer and a size (Linux `BPF_MAX_VAR_SIZ`).
const MAX_BYTES: u64 = 1 << 29;

/// What the arguments come to.
#[derive(Default)]
pub(crate) struct Args {
    pub(crate) fact: CallFact,
    /// The pointer of which the size comes next.
    memory: Option<(Reg, ArgKind)>,
    /// Memory that the helper writes.
    fills: Vec<Place>,
    /// Most bytes that the helper may write there.
    pub(crate) most_bytes: u32,
    /// Bytes of the record to reserve.
    pub(crate) record_bytes: u32,
    /// The reference that the helper takes.
    pub(crate) released: Option<u32>,
    /// The lock that it takes or gives back.
    pub(crate) lock: Option<Lock>,
    /// The function that it calls back.
    pub(crate) callback: Option<Pc>,
}

impl Machine<'_> {
    /// Judges all arguments.
    pub(crate) fn arguments(&self, state: &State, sig: &HelperSig, out: &mut Outcome) -> Duty<Args> {
        let mut args = Args::default();
        for (r, kind) in (1..=5).filter_map(Reg::new).zip(&sig.args) {
            self.argument(state, sig, r, *kind, &mut args, out)?;
        }
        args.fact.callback = args.callback;
        Ok(args)
    }

    fn argument(
        &self,
        state: &State,
        sig: &HelperSig,
        r: Reg,
        kind: ArgKind,
        args: &mut Args,
        out: &mut Outcome,
    ) -> Duty {
        let v = self.read(state, r)?;
        match (kind, v) {
            (ArgKind::Any, _) | (ArgKind::Scalar, Value::Num(_)) => Ok(()),
            (ArgKind::Scalar, v) => self.wrong_argument(sig, r, &v, "a number"),
            (ArgKind::Ctx, v) => {
                if v == Value::pointer(Home::Ctx, 0) {
                    return Ok(());
                }
                self.wrong_argument(sig, r, &v, "the context, as the program got it")
            }
            (ArgKind::MapObject, Value::MapObject(m)) => {
                self.map_argument(sig, r, m)?;
                args.fact.map = Some(m);
                Ok(())
            }
            (ArgKind::MapObject, v) => self.wrong_argument(sig, r, &v, "a map"),
            (ArgKind::MapKey | ArgKind::MapValue, _) => self.of_map(state, sig, r, kind, args, out),
            (ArgKind::Mem | ArgKind::MemOrNull | ArgKind::UninitMem, _) => {
                args.memory = Some((r, kind));
                Ok(())
            }
            (ArgKind::Size | ArgKind::SizeOrZero, Value::Num(n)) => {
                self.sized(state, sig, (r, n), kind, args, out)
            }
            (ArgKind::Size | ArgKind::SizeOrZero, v) => self.wrong_argument(sig, r, &v, "a number"),
            (ArgKind::ConstSize, v) => match v {
                Value::Num(n) if n.s.as_const().is_some_and(|x| u32::try_from(x).is_ok()) => {
                    args.record_bytes = n.s.umin() as u32;
                    Ok(())
                }
                v => self.wrong_argument(sig, r, &v, "a constant number of bytes below 4 GiB"),
            },
            (ArgKind::Record, v) => self.record(state, sig, r, &v, args),
            (ArgKind::SpinLock, v) => self.spin_lock(state, sig, r, &v, args),
            (ArgKind::Callback, Value::Func(pc)) => {
                args.callback = Some(pc);
                Ok(())
            }
            (ArgKind::Callback, v) => self.wrong_argument(sig, r, &v, "the address of a function"),
            (ArgKind::StackOrNull, v) => match v {
                Value::Ptr(Ptr { home: Home::Stack(_), .. }) => Ok(()),
                v if v.is_null() => Ok(()),
                v => self.wrong_argument(sig, r, &v, "a pointer into the stack, or null"),
            },
        }
    }

    fn wrong_argument<T>(&self, sig: &HelperSig, r: Reg, v: &Value, needed: &str) -> Duty<T> {
        let found = self.describe(v);
        refuse_reg(K::HelperArg, r, format!("{}: {r} is {found}, must be {needed}", sig.name))
    }

    /// Helpers and kinds of maps that go together, as in `check_map_func_compatibility` (kernel/bpf/verifier.c).
    fn map_argument(&self, sig: &HelperSig, r: Reg, m: MapIdx) -> Duty {
        let map = self.map(m)?;
        if map.kind == MapKind::Global {
            let why = format!("{}: {} is global data, not a map for helpers", sig.name, map.name);
            return refuse_reg(K::HelperArg, r, why);
        }
        let fits = match sig.id {
            helpers::TAIL_CALL => map.kind == MapKind::ProgArray,
            helpers::MAP_LOOKUP_PERCPU => matches!(map.kind, MapKind::PercpuArray | MapKind::PercpuHash),
            _ if sig.name.starts_with("ringbuf_") => map.kind == MapKind::RingBuf,
            _ => map.kind.has_values(),
        };
        if !fits {
            let why = format!("{}: {} is a map of kind {}", sig.name, map.name, map.kind.name());
            return refuse_reg(K::HelperArg, r, why);
        }
        if map.read_only && CHANGE_MAP.contains(&sig.id) {
            return refuse_reg(K::ReadOnlyMap, r, format!("{}: map {} is read-only", sig.name, map.name));
        }
        Ok(())
    }

    /// A key or a value of the map.
    fn of_map(
        &self,
        state: &State,
        sig: &HelperSig,
        r: Reg,
        kind: ArgKind,
        args: &mut Args,
        out: &mut Outcome,
    ) -> Duty {
        let Some(m) = args.fact.map else {
            return refuse(K::Internal, format!("helper {} takes a key of no map", sig.name));
        };
        let map = self.map(m)?;
        let size = if kind == ArgKind::MapKey { map.key_size } else { map.value_size };
        let place = self.readable(state, r, size).map_err(|e| {
            let what = if kind == ArgKind::MapKey { "key" } else { "value" };
            e.within(format!("{}, {size}-byte {what} of map {}", sig.name, map.name))
        })?;
        out.reads(&place);
        let access = Some(place.access(state.current()));
        if kind == ArgKind::MapKey {
            args.fact.key = access;
        } else {
            args.fact.value = access;
        }
        Ok(())
    }

    /// A size, and with it the memory of the argument before.
    fn sized(
        &self,
        state: &State,
        sig: &HelperSig,
        (r, n): (Reg, Num),
        kind: ArgKind,
        args: &mut Args,
        out: &mut Outcome,
    ) -> Duty {
        let Some((base, memory)) = args.memory.take() else {
            return refuse(K::Internal, format!("helper {} takes a size of nothing", sig.name));
        };
        let needed = if kind == ArgKind::Size { "[1, 536870911]" } else { "[0, 536870911]" };
        let zero = n.s.umin() == 0 && kind == ArgKind::Size;
        if n.s.smin() < 0 || zero || n.s.umax() >= MAX_BYTES {
            let why = format!("{}: {r} is a size of {}, must be in {needed}", sig.name, span(n.s));
            return advise(
                refuse_reg(K::HelperArg, r, why),
                "bound the size before the call, as an unsigned number: if (n > sizeof(buf)) return 0;",
            );
        }
        let (bytes, constant) = (n.s.umax() as u32, n.s.as_const().is_some());
        let v = state.reg(base);
        if memory == ArgKind::MemOrNull && v.is_null() {
            return match bytes {
                0 => Ok(()),
                _ => self.wrong_argument(sig, base, &v, &format!("memory of {bytes} bytes")),
            };
        }
        if !matches!(v, Value::Ptr(_)) {
            return self.wrong_argument(sig, base, &v, &format!("a pointer to {bytes} bytes"));
        }
        if memory != ArgKind::UninitMem {
            out.reads(&self.readable(state, base, bytes)?);
            return Ok(());
        }
        let place = self.fillable(state, base, bytes, constant)?;
        out.reads(&place);
        args.fills.push(place);
        args.most_bytes = bytes;
        Ok(())
    }

    /// Memory that a helper writes. Stack bytes that it may leave as they are must be initialised before.
    fn fillable(&self, state: &State, base: Reg, bytes: u32, constant: bool) -> Duty<Place> {
        let place = self.place(state, Ask { base, off: 0, size: bytes, act: Act::Write })?;
        if matches!(place.home, Home::Stack(_)) && !(constant && place.off.as_const().is_some()) {
            self.readable(state, base, bytes)?;
        }
        Ok(place)
    }

    /// The helper writes its memory.
    pub(crate) fn fill(&self, state: &mut State, args: &Args, sig: &HelperSig) -> Duty {
        for place in &args.fills {
            self.filled(state, place, sig.label);
        }
        Ok(())
    }

    /// A record that the helper takes.
    fn record(&self, state: &State, sig: &HelperSig, r: Reg, v: &Value, args: &mut Args) -> Duty {
        let Value::Ptr(Ptr { home: Home::Record(..), off, id, nullable }) = *v else {
            return self.wrong_argument(sig, r, v, "a record that ringbuf_reserve gave");
        };
        if nullable {
            let why = format!("{}: {r} is {}", sig.name, self.describe(v));
            let hint = "check the result of ringbuf_reserve first: if (!rec) return 0;";
            return advise(refuse_reg(K::NullDeref, r, why), hint);
        }
        if off.as_const() != Some(0) {
            let why = format!("{}: {r} is {} bytes into the record, must be its start", sig.name, span(off));
            return refuse_reg(K::Reference, r, why);
        }
        match state.refs().iter().find(|h| h.id == id) {
            Some(held) if held.scope == state.scope() => {
                args.released = Some(id);
                Ok(())
            }
            Some(_) => {
                let why = format!("{}: the record was reserved outside of this callback", sig.name);
                refuse_reg(K::Reference, r, why)
            }
            None => refuse_reg(K::Reference, r, format!("{}: this record is not held", sig.name)),
        }
    }

    /// A spin lock to take or to give back.
    fn spin_lock(&self, state: &State, sig: &HelperSig, r: Reg, v: &Value, args: &mut Args) -> Duty {
        let Value::Ptr(Ptr { home: Home::Map(m), off, id, nullable }) = *v else {
            return self.wrong_argument(sig, r, v, "a pointer to the bpf_spin_lock in a map's value");
        };
        let map = self.map(m)?;
        if nullable {
            return refuse_reg(K::NullDeref, r, format!("{}: {r} is {}", sig.name, self.describe(v)));
        }
        let Some(at) = map.spin_lock else {
            let why = format!("{}: values of map {} have no bpf_spin_lock, as BTF tells", sig.name, map.name);
            return refuse_reg(K::SpinLock, r, why);
        };
        if off.as_const() != Some(at.into()) {
            let (name, map) = (sig.name, &map.name);
            let why = format!("{name}: offset {} in a value of map {map}, must be {at}", span(off));
            return refuse_reg(K::SpinLock, r, why);
        }
        let lock = Lock { map: m, id };
        let unlock = sig.id == helpers::SPIN_UNLOCK;
        match state.lock() {
            None if unlock => refuse_reg(K::SpinLock, r, "spin_unlock: no lock is held"),
            Some(held) if unlock && held != lock => {
                refuse_reg(K::SpinLock, r, "spin_unlock: this is not the lock that is held")
            }
            Some(_) if !unlock => refuse_reg(K::SpinLock, r, "spin_lock: a lock is held already"),
            _ => {
                args.lock = Some(lock);
                Ok(())
            }
        }
    }

    /// A helper wrote to that place.
    fn filled(&self, state: &mut State, place: &Place, label: RankLabel) {
        let Home::Stack(f) = place.home else { return };
        let exact = place.off.as_const().is_some();
        if let Some(stack) = state.stack_mut(f) {
            let (start, len) = (place.stack_start(), place.stack_len());
            if exact { stack.fill(start, len, label) } else { stack.forget(start, len, label) }
        }
    }
}
