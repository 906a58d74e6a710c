//! The policies of a communicator's profiler: an [`Endpoint`] that takes [`Work`]; and what a plan's policies need of NCCL.

use super::event::Kind;
use super::mask::{DEFAULT_EVENTS, DEFAULT_OPS, Needs};
use super::seat::Policies;
use super::work::Work;
use crate::endpoint::Endpoint;
use crate::hooks::Hook;
use crate::policy_set::Plan;

impl Policies for Endpoint {
    fn run(&mut self, work: &Work) {
        self.refresh();
        let hook = if work.sample { Hook::Profiler } else { Hook::ProfilerEvent };
        work.with_bytes(|bytes| Endpoint::run(self, hook, bytes));
    }

    fn leave(self: Box<Self>) {
        Endpoint::leave(*self);
    }
}

impl Needs {
    /// What the policies of a plan need together.
    pub fn of_plan(plan: &Plan) -> Needs {
        let policies = plan.set().policies().iter();
        policies.map(|p| Needs::of_policy(p.module.hook(), p.events)).fold(Needs::default(), Needs::and)
    }

    /// What one policy needs; `events` are the bits of its manifest, 0 if it names none.
    fn of_policy(hook: Hook, events: u32) -> Needs {
        match hook {
            Hook::Profiler => {
                let asked = events & (Kind::Coll.bit() | Kind::P2p.bit());
                Needs { ops: if asked != 0 { asked } else { DEFAULT_OPS }, events: 0 }
            }
            Hook::ProfilerEvent => {
                Needs { ops: 0, events: if events != 0 { events } else { DEFAULT_EVENTS } }
            }
            _ => Needs::default(),
        }
    }
}

/// The bits of a manifest's `events`.
///
/// # Errors
/// A name that is no event's, or kernel phases, which are never asked for.
pub(crate) fn parse_events(names: &[String]) -> Result<u32, String> {
    let known = || {
        let names: Vec<_> = Kind::ALL.iter().filter(|k| **k != Kind::KernelPhase).map(|k| k.name()).collect();
        names.join(", ")
    };
    names.iter().try_fold(0, |bits, name| match Kind::parse(name) {
        Some(Kind::KernelPhase) => {
            Err("kernel_phase is never asked for: its stamps slow small messages by up to 13 % (nccl #2355)"
                .into())
        }
        Some(kind) => Ok(bits | kind.bit()),
        None => Err(format!("{name:?} is no event; there are {}", known())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hooks_ask_for_what_they_need_and_no_more() {
        let proxy = Kind::ProxyStep.bit();
        for (hook, events, ops, seen, mask) in [
            (Hook::Tuner, 0x1f, 0, 0, 0),
            (Hook::Profiler, 0, 2, 0, 0x42),
            (Hook::Profiler, 6, 6, 0, 0x46),
            (Hook::Profiler, proxy, 2, 0, 0x42),
            (Hook::ProfilerEvent, 0, 0, 6, 6),
            (Hook::ProfilerEvent, proxy, 0, proxy, proxy),
        ] {
            let needs = Needs::of_policy(hook, events);
            assert_eq!((needs.ops, needs.events, needs.mask()), (ops, seen, mask), "{hook} {events:#x}");
        }
    }

    #[test]
    fn events_are_named_in_the_manifest() {
        let parse = |names: &[&str]| parse_events(&names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>());
        assert_eq!(parse(&["coll", "proxy_step"]), Ok(0x12));
        assert_eq!(parse(&[]), Ok(0));
        assert!(parse(&["coll", "kernel_phase"]).unwrap_err().contains("#2355"));
        assert!(parse(&["steps"]).unwrap_err().contains("group, coll, p2p, "));
    }
}
