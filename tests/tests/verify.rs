//! The verifier's corpus: every case in `corpus/verify/*.case` gets the verdict that it states, kind and pc included.
//!
//! A file holds many cases. Lines, in this order:
//!
//! ```text
//! case NAME
//! env generic BYTES | kernel BYTES | fields [any]
//!     (the default is `generic 64`; `kernel` offers every helper that is known; `fields` is described at `fields_env`)
//! budget N                               (optional)
//! map NAME KIND KEY VALUE ENTRIES [ro] [lock AT] [= HEX]    (any number; KIND as in `MapKind::name`; HEX is global data)
//! tails MAP FN|-...                         (functions of the code in the slots of a program array)
//! code
//!   assembler text
//! expect accepted | expect reject KIND @ PC
//! ```
//!
//! Cases come in twins: `NAME` is refused, `NAME/ok` differs in as little as possible and is accepted.
//!
//! Accepted cases are also run, each step held against what was proved; the refused ones of `cve.case` are run too, to
//! show that the danger is real.

use ringfence_soak::{Random, oracle::random_context};
use ringfence_translator::interp::{Interp, Memory};
use ringfence_translator::isa::Pc;
use ringfence_translator::isa::asm::assemble;
use ringfence_translator::verify::{CtxField, CtxLayout, RankLabel, ReturnRule, Rights, Verifier};
use ringfence_translator::{Env, MapDecl, MapKind, Program, RejectKind};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

#[derive(Debug)]
struct Case {
    name: String,
    place: String,
    env: Env,
    maps: Vec<MapDecl>,
    /// Of each program array: its name, then what is in its slots.
    tails: Vec<Vec<String>>,
    code: String,
    expect: Expect,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Expect {
    Accepted,
    Reject(String, u32),
}

/// A context with one of each: `size` u64 at 0, `func` u32 at 8, `ranks` u32 at 12, `flags` u16 at 16 (rank-local),
/// `kind` u8 at 18, padding up to 24; read-write `algo` u32 at 24 and `channels` u32 at 28; padding up to 40;
/// read-write `big` u64 at 40; `cost`, an array of four u32, at 48. 64 bytes.
fn fields_env(ret: ReturnRule) -> Env {
    let field =
        |name, offset, width, count, rights, label| CtxField { name, offset, width, count, rights, label };
    let (r, rw) = (Rights::Read, Rights::ReadWrite);
    let (u, l) = (RankLabel::Uniform, RankLabel::RankLocal);
    let fields = vec![
        field("size", 0, 8, 1, r, u),
        field("func", 8, 4, 1, r, u),
        field("ranks", 12, 4, 1, r, u),
        field("flags", 16, 2, 1, r, l),
        field("kind", 18, 1, 1, r, u),
        field("algo", 24, 4, 1, rw, u),
        field("channels", 28, 4, 1, rw, u),
        field("big", 40, 8, 1, rw, u),
        field("cost", 48, 4, 4, r, l),
    ];
    Env { hook: "fields", ctx: CtxLayout::Fields { size: 64, fields }, ret, ..Env::generic(0) }
}

fn parse_map(words: &[&str]) -> MapDecl {
    let number = |i: usize| words[i].parse::<u32>().unwrap_or_else(|_| panic!("map {words:?}"));
    let kind = MapKind::ALL
        .into_iter()
        .find(|k| k.name() == words[1])
        .unwrap_or_else(|| panic!("map kind {}", words[1]));
    let (key_size, value_size, max_entries) = (number(2), number(3), number(4));
    let hex = words.iter().position(|w| *w == "=").map_or(String::new(), |i| words[i + 1..].concat());
    let mut init: Vec<u8> =
        (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).expect("hex")).collect();
    if kind == MapKind::Global {
        init.resize(value_size as usize, 0);
    }
    let read_only = words.contains(&"ro");
    let spin_lock = words.iter().position(|w| *w == "lock").map(|i| number(i + 1));
    MapDecl {
        name: words[0].into(),
        kind,
        key_size,
        value_size,
        max_entries,
        read_only,
        init,
        spin_lock,
        ..MapDecl::default()
    }
}

fn parse_expect(words: &[&str]) -> Expect {
    match words {
        ["accepted"] => Expect::Accepted,
        ["reject", kind, "@", pc] => Expect::Reject((*kind).into(), pc.parse().expect("pc")),
        other => panic!("expect {other:?}"),
    }
}

fn parse(file: &Path) -> Vec<Case> {
    let text = std::fs::read_to_string(file).expect("a readable case file");
    let mut cases = Vec::new();
    let mut case: Option<Case> = None;
    let mut in_code = false;
    for (n, line) in text.lines().enumerate() {
        let place = format!("{}:{}", file.file_name().unwrap().to_string_lossy(), n + 1);
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["case", name] => {
                assert!(case.is_none(), "{place}: the case before has no verdict");
                let (env, name) = (Env::generic(64), name.to_string());
                let (maps, code, expect) = (Vec::new(), String::new(), Expect::Accepted);
                case = Some(Case { name, place, env, maps, tails: Vec::new(), code, expect });
                in_code = false;
            }
            ["expect", rest @ ..] => {
                let mut c = case.take().unwrap_or_else(|| panic!("{place}: no case"));
                c.expect = parse_expect(rest);
                cases.push(c);
                in_code = false;
            }
            [] => {}
            [first, ..] if !in_code && first.starts_with('#') => {}
            words => {
                let c = case.as_mut().unwrap_or_else(|| panic!("{place}: no case"));
                if in_code {
                    c.code += &format!("{line}\n");
                    continue;
                }
                match words {
                    ["code"] => in_code = true,
                    ["env", "generic", n] => c.env = Env::generic(n.parse().expect("bytes")),
                    ["env", "kernel", n] => {
                        let env = Env::generic(n.parse().expect("bytes"));
                        c.env = Env { helpers: Env::kernel_like_helpers(), ..env };
                    }
                    ["env", "fields"] => c.env = fields_env(ReturnRule::Scalar),
                    ["env", "fields", "any"] => c.env = fields_env(ReturnRule::Any),
                    ["budget", n] => c.env.insn_budget = n.parse().expect("instructions"),
                    ["tails", rest @ ..] => c.tails.push(rest.iter().map(|w| w.to_string()).collect()),
                    ["map", rest @ ..] => c.maps.push(parse_map(rest)),
                    other => panic!("{place}: {other:?}"),
                }
            }
        }
    }
    assert!(case.is_none(), "{}: the last case has no verdict", file.display());
    cases
}

fn corpus() -> Vec<Case> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/verify");
    let mut files: Vec<_> = std::fs::read_dir(dir).expect("the corpus").map(|e| e.unwrap().path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "case"));
    files.sort();
    files.iter().flat_map(|f| parse(f)).collect()
}

fn verdict(case: &Case) -> Result<(Expect, String), String> {
    let mut program = assemble(&case.code, &case.maps).map_err(|e| e.to_string())?;
    for tails in &case.tails {
        let slots: Vec<Option<&str>> =
            tails[1..].iter().map(|t| Some(t.as_str()).filter(|t| *t != "-")).collect();
        program = program.with_targets(&tails[0], &slots).map_err(|e| e.to_string())?;
    }
    Ok(match Verifier::new(Arc::new(case.env.clone())).verify(program) {
        Ok(v) => (Expect::Accepted, format!("{:?}", v.stats())),
        Err(r) => (Expect::Reject(r.kind().name().into(), r.pc().0), r.to_string()),
    })
}

#[test]
fn every_case_gets_its_verdict() {
    let cases = corpus();
    let mut wrong = Vec::new();
    for c in &cases {
        match verdict(c) {
            Ok((got, _)) if got == c.expect => {}
            Ok((got, text)) => {
                wrong.push(format!("{} {}: want {:?}, got {got:?}\n    {text}", c.place, c.name, c.expect));
            }
            Err(e) => wrong.push(format!("{} {}: {e}", c.place, c.name)),
        }
    }
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    println!("{} cases", cases.len());
}

#[test]
fn the_corpus_holds_every_kind_and_a_twin_for_each_refusal() {
    let cases = corpus();
    let by_name: BTreeMap<&str, &Case> = cases.iter().map(|c| (c.name.as_str(), c)).collect();
    assert_eq!(by_name.len(), cases.len(), "two cases have one name");
    let mut kinds = BTreeSet::new();
    for c in &cases {
        let Expect::Reject(kind, _) = &c.expect else { continue };
        kinds.insert(kind.as_str());
        let base = c.name.split('~').next().unwrap();
        let twin = by_name.get(format!("{base}/ok").as_str());
        assert!(
            twin.is_some_and(|t| t.expect == Expect::Accepted),
            "{}: {} has no good twin",
            c.place,
            c.name
        );
    }
    // `internal` is the verifier's own contradiction: no program is known that causes it.
    let missing: Vec<&str> =
        RejectKind::ALL.iter().map(|k| k.name()).filter(|k| *k != "internal" && !kinds.contains(k)).collect();
    assert_eq!(missing, Vec::<&str>::new());
    assert!(cases.len() >= 90, "{}", cases.len());
}

/// Runs a program on a context and maps made of `seed`, for at most `steps`; `hook` may refuse a step.
fn run(
    program: &Program,
    env: &Env,
    (seed, steps): (u64, u64),
    mut hook: impl FnMut(Pc, &[u64; 11], &Memory) -> Result<(), String>,
) -> Result<(), String> {
    let mut numbers = Random::new(seed);
    let ctx = random_context(env.ctx.size(), &mut numbers);
    let mut helper = Random::new(numbers.bits());
    let mut interp = Interp::new(program, ctx).budget(steps).helpers(move |id, args, _| {
        let any = helper.edge();
        Some(match id {
            // Lengths, or an error.
            45 | 114 | 115 if any & 7 != 0 => any.min(args[1]),
            67 if any & 7 != 0 => any.min(args[2]),
            45 | 67 | 114 | 115 => -14i64 as u64,
            _ => any,
        })
    });
    for map in interp.memory_mut().maps_mut().iter_mut().filter(|m| m.decl().kind != MapKind::Global) {
        let value = vec![numbers.bits() as u8; map.decl().value_size as usize];
        let _ = map.update(&vec![0; map.decl().key_size as usize], &value, 0);
    }
    let mut wrong = None;
    let end = interp.run_hooked(|pc, regs, memory| {
        if wrong.is_none() {
            wrong = hook(pc, regs, memory).err();
        }
    });
    match wrong {
        Some(w) => Err(w),
        None => end.map(|_| ()).map_err(|fault| fault.to_string()),
    }
}

#[test]
fn accepted_cases_run_inside_what_was_proved() {
    let mut runs = 0;
    for c in corpus().iter().filter(|c| c.expect == Expect::Accepted) {
        let program = assemble(&c.code, &c.maps).unwrap();
        let (v, proved) = Verifier::new(Arc::new(c.env.clone())).verify_traced(program).unwrap();
        // A run takes no more steps than were proved; long ones are cut short.
        let (most, limit) = (v.stats().max_insns, v.stats().max_insns.min(2_500_000));
        let rounds = if most > 20_000 { 1 } else { 24 };
        for seed in 0..rounds {
            let mut trace = proved.trace();
            let step = |pc: Pc, regs: &_, memory: &_| match limit {
                0..=20_000 => trace.admit(&v, pc, regs, memory),
                _ => Ok(()),
            };
            let end = run(v.program(), &c.env, (seed, limit), step);
            let cut = most > limit && end.as_ref().is_err_and(|e| e.contains("budget"));
            assert!(end.is_ok() || cut, "{} {} seed {seed}: {end:?}", c.place, c.name);
            runs += 1;
        }
    }
    assert!(runs > 2000, "{runs}");
}

/// The refused programs of `cve.case` are not refused for nothing: most break when run all the same. The rest leak a
/// pointer, read what was never written, rely on the layout of memory or on what a helper writes (the ones here write nothing): the
/// interpreter has no eyes for that.
#[test]
fn refused_cves_break_when_they_are_run_all_the_same() {
    let cases = corpus();
    let refused =
        cases.iter().filter(|c| c.place.starts_with("cve.case") && matches!(c.expect, Expect::Reject(..)));
    let (broken, whole): (Vec<&Case>, Vec<&Case>) = refused.partition(|c| {
        let program = assemble(&c.code, &c.maps).unwrap();
        (0..500).any(|seed| run(&program, &c.env, (seed, 200_000), |_, _, _| Ok(())).is_err())
    });
    println!("whole: {:?}", whole.iter().map(|c| &c.name).collect::<Vec<_>>());
    assert!(broken.len() >= 30, "{} break", broken.len());
    let unseen =
        ["pointer-leak", "uninit-stack", "misaligned", "ctx-write", "pointer-arith", "read-only-map"];
    for c in whole {
        let Expect::Reject(kind, _) = &c.expect else { continue };
        assert!(unseen.contains(&kind.as_str()), "{} {}: {kind} does no harm", c.place, c.name);
    }
}

/// What a person reads: one line that names place, register, what was found and what was needed, and a hint.
#[test]
fn refusals_explain_themselves() {
    let text = "r2 = *(u64 *)(r1 + 0)\nr3 = r10\nr3 += -8\nif r2 > 512 goto +2\nr3 -= r2\n*(u8 *)(r3 + 0) = 1\nr0 = 0\nexit";
    let program = assemble(text, &[]).unwrap();
    let r = Verifier::new(Arc::new(Env::generic(64))).verify(program).unwrap_err();
    assert_eq!(
        r.to_string(),
        "reject[stack-oob] main@5: 1-byte write at r3+0: offset [-520, -8] from r10, must be in [-512, -1]"
    );
    assert_eq!(r.reg().map(|r| r.index()), Some(3));
    assert!(r.hint().unwrap().contains("bound the index"));
    assert_eq!(r.stats().insns, 6);
}
