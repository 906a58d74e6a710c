//! The kernel's verifier selftests, held against our verdicts. `RINGFENCE_KERNEL_SELFTESTS` names the folder that
//! `tests/kernel/build.sh` made of an unpacked Linux source; without it nothing is tested here, and the test says so.
//!
//! Where the verdicts differ, `corpus/kernel/differences.toml` must say why; what it lists must differ.

use ringfence_tests::kernel::{self, Outcome};
use std::collections::BTreeMap;
use std::path::Path;

/// Percent of the tests in scope that must agree.
const AIM: usize = 98;

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
    let Some(dir) = kernel::dir() else { return };
    let mut unlisted = Vec::new();
    let mut listed = listed();
    let (mut classes, mut scope) = (BTreeMap::new(), BTreeMap::new());
    for t in &kernel::load(&dir) {
        let got = kernel::outcome(t);
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
