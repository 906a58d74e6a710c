//! Answers to NCCL's look-ups of its settings: [`EnvRules`] say what may be answered at all, [`ask`] finds the answer, [`Interner`] keeps
//! what NCCL was given.
//!
//! For one name, in this order: what the process has set wins, unless the manifest's `override` names it; then the manifest's own
//! value; then the policies on the hook `env`, which see what stands so far and have the last word on names of `allow`. A name that no
//! rule mentions never gets here. `ffi::env` has NCCL's side.

mod intern;
mod rules;

pub(crate) use intern::Interner;
pub use rules::{EnvRules, NameClass, class_of};

use crate::endpoint::Endpoint;
use crate::hooks::Hook;
use ringfence_guest::abi::{EnvContext, env_action};
use std::mem::offset_of;

/// Bytes of a name that a policy sees, NUL not counted.
pub const MAX_NAME: usize = 63;
/// Bytes of a value that a policy may answer with, NUL not counted.
pub const MAX_POLICY_VALUE: usize = 255;

/// What NCCL is to hear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// What the process environment says.
    Pass,
    /// Not set.
    Hide,
    /// This value.
    Value(Vec<u8>),
}

/// Finds the answer for `name`. `in_process`: the process environment has it.
pub(crate) fn ask(endpoint: &mut Endpoint, version: u32, name: &str, in_process: bool) -> Answer {
    endpoint.refresh();
    let plan = endpoint.plan().clone();
    let rules = &plan.set().manifest().env;
    if !rules.mentions(name) || (in_process && !rules.overrides(name)) {
        return Answer::Pass;
    }
    let fixed = rules.value(name).map_or(Answer::Pass, |v| Answer::Value(v.as_bytes().to_vec()));
    if !rules.allows(name) || !endpoint.wants(Hook::Env) {
        return fixed;
    }
    let before = Context::new(name, version, &fixed);
    let mut context = Context(before.0);
    endpoint.run(Hook::Env, &mut context.0);
    // Unchanged, the answer is the manifest's, of which a policy may have seen only the front.
    if context.0 == before.0 { fixed } else { context.answer().unwrap_or(fixed) }
}

/// An `EnvContext` as policies read it.
#[repr(align(8))]
struct Context([u8; size_of::<EnvContext>()]);

impl Context {
    fn new(name: &str, version: u32, so_far: &Answer) -> Context {
        let mut context = Context([0; size_of::<EnvContext>()]);
        let name = &name.as_bytes()[..name.len().min(MAX_NAME)];
        context.0[offset_of!(EnvContext, name)..][..name.len()].copy_from_slice(name);
        context.put(offset_of!(EnvContext, name_len), name.len() as u32);
        context.put(offset_of!(EnvContext, nccl_version), version);
        let (action, value): (u32, &[u8]) = match so_far {
            Answer::Pass => (env_action::PASS, &[]),
            Answer::Hide => (env_action::HIDE, &[]),
            // A longer one cannot be shown; it stays unless a policy decides otherwise.
            Answer::Value(v) => (env_action::ANSWER, &v[..v.len().min(MAX_POLICY_VALUE)]),
        };
        context.put(offset_of!(EnvContext, action), action);
        context.put(offset_of!(EnvContext, value_len), value.len() as u32);
        context.0[offset_of!(EnvContext, value)..][..value.len()].copy_from_slice(value);
        context
    }

    fn put(&mut self, at: usize, number: u32) {
        self.0[at..at + 4].copy_from_slice(&number.to_le_bytes());
    }

    fn word(&self, at: usize) -> u32 {
        self.0[at..].first_chunk().map_or(0, |b| u32::from_le_bytes(*b))
    }

    /// What the chain decided; `None` if that is no answer: an action that does not exist, a value that is too long or holds control characters.
    fn answer(&self) -> Option<Answer> {
        match self.word(offset_of!(EnvContext, action)) {
            env_action::PASS => Some(Answer::Pass),
            env_action::HIDE => Some(Answer::Hide),
            env_action::ANSWER => {
                let len = self.word(offset_of!(EnvContext, value_len)) as usize;
                let value = self.0[offset_of!(EnvContext, value)..]
                    .get(..len)
                    .filter(|v| v.len() <= MAX_POLICY_VALUE)?;
                let end = value.iter().position(|b| *b == 0).unwrap_or(value.len());
                let value = &value[..end];
                value.iter().all(|b| !b.is_ascii_control()).then(|| Answer::Value(value.to_vec()))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_holds_the_name_and_what_stands_so_far() {
        let context = Context::new("NCCL_ALGO", 0x02_1e_07, &Answer::Value(b"Ring".to_vec()));
        assert_eq!(&context.0[..10], b"NCCL_ALGO\0");
        assert_eq!(
            (context.word(64), context.word(68), context.word(72), context.word(76)),
            (9, 0x02_1e_07, 1, 4)
        );
        assert_eq!(context.answer(), Some(Answer::Value(b"Ring".to_vec())));
        assert_eq!(Context::new("NCCL_ALGO", 0, &Answer::Pass).answer(), Some(Answer::Pass));
        assert_eq!(Context::new("NCCL_ALGO", 0, &Answer::Hide).answer(), Some(Answer::Hide));
        let long = Context::new(&"N".repeat(100), 0, &Answer::Value(vec![b'x'; 300]));
        assert_eq!((long.word(64), long.word(76)), (63, 255));
    }

    #[test]
    fn what_is_no_answer_changes_nothing() {
        let mut context = Context::new("NCCL_ALGO", 0, &Answer::Value(b"a\0b".to_vec()));
        assert_eq!(context.answer(), Some(Answer::Value(b"a".to_vec())), "a value ends at its NUL");
        for len in [256, 257, u32::MAX] {
            context.put(offset_of!(EnvContext, value_len), len);
            assert_eq!(context.answer(), None);
        }
        context.put(offset_of!(EnvContext, value_len), 3);
        context.put(offset_of!(EnvContext, action), 3);
        assert_eq!(context.answer(), None);
        assert_eq!(Context::new("N", 0, &Answer::Value(b"a\nb".to_vec())).answer(), None);
    }
}
