//! The precision ledger, `corpus/ledger.toml`: how many programs of each corpus are accepted, and why the others are not.
//! A change that moves a count shows in the diff; `BLESS=1` writes the new counts, to be reviewed as code.
//!
//! | section | corpus | where |
//! |---|---|---|
//! | `cases` | `corpus/verify/*.case`, whose verdicts tests/verify.rs holds | here |
//! | `generated` | the soak's programs, seeded | here |
//! | `policies` | what ships, and what must be refused | `RINGFENCE_POLICIES` |
//! | `conformance` | bpf_conformance | `RINGFENCE_CONFORMANCE_DIR` |
//! | `kernel` | the kernel's verifier selftests, by file | `RINGFENCE_KERNEL_SELFTESTS` |
//! | `ncclbpf` | objects of NCCLbpf | `RINGFENCE_NCCLBPF_DIR` |
//! | `samples` | a tree of objects built for Linux, such as Alan-Jowett/ebpf-samples | `RINGFENCE_EBPF_SAMPLES` |
//!
//! A corpus that is not on the machine is left as it stands, and the test says so.

use ringfence_host::Hook;
use ringfence_soak::{Job, Random, Shape, env, generate, run_job};
use ringfence_tests::kernel::{self, Kind};
use ringfence_translator::verify::{CtxLayout, ReturnRule, Verifier};
use ringfence_translator::{Env, Object, Program};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Rows of a section; each says what came how often, in the order of the alphabet.
type Section = BTreeMap<String, BTreeMap<String, u64>>;
type Ledger = BTreeMap<String, Section>;

const HEAD: &str = "# The precision ledger: see tests/tests/ledger.rs. BLESS=1 rewrites the sections whose corpora are on the \
                    machine.\n";
/// Programs of the soak, and their seed: as many as take some seconds.
const GENERATED: Job = Job { seed: 0x1ed9_e400, batch: 0, programs: 3_000 };

fn count(section: &mut Section, row: &str, what: impl Into<String>) {
    *section.entry(row.to_owned()).or_default().entry(what.into()).or_default() += 1;
}

fn repo() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the repository")
}

fn files(dir: &Path, ending: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let mut out = Vec::new();
    for path in entries.map(|e| e.expect("an entry").path()) {
        if path.is_dir() {
            out.extend(files(&path, ending));
        } else if path.extension().is_some_and(|e| e == ending) {
            out.push(path);
        }
    }
    out.sort();
    out
}

fn cases() -> Section {
    let mut out = Section::new();
    for path in files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/verify"), "case") {
        let row = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).expect("a case file");
        for line in text.lines() {
            match line.split_whitespace().collect::<Vec<_>>()[..] {
                ["expect", "accepted"] => count(&mut out, &row, "accepted"),
                ["expect", "reject", kind, ..] => count(&mut out, &row, kind),
                _ => {}
            }
        }
    }
    out
}

fn generated() -> Section {
    let outcome = run_job(&GENERATED, &env());
    let mut out =
        Section::from([("programs".into(), BTreeMap::from([("fingerprint".into(), fingerprint())]))]);
    for (row, tally) in [("generated", outcome.generated), ("mutated", outcome.mutated)] {
        let row = out.entry(row.into()).or_default();
        row.insert("accepted".into(), tally.accepted);
        row.extend(tally.refused.iter().map(|(kind, n)| ((*kind).to_owned(), *n)));
    }
    out
}

/// Tells a change of the generator, which moves all counts, from one of the verifier's.
fn fingerprint() -> u64 {
    let (shape, mut random) = (Shape::generic(), Random::new(GENERATED.seed));
    let texts = (0..100).map(|_| format!("{:?}", generate(&mut random, &shape)));
    let hash = texts
        .flat_map(String::into_bytes)
        .fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    hash >> 32
}

fn verdict(program: Program, env: Env) -> String {
    match Verifier::new(Arc::new(env)).verify(program) {
        Ok(_) => "accepted".into(),
        Err(r) => r.kind().name().into(),
    }
}

/// What a program of an object for Linux is verified against: what its section says, else a large buffer.
fn linux_env(section: &str) -> Env {
    Kind::of_section(section).env().unwrap_or_else(|| Env {
        hook: "kernel",
        ctx: CtxLayout::Buffer { size: 65535 },
        helpers: Env::kernel_like_helpers(),
        ret: ReturnRule::Any,
        ..Env::generic(0)
    })
}

/// All programs of the objects under `dir`, in rows of `row(path from there)`.
fn objects(dir: &Path, row: impl Fn(&Path) -> String) -> Section {
    let mut out = Section::new();
    for path in files(dir, "o") {
        let row = row(path.strip_prefix(dir).expect("it lies there"));
        let Ok(object) = Object::parse(&std::fs::read(&path).expect("an object")) else {
            count(&mut out, &row, "not loaded");
            continue;
        };
        for spec in object.programs() {
            let env = match Hook::from_section(spec.section()) {
                Some(hook) => (*hook.env()).clone(),
                None => linux_env(spec.section()),
            };
            let what = object.program(spec.name()).map_or("not loaded".into(), |p| verdict(p, env));
            count(&mut out, &row, what);
        }
    }
    out
}

fn conformance(dir: &Path) -> Section {
    let mut out = Section::new();
    let text = std::fs::read_to_string(dir.join("bpf_conformance.jsonl")).expect("the vectors");
    for line in text.lines() {
        let v: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let bytes = |key: &str| -> Vec<u8> {
            let digits: Vec<u32> =
                v[key].as_str().unwrap_or_default().chars().filter_map(|c| c.to_digit(16)).collect();
            digits.chunks_exact(2).map(|d| (d[0] << 4 | d[1]) as u8).collect()
        };
        let program = Program::from_code("main", &bytes("code"));
        let env = Env::generic(bytes("mem").len() as u32);
        let what = program.map_or("not loaded".into(), |p| verdict(p, env));
        count(&mut out, "bpf_conformance", what);
    }
    out
}

fn kernel_selftests(dir: &Path) -> Section {
    let mut out = Section::new();
    for test in kernel::load(dir) {
        count(&mut out, &test.file, kernel::outcome(&test).class());
    }
    out
}

/// The sections whose corpora are here.
fn recount() -> Ledger {
    let stem = |p: &Path| p.to_string_lossy().trim_end_matches(".o").trim_end_matches(".bpf").to_owned();
    let folder = |p: &Path| p.parent().unwrap_or(p).to_string_lossy().into_owned();
    let mut out = Ledger::from([("cases".into(), cases()), ("generated".into(), generated())]);
    let mut outside = |name: &str, variable: &str, count: &dyn Fn(&Path) -> Section| {
        match std::env::var_os(variable) {
            // Tests run in the folder of their package.
            Some(dir) => drop(out.insert(name.into(), count(&repo().join(dir)))),
            None => {
                eprintln!("*** {variable} is not set: the ledger's section `{name}` is left as it stands ***")
            }
        }
    };
    outside("policies", "RINGFENCE_POLICIES", &|dir| objects(dir, stem));
    outside("conformance", "RINGFENCE_CONFORMANCE_DIR", &conformance);
    outside("kernel", "RINGFENCE_KERNEL_SELFTESTS", &kernel_selftests);
    outside("ncclbpf", "RINGFENCE_NCCLBPF_DIR", &|dir| objects(dir, stem));
    outside("samples", "RINGFENCE_EBPF_SAMPLES", &|dir| objects(dir, folder));
    out
}

fn read(path: &Path) -> Ledger {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let table: toml::Table = text.parse().expect("TOML");
    let number = |v: &toml::Value| v.as_integer().expect("a count") as u64;
    let row = |v: &toml::Value| {
        v.as_table().expect("a row").iter().map(|(what, n)| (what.clone(), number(n))).collect()
    };
    let section =
        |v: &toml::Value| v.as_table().expect("a section").iter().map(|(k, v)| (k.clone(), row(v))).collect();
    table.iter().map(|(name, v)| (name.clone(), section(v))).collect()
}

fn cells(row: &BTreeMap<String, u64>) -> String {
    row.iter().map(|(what, n)| format!("{what:?} = {n}")).collect::<Vec<_>>().join(", ")
}

fn render(ledger: &Ledger) -> String {
    let mut out = HEAD.to_owned();
    for (name, section) in ledger {
        let mut all: BTreeMap<String, u64> = BTreeMap::new();
        let programs = section.values().flatten().filter(|(what, _)| *what != "fingerprint");
        programs.for_each(|(what, n)| *all.entry(what.clone()).or_default() += n);
        out += &format!("\n[{name}]\n# in all: {}\n", cells(&all));
        section.iter().for_each(|(row, counts)| out += &format!("{row:?} = {{ {} }}\n", cells(counts)));
    }
    out
}

/// What moved, a line for each row.
fn moved(was: &Ledger, now: &Ledger) -> Vec<String> {
    let none = Section::new();
    let mut out = Vec::new();
    for (name, section) in now {
        let before = was.get(name).unwrap_or(&none);
        let mut rows: Vec<&String> = section.keys().chain(before.keys()).collect();
        rows.sort();
        rows.dedup();
        for row in rows {
            let of = |s: &Section| s.get(row).map_or("not there".into(), cells);
            if before.get(row) != section.get(row) {
                out.push(format!("[{name}] {row}\n    was {}\n    now {}", of(before), of(section)));
            }
        }
    }
    out
}

#[test]
fn precision_has_not_moved() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/ledger.toml");
    let (was, now) = (read(&path), recount());
    let moved = moved(&was, &now);
    if std::env::var_os("BLESS").is_some() {
        let mut all = was;
        all.extend(now);
        std::fs::write(&path, render(&all)).expect("a writable ledger");
        return;
    }
    assert!(moved.is_empty(), "the ledger has moved (BLESS=1 rewrites it):\n{}", moved.join("\n"));
}
