//! The kernel's own verifier selftests as a corpus. `RINGFENCE_KERNEL_SELFTESTS` names the folder that
//! `tests/kernel/build.sh` made of an unpacked Linux source; without it nothing is tested here, and the test says so.
//!
//! Each program has a verdict by the kernel and one by us, in an environment like the kernel's for its type. Where they differ,
//! `corpus/kernel/differences.toml` must say why; what it lists must differ.
//!
//! The kernel's verdict is root's. Root may leak pointers and read stack that was never written (`allow_ptr_leaks`,
//! `allow_uninit_stack`); a program of ours may not. So where the kernel refuses a program to all others, and we refuse it
//! for one of these reasons, the verdicts agree; these are counted by themselves.

mod context;
mod corpus;
mod scope;
mod tags;

use corpus::{Reason, Test, Verdict};
use ringfence_translator::interp::Interp;
use ringfence_translator::isa::{AluOp, Insn, Operand};
use ringfence_translator::verify::{Verified, Verifier};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Kinds of refusals that root of the kernel is spared.
const ROOT_MAY: &[&str] = &[
    "uninit-stack",
    "pointer-leak",
    "pointer-arith",
    "pointer-compare",
    "helper-arg",
    "not-pointer",
    "ctx-write",
];

/// Percent of the tests in scope that must agree.
const AIM: usize = 97;

/// How a test came out.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    OutOfScope(String),
    BothAccept,
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
    fn class(&self) -> &'static str {
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
    fn difference(&self) -> Option<String> {
        match self {
            Outcome::WeRefuse(kind, why) => Some(format!("we refuse [{kind}]: {why}")),
            Outcome::WeAccept(why) => Some(format!("we accept; the kernel says: {why}")),
            Outcome::WrongResult(why) => Some(format!("wrong result: {why}")),
            _ => None,
        }
    }
}

fn corpus_dir() -> Option<PathBuf> {
    let dir = std::env::var_os("RINGFENCE_KERNEL_SELFTESTS").map(PathBuf::from);
    if dir.is_none() {
        eprintln!("*** RINGFENCE_KERNEL_SELFTESTS is not set: the kernel's selftests are not run ***");
    }
    dir
}

fn outcome(test: &Test) -> Outcome {
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
    test.messages.last().is_some_and(|m| m.ends_with("div by zero"))
        && v.program().iter().any(|(pc, insn)| zero(insn) && v.fact(pc).is_some())
}

/// Runs it as the kernel's test does; what is wrong, if anything is.
fn run(test: &Test, v: &Verified) -> Option<String> {
    let ctx = test.kind.test_context()?;
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
            other => return Some(format!("r0 is {other:x?}, not {wanted:#x}")),
        }
    }
    None
}

/// The committed list: (file, test) and the reason.
fn listed() -> BTreeMap<(String, String), String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/kernel/differences.toml");
    let text = std::fs::read_to_string(path).expect("the list of differences");
    let list: toml::Table = text.parse().expect("TOML");
    let mut out = BTreeMap::new();
    for group in list["group"].as_array().expect("groups") {
        let reason = group["reason"].as_str().expect("a reason").trim();
        assert!(reason.len() > 30, "a reason is a sentence: {reason:?}");
        for test in group["tests"].as_array().expect("tests") {
            let (file, name) = test.as_str().and_then(|t| t.split_once(": ")).expect("FILE: TEST");
            let twice = out.insert((file.to_owned(), name.to_owned()), reason.to_owned());
            assert!(twice.is_none(), "{file}: {name} is listed twice");
        }
    }
    out
}

fn print_counts(title: &str, counts: &BTreeMap<String, usize>) {
    println!("{title}:");
    counts.iter().for_each(|(what, n)| println!("{n:6} {what}"));
}

#[test]
fn verdicts_agree_with_the_kernel() {
    let Some(dir) = corpus_dir() else { return };
    let mut unlisted = Vec::new();
    let mut listed = listed();
    let (mut classes, mut scope) = (BTreeMap::new(), BTreeMap::new());
    for t in &corpus::load(&dir) {
        let got = outcome(t);
        *classes.entry(got.class().to_owned()).or_default() += 1;
        if let Outcome::OutOfScope(why) = &got {
            *scope.entry(why.clone()).or_default() += 1;
        }
        let known = listed.remove(&(t.file.clone(), t.name.clone()));
        match (got.difference(), known) {
            (Some(what), None) => unlisted.push(format!("{}: {}\n    {what}", t.file, t.name)),
            (None, Some(_)) => {
                unlisted.push(format!("{}: {} is listed, but does not differ", t.file, t.name))
            }
            _ => {}
        }
    }
    print_counts("out of scope", &scope);
    print_counts("all", &classes);
    assert!(unlisted.is_empty(), "{} unexplained differences:\n{}", unlisted.len(), unlisted.join("\n"));
    assert!(listed.is_empty(), "listed, but not there: {:?}", listed.keys());
    let count = |class: &str| classes.get(class).copied().unwrap_or(0);
    let differ = count("we refuse") + count("we accept") + count("wrong result");
    let agree = count("both accept") + count("both refuse") + count("both refuse, root excepted");
    println!("{agree} of {} in scope agree", agree + differ);
    assert!(100 * agree >= AIM * (agree + differ), "{agree} of {} agree, fewer than {AIM}%", agree + differ);
}
