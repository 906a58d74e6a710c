//! The kernel's own verifier selftests as a corpus, compiled by `tests/kernel/build.sh` from an unpacked Linux source. [`load`]
//! reads them as [`Test`]s; [`outcome`] holds our verdict on one against the kernel's.
//!
//! The kernel's verdict is root's. Root may leak pointers and read stack that was never written (`allow_ptr_leaks`,
//! `allow_uninit_stack`); a program of ours may not. So where the kernel refuses a program to all others, and we refuse it
//! for one of these reasons, the verdicts agree; these are counted by themselves.

mod context;
mod corpus;
mod scope;
mod tags;

pub use context::Kind;
pub use corpus::{Reason, Run, Test, Verdict, load};
pub use scope::out_of_scope;
pub use tags::Tags;

use ringfence_translator::interp::{Fault, FaultKind, Interp};
use ringfence_translator::isa::{AluOp, Insn, Operand};
use ringfence_translator::verify::{Verified, Verifier};
use std::path::PathBuf;
use std::sync::Arc;

/// Kinds of refusals that root of the kernel is spared.
const ROOT_MAY: &[&str] = &[
    "uninit-stack",
    "uninit-register",
    "pointer-leak",
    "pointer-arith",
    "pointer-compare",
    "helper-arg",
    "not-pointer",
    "ctx-write",
];

/// How a test came out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It needs what only the kernel has.
    OutOfScope(String),
    /// Agreed.
    BothAccept,
    /// Agreed.
    BothRefuse,
    /// The kernel accepts it from root alone.
    AsUnprivileged,
    /// The kernel accepts; our kind and message.
    WeRefuse(String, String),
    /// The kernel refuses, with this message.
    WeAccept(String),
    /// Accepted by both, but a run gives something else.
    WrongResult(String),
}

impl Outcome {
    /// Its class, in few words.
    pub fn class(&self) -> &'static str {
        match self {
            Outcome::OutOfScope(_) => "out of scope",
            Outcome::BothAccept => "both accept",
            Outcome::BothRefuse => "both refuse",
            Outcome::AsUnprivileged => "both refuse, root excepted",
            Outcome::WeRefuse(..) => "we refuse",
            Outcome::WeAccept(_) => "we accept",
            Outcome::WrongResult(_) => "wrong result",
        }
    }

    /// What differs, in words; `None` where nothing does.
    pub fn difference(&self) -> Option<String> {
        match self {
            Outcome::WeRefuse(kind, why) => Some(format!("we refuse [{kind}]: {why}")),
            Outcome::WeAccept(why) => Some(format!("we accept; the kernel says: {why}")),
            Outcome::WrongResult(why) => Some(format!("wrong result: {why}")),
            _ => None,
        }
    }
}

/// Judges a test.
pub fn outcome(test: &Test) -> Outcome {
    let env = test.kind.env();
    if let Some(why) = scope::out_of_scope(test, env.as_ref()) {
        return Outcome::OutOfScope(why);
    }
    let env = Arc::new(env.expect("a program in scope has an environment"));
    let ours = match &test.program {
        Err(Reason::Loader(e)) => Err((format!("{:?}", e.kind()), e.to_string())),
        Err(other) => panic!("{}: {other:?} is out of scope", test.name),
        Ok(program) => match Verifier::new(env).verify(program.clone()) {
            Ok(verified) => Ok(verified),
            Err(r) => Err((r.kind().name().into(), r.to_string())),
        },
    };
    match (ours, test.root) {
        (Ok(v), Some(Verdict::Accepted)) => run(test, &v).map_or(Outcome::BothAccept, Outcome::WrongResult),
        (Ok(v), _) if divides_by_zero(test, &v) => Outcome::BothRefuse,
        (Ok(_), _) => Outcome::WeAccept(test.messages.join("; ")),
        (Err((kind, _)), Some(Verdict::Accepted))
            if test.user == Some(Verdict::Refused) && ROOT_MAY.contains(&&*kind) =>
        {
            Outcome::AsUnprivileged
        }
        (Err((kind, why)), Some(Verdict::Accepted)) => Outcome::WeRefuse(kind, why),
        (Err(_), _) => Outcome::BothRefuse,
    }
}

/// The kernel refuses a division by the constant 0, which the ISA defines, and its tests use one to mark a place that must be
/// found to be reachable. So it has to be.
fn divides_by_zero(test: &Test, v: &Verified) -> bool {
    let zero = |insn: &Insn| {
        let divides = |op: AluOp| matches!(op, AluOp::Div | AluOp::Mod | AluOp::SDiv | AluOp::SMod);
        matches!(insn, Insn::Alu { op, src: Operand::Imm(0), .. } if divides(*op))
    };
    test.messages.last().is_none_or(|m| m.ends_with("div by zero"))
        && v.program().iter().any(|(pc, insn)| zero(insn) && v.fact(pc).is_some())
}

/// Runs it as the kernel's test does; what is wrong, if anything is.
fn run(test: &Test, v: &Verified) -> Option<String> {
    let ctx = test.kind.test_context()?;
    // Programs for tail calls are not part of the corpus.
    if v.program().iter().any(|(_, insn)| matches!(insn, Insn::CallHelper { id: 12 })) {
        return None;
    }
    for wanted in test.runs.iter().filter_map(|r| r.retval) {
        let mut interp = Interp::new(v.program(), ctx.clone()).helpers(|id, _, _| match id {
            5 => Some(1_000_000),
            7 | 8 => Some(0),
            _ => None,
        });
        for (map, key, value) in &test.contents {
            let maps = interp.memory_mut().maps_mut();
            if let Some(m) = maps.iter_mut().find(|m| m.decl().name == *map)
                && m.update(key, value, 0).is_err()
            {
                return Some(format!("{map} takes no value"));
            }
        }
        match interp.run() {
            Ok(r0) if r0 as u32 == wanted => {}
            // One that reads packets or kernel memory: there is nothing to compare.
            Err(Fault { kind: FaultKind::UnknownHelper(_), .. }) => {}
            other => return Some(format!("r0 is {other:x?}, not {wanted:#x}")),
        }
    }
    None
}

/// The folder that `RINGFENCE_KERNEL_SELFTESTS` names; without it a line on standard error.
pub fn dir() -> Option<PathBuf> {
    let dir = std::env::var_os("RINGFENCE_KERNEL_SELFTESTS").map(PathBuf::from);
    if dir.is_none() {
        eprintln!("*** RINGFENCE_KERNEL_SELFTESTS is not set: the kernel's selftests are not run ***");
    }
    dir
}
