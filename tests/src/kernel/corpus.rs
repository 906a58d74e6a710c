//! [`Test`]: a program of the kernel's selftests with what the kernel makes of it; [`load`] reads the corpus that
//! `tests/kernel/build.sh` compiled.

use super::context::Kind;
use super::tags::Tags;
use ringfence_translator::{Error, MapDecl, MapKind, Object, Program};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A kernel's verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The program loads.
    Accepted,
    /// It does not.
    Refused,
}

/// A run of an accepted program.
#[derive(Clone, Debug)]
pub struct Run {
    /// The low half of r0; `None` for a value that means a pointer.
    pub retval: Option<u32>,
}

/// A program and what is expected of it.
pub struct Test {
    /// Its file, without an ending.
    pub file: String,
    /// Function, or description.
    pub name: String,
    /// Program type.
    pub kind: Kind,
    /// As root sees it; `None` where the test is for unprivileged users alone.
    pub root: Option<Verdict>,
    /// As an unprivileged user sees it, where the test says so.
    pub user: Option<Verdict>,
    /// What the kernel's log is to say.
    pub messages: Vec<String>,
    /// Options of the load that change the verdict.
    pub strict: bool,
    /// Tags of arguments of the functions in it (`__arg_nullable` and so on).
    pub argument_tags: bool,
    /// Runs after a load.
    pub runs: Vec<Run>,
    /// (map, key, value) before a run.
    pub contents: Vec<(String, Vec<u8>, Vec<u8>)>,
    /// The program.
    pub program: Result<Program, Reason>,
}

/// What the tests write for "a pointer, whatever its value".
const POINTER_VALUE: u32 = 0xca_fe4a;

/// Why there is no program.
#[derive(Clone, Debug)]
pub enum Reason {
    /// The loader says so.
    Loader(Error),
    /// A map that the struct-style tests make and that we do not know.
    Map(u64),
    /// It calls a function of the kernel.
    Kfunc,
}

/// All tests, in the order of their files.
pub fn load(dir: &Path) -> Vec<Test> {
    let mut objects: Vec<PathBuf> = std::fs::read_dir(dir.join("progs"))
        .expect("progs/ of the corpus")
        .map(|e| e.expect("an entry").path())
        .filter(|p| p.extension().is_some_and(|e| e == "o"))
        .collect();
    objects.sort();
    let mut tests: Vec<Test> = objects.iter().flat_map(|p| object(p)).collect();
    let lines = std::fs::read_to_string(dir.join("verifier.jsonl")).expect("verifier.jsonl of the corpus");
    tests.extend(lines.lines().map(|l| array(&serde_json::from_str(l).expect("JSON"))));
    tests
}

fn object(path: &Path) -> Vec<Test> {
    let bytes = std::fs::read(path).expect("a readable object");
    let file = path.file_stem().expect("a name").to_string_lossy().into_owned();
    let object = Object::parse(&bytes).unwrap_or_else(|e| panic!("{file}: {e}"));
    let tags = Tags::of(&bytes).unwrap_or_else(|| panic!("{file}: no BTF"));
    let specs = object.programs().map(|s| (s.name().to_owned(), s.section().to_owned()));
    specs.filter_map(|(name, section)| annotated(&file, &object, &tags, &name, &section)).collect()
}

fn annotated(file: &str, object: &Object, tags: &Tags, name: &str, section: &str) -> Option<Test> {
    let all: Vec<&str> = tags.of_test(name).collect();
    let has = |tag: &str| all.contains(&tag);
    if has("auxiliary") {
        return None;
    }
    // As test_loader.c does: a mode is tested if some tag of it is there, and root's if none is.
    let mode = |tag: &&&str| tag.split('=').next().is_some_and(|t| t.ends_with("_unpriv"));
    let asks = |t: &&&str| t.starts_with("expect_") || t.starts_with("retval");
    let for_user = all.iter().filter(asks).any(|t| mode(&t));
    let for_root = !for_user || all.iter().filter(asks).any(|t| !mode(&t));
    let of = |failure: bool| if failure { Verdict::Refused } else { Verdict::Accepted };
    let (root_fails, user_fails) = (has("expect_failure"), has("expect_failure_unpriv"));
    let user_says = user_fails || has("expect_success_unpriv");
    let value = |prefix: &str| all.iter().find_map(|t| t.strip_prefix(prefix).map(str::to_owned));
    let runs = value("retval=").map(|v| Run { retval: retval(&v) });
    let program = object.program(name).map_err(Reason::Loader);
    let argument_tags =
        program.as_ref().is_ok_and(|p| p.funcs().iter().any(|f| tags.has_argument_tags(&f.name)));
    let strict = ["BPF_F_STRICT_ALIGNMENT", "BPF_F_TEST_REG_INVARIANTS"];
    Some(Test {
        file: file.to_owned(),
        name: name.to_owned(),
        kind: Kind::of_section(section),
        root: for_root.then_some(of(root_fails)),
        user: for_user.then_some(of(if user_says { user_fails } else { root_fails })),
        messages: all.iter().filter_map(|t| t.strip_prefix("expect_msg=")).map(str::to_owned).collect(),
        strict: all.iter().any(|t| t.strip_prefix("prog_flags=").is_some_and(|f| strict.contains(&f))),
        runs: runs.into_iter().collect(),
        contents: contents_for(file),
        argument_tags,
        program,
    })
}

fn retval(text: &str) -> Option<u32> {
    match text {
        "POINTER_VALUE" => None,
        "INT_MIN" => Some(i32::MIN as u32),
        "TEST_DATA_LEN" => Some(64),
        hex if hex.starts_with("0x") => u32::from_str_radix(&hex[2..], 16).ok(),
        number => number.parse::<i64>().ok().map(|n| n as u32),
    }
}

/// `struct test_val`: an index of 28 (seven ints), and 0xabcdef12 as the seventh.
fn test_value() -> Vec<u8> {
    let mut value = vec![0; 48];
    value[..4].copy_from_slice(&28u32.to_le_bytes());
    value[28..32].copy_from_slice(&0xabcd_ef12u32.to_le_bytes());
    value
}

/// What prog_tests/verifier.c puts into maps before it runs the programs of a file.
fn contents_for(file: &str) -> Vec<(String, Vec<u8>, Vec<u8>)> {
    match file {
        "verifier_array_access" | "verifier_value_ptr_arith" => {
            ["map_array_ro", "map_array_48b"].map(|m| (m.to_owned(), vec![0; 4], test_value())).into()
        }
        _ => Vec::new(),
    }
}

fn text(v: &Value, key: &str) -> String {
    v[key].as_str().unwrap_or_default().to_owned()
}

fn bytes(v: &Value, key: &str) -> Vec<u8> {
    let hex = text(v, key);
    (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).expect("hex")).collect()
}

fn verdict(v: &Value) -> Option<Verdict> {
    match v.as_str() {
        Some("accepted") => Some(Verdict::Accepted),
        Some("refused") => Some(Verdict::Refused),
        _ => None,
    }
}

/// A test of verifier/*.c.
fn array(v: &Value) -> Test {
    const STRICT: u64 = 2;
    let list = |key: &str| v[key].as_array().cloned().unwrap_or_default();
    let run = |r: &Value| {
        let value = r["retval"].as_u64().unwrap_or_default() as u32;
        Run { retval: (value != POINTER_VALUE).then_some(value) }
    };
    let content =
        |u: &Value| (map_name(u["map"].as_u64().unwrap_or_default()), bytes(u, "key"), bytes(u, "value"));
    Test {
        file: text(v, "file"),
        name: text(v, "name"),
        kind: Kind::of_number(v["type"].as_u64().unwrap_or_default()),
        root: verdict(&v["result"]),
        user: verdict(&v["unprivileged"]).or(verdict(&v["result"])),
        messages: text(v, "message").split('\t').filter(|m| !m.is_empty()).map(str::to_owned).collect(),
        strict: v["flags"].as_u64().unwrap_or_default() & STRICT != 0,
        argument_tags: false,
        runs: list("runs").iter().map(run).collect(),
        contents: list("updates").iter().map(content).collect(),
        program: linked(v, &list("maps")),
    }
}

fn map_name(index: u64) -> String {
    format!("map_{index}")
}

fn linked(v: &Value, made: &[Value]) -> Result<Program, Reason> {
    if v["kfuncs"].as_bool() == Some(true) {
        return Err(Reason::Kfunc);
    }
    let maps: Result<Vec<MapDecl>, u64> = made.iter().enumerate().map(|(i, m)| map(i as u64, m)).collect();
    let mut code = bytes(v, "code");
    let mut wide = false;
    for slot in code.chunks_exact_mut(8) {
        // A file descriptor in `lddw` stands for the map of that number.
        if !wide && slot[0] == 0x18 && matches!(slot[1] >> 4, 1 | 2) {
            let fd = i32::from_le_bytes([slot[4], slot[5], slot[6], slot[7]]);
            slot[4..]
                .copy_from_slice(&fd.checked_sub(1000).filter(|i| *i >= 0).unwrap_or(i32::MAX).to_le_bytes());
        }
        wide = !wide && slot[0] == 0x18;
    }
    Program::with_maps("main", &code, maps.map_err(Reason::Map)?).map_err(Reason::Loader)
}

fn map(index: u64, v: &Value) -> Result<MapDecl, u64> {
    const RDONLY_PROG: u64 = 1 << 7;
    const WRONLY_PROG: u64 = 1 << 8;
    let n = |key: &str| v[key].as_u64().unwrap_or_default();
    let kind = u32::try_from(n("type")).ok().and_then(MapKind::from_bpf_type).ok_or(n("type"))?;
    // Types of values, as test_verifier.c numbers them: 3 is an int and a lock, others are timers and kernel pointers.
    let spin_lock = match n("value_type") {
        0 => None,
        3 => Some(4),
        _ => return Err(n("type")),
    };
    if n("flags") & WRONLY_PROG != 0 {
        return Err(n("type"));
    }
    Ok(MapDecl {
        name: map_name(index),
        kind,
        key_size: n("key") as u32,
        value_size: n("value") as u32,
        max_entries: n("entries") as u32,
        read_only: n("flags") & RDONLY_PROG != 0,
        spin_lock,
        ..MapDecl::default()
    })
}
