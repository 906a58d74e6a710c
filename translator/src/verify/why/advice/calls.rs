//! Calls: wrong arguments, helpers that are not offered, too many frames, registers that a call does not keep.

use super::super::source;
use super::super::turns::sets;
use super::{Advice, Scene, at_line, before_refused, gone, new};
use crate::isa::{Insn, Reg};
use crate::verify::env::{ArgKind, HelperSig};
use crate::verify::helpers;
use crate::verify::value::Value;

/// Helpers of the kernel that policies are tempted to call, by number, with what to do instead.
const TEMPTING: &[(u32, &str, &str)] = &[
    (4, "bpf_probe_read", "a policy sees its context and its maps, no other memory"),
    (14, "bpf_get_current_pid_tgid", "what identifies the job is in the context"),
    (16, "bpf_get_current_comm", "what identifies the job is in the context"),
    (25, "bpf_perf_event_output", "write what others shall see to a map"),
    (113, "bpf_probe_read_kernel", "a policy sees its context and its maps, no other memory"),
    (112, "bpf_probe_read_user", "a policy sees its context and its maps, no other memory"),
    (125, "bpf_ktime_get_boot_ns", "bpf_ktime_get_ns is offered"),
];

fn called<'a>(s: &Scene<'a>) -> Option<&'a HelperSig> {
    match *s.insn()? {
        Insn::CallHelper { id } => s.m.env.helper(id),
        _ => None,
    }
}

/// `bpf_map_lookup_elem(&telemetry_map, &key)`; the map's name if some argument tells it.
fn shape(s: &Scene<'_>, sig: &HelperSig) -> String {
    let map = (1..=5).filter_map(Reg::new).find_map(|r| match s.value(r) {
        Some(Value::MapObject(m)) => Some(format!("&{}", s.m.map_name(m))),
        _ => None,
    });
    let map = map.unwrap_or("&map".into());
    let args = sig.args.iter().map(|a| match a {
        ArgKind::MapObject => map.as_str(),
        ArgKind::MapKey => "&key",
        ArgKind::MapValue => "&value",
        ArgKind::Scalar => "flags",
        ArgKind::Any => "anything",
        ArgKind::Ctx => "ctx",
        ArgKind::Mem | ArgKind::MemOrNull | ArgKind::UninitMem => "buffer",
        ArgKind::Size | ArgKind::SizeOrZero | ArgKind::ConstSize => "size",
        ArgKind::Record => "record",
        ArgKind::SpinLock => "&value->lock",
        ArgKind::Callback => "function",
        ArgKind::StackOrNull => "&state",
    });
    format!("bpf_{}({})", sig.name, args.collect::<Vec<_>>().join(", "))
}

/// An argument of the wrong type.
pub(super) fn argument(s: &Scene<'_>) -> Option<Advice> {
    let (sig, reg) = (called(s)?, s.rejection.reg()?);
    let want = sig.args.get(reg.index().checked_sub(1)?)?;
    let (found, shape) = (s.value(reg)?, shape(s, sig));
    let elsewhere = (1..=5).filter_map(Reg::new).find(|r| matches!(s.value(*r), Some(Value::MapObject(_))));
    match (want, found) {
        (ArgKind::MapObject, Value::Num(_) | Value::Ptr(_)) if elsewhere.is_some() => {
            Some(Advice::new(format!("the arguments are in the wrong order: the map comes first, {shape}")))
        }
        (ArgKind::MapObject, _) => Some(Advice::new(format!(
            "the map itself is wanted, by the name that it is declared with: {shape}"
        ))),
        (ArgKind::MapKey | ArgKind::MapValue, Value::Num(_)) => Some(by_value(s, sig, reg, *want)),
        (ArgKind::Scalar, Value::Ptr(_)) => {
            Some(Advice::new(format!("a number is wanted, not an address: {shape}")))
        }
        _ => Some(Advice::new(format!("the call goes {shape}"))),
    }
}

/// A number where its address is wanted.
fn by_value(s: &Scene<'_>, sig: &HelperSig, reg: Reg, want: ArgKind) -> Advice {
    let what = if want == ArgKind::MapKey { "key" } else { "value" };
    let hint = format!("put the {what} into a variable and pass its address: {}", shape(s, sig));
    let args = source::arguments(s.text(), sig.name);
    let Some(passed) = args.as_ref().and_then(|a| a.get(reg.index() - 1).copied()) else {
        return Advice::new(hint);
    };
    let plain = passed.rsplit(')').next().map_or(passed, str::trim);
    let plain = if plain.is_empty() { passed } else { plain };
    let line = s.rejection.source();
    let changed = s.text().replacen(passed, &format!("&{what}"), 1);
    let fix = line.map(gone).into_iter().chain([new(format!("__u32 {what} = {plain};")), new(changed)]);
    Advice::new(hint).with(fix)
}

/// A helper that the hook does not offer.
pub(super) fn unknown(s: &Scene<'_>) -> Option<Advice> {
    let Insn::CallHelper { id } = *s.insn()? else { return None };
    let offered: Vec<String> = s.m.env.helpers.iter().map(|h| format!("bpf_{}", h.name)).collect();
    let hook = s.m.env.hook;
    Some(Advice::new(match TEMPTING.iter().find(|t| t.0 == id) {
        Some((_, name, instead)) => format!("hook {hook} has no {name}: {instead}"),
        None => match helpers::all().iter().find(|h| h.id == id) {
            Some(h) => format!("hook {hook} does not offer bpf_{}", h.name),
            None => format!("hook {hook} offers {}", offered.join(", ")),
        },
    }))
}

/// Too many frames.
pub(super) fn depth(s: &Scene<'_>) -> Option<Advice> {
    let Insn::CallLocal { target } = *s.insn()? else { return None };
    let callee = &s.m.program.func_at(target).name;
    let chain: Vec<&str> =
        s.trace.running.iter().map(|r| s.m.program.func_at(s.pc(r.at)).name.as_str()).collect();
    Some(Advice::new(match chain.iter().position(|f| f == callee) {
        Some(_) => format!(
            "{callee} is running already ({}): write the recursion as a loop with a bound",
            chain.join(" > ")
        ),
        None => format!(
            "{} frames are in use ({}): let the compiler inline some of them (static __always_inline)",
            chain.len(),
            chain.join(" > ")
        ),
    }))
}

/// A register that was not set.
pub(super) fn unset_register(s: &Scene<'_>) -> Option<Advice> {
    let reg = s.rejection.reg()?;
    if let Some(advice) = super::held::gone(s, reg) {
        return Some(advice);
    }
    if let (Some(sig), 1..=5) = (called(s), reg.index()) {
        return Some(Advice::new(format!(
            "the call needs {} arguments and gets fewer: {}",
            sig.args.len(),
            shape(s, sig)
        )));
    }
    if reg == Reg::R0 && matches!(s.insn(), Some(Insn::Exit)) {
        let fix = before_refused(s, [new("return 0;")]);
        return Some(
            Advice::new("the function ends without a return value on this path: end it with a return")
                .with(fix),
        );
    }
    let call = s.trace.points.last()?.call;
    let mine = |i: &usize| s.trace.points[*i].call == call;
    let insn = |i: &usize| s.m.program.insn(s.pc(*i));
    let steps = 0..s.trace.points.len().saturating_sub(1);
    let calls = |i: &usize| matches!(insn(i), Some(Insn::CallHelper { .. } | Insn::CallLocal { .. }));
    let clobbered =
        steps.clone().rev().filter(mine).find(calls).filter(|_| (1..=5).contains(&reg.index()))?;
    // r1 is set on entry.
    let was_set =
        reg == Reg::R1 || steps.take(clobbered).filter(mine).any(|i| insn(&i).and_then(sets) == Some(reg));
    was_set.then(|| {
        Advice::new(format!(
            "{reg} does not survive the call{}: keep what is needed after it in r6 to r9, or on the stack",
            at_line(s.line(clobbered), " at ")
        ))
    })
}
