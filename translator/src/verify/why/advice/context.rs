//! The context: read with the wrong width or past its end, inputs written.

use super::bounds::{Reach, advise, reach};
use super::{Advice, Scene};
use crate::verify::env::{CtxField, Rights};
use crate::verify::mem::add_const;
use crate::verify::value::Home;

/// `n_ranks (4 bytes at 20)`.
fn with_place(f: &CtxField) -> String {
    match f.count {
        1 => format!("{} ({} bytes at {})", f.name, f.width, f.offset),
        n => format!("{} ({n} elements of {} bytes at {})", f.name, f.width, f.offset),
    }
}

fn list(fields: &[&CtxField]) -> String {
    let names: Vec<String> = fields.iter().map(|f| with_place(f)).collect();
    match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
        None => "padding".into(),
    }
}

/// Fields that an access may touch.
fn touched<'a>(s: &Scene<'a>, r: &Reach) -> Vec<&'a CtxField> {
    let (low, high) = (r.off.smin(), r.off.smax().saturating_add(r.size));
    let end = |f: &CtxField| i64::from(f.offset + f.bytes());
    s.m.env.ctx.fields().iter().filter(|f| i64::from(f.offset) < high && low < end(f)).collect()
}

fn context_reach(s: &Scene<'_>) -> Option<Reach> {
    reach(s).filter(|r| r.home == Home::Ctx)
}

/// Read outside a field.
pub(super) fn read(s: &Scene<'_>) -> Option<Advice> {
    let r = context_reach(s)?;
    let fields = touched(s, &r);
    let (size, hook) = (s.m.env.ctx.size(), s.m.env.hook);
    if r.off.as_const().is_none() {
        if fields.is_empty() && s.m.env.ctx.fields().is_empty() {
            return advise(s, &r, size.into(), &format!("the context of {size} bytes"));
        }
        // An index that may run past an array of the context.
        let array = fields.iter().find(|f| f.count > 1 && r.off.smax() >= f.offset.into())?;
        let start = i64::from(array.offset);
        let inside = Reach { off: add_const(r.off, -start), ..r };
        let what = format!("{} of the context", array.name);
        return advise(s, &inside, array.bytes().into(), &what);
    }
    let at = r.off.smin();
    if at < 0 || at + r.size > size.into() {
        return Some(Advice::new(format!(
            "the context of hook {hook} has {size} bytes: is the policy built with another hook's header, or another version of it?"
        )));
    }
    let (from, to) = (at, at + r.size - 1);
    Some(Advice::new(match fields[..] {
        [] => format!("bytes {from} to {to} of the context are padding: nothing is to be found there"),
        [f] if r.size <= f.width.into() => {
            format!("{} starts at another byte: read it by its name, ctx->{}", with_place(f), f.name)
        }
        [f] => format!("read {} with its own width, ctx->{}, not {} bytes", with_place(f), f.name, r.size),
        _ => format!(
            "bytes {from} to {to} of the context are {}: read each by its name, and let the compiler keep them apart (the header's \
             fields are volatile for that)",
            list(&fields)
        ),
    }))
}

/// A write to what is not to be written, or not with the field's width.
pub(super) fn write(s: &Scene<'_>) -> Option<Advice> {
    let r = context_reach(s)?;
    let writable: Vec<&str> =
        s.m.env.ctx.fields().iter().filter(|f| f.rights == Rights::ReadWrite).map(|f| f.name).collect();
    let offer = match writable.is_empty() {
        true => format!(
            "hook {} takes its answer from r0 alone, nothing in its context may be written",
            s.m.env.hook
        ),
        false => format!("a policy of hook {} writes {}", s.m.env.hook, writable.join(", ")),
    };
    Some(Advice::new(match touched(s, &r)[..] {
        [f] if f.rights == Rights::ReadWrite => {
            format!("write all {} bytes of {} at once: ctx->{} = ...", f.width, f.name, f.name)
        }
        [f] => format!("{} is an input and stays as it is given; {offer}", f.name),
        _ => offer,
    }))
}
