//! Mutation test of the certificate: spoilt in any part so that it claims more than is true, [`check`](super::check) must find
//! a gap.
//!
//! [`spoil`](spoil) lists the corruptions of every kept state (each register, spill, byte and link, each ghost) and of
//! the certificate's own parts (ranks, arrivals, invariants, places). Which of them change the meaning is decided without the
//! verifier's inclusion: [`judge`](judge) walks the certificate, makes concrete states ([`concrete`](concrete)) of every
//! abstract one that comes to a kept state, and looks whether they lie in it; of laps it asks whether the concrete counter
//! moves. Where it finds a witness against a certificate, the check must refuse it: all of them, not most. What merely
//! loosens may pass.
//!
//! The programs are the accepted cases of `tests/corpus/verify`, and [`DENSE`], whose kept states hold what is rare there: links,
//! perhaps-null pointers, ghosts inside nested loops. `RINGFENCE_MUTANTS=1` tries every mutant of every node.

use super::Machine;
use super::check::check;
use super::env::Env;
use super::explore::{Certificate, explore};
use crate::isa::asm::assemble;
use crate::map::{MapDecl, MapKind};
use crate::program::Program;
use std::collections::BTreeMap;
use std::path::Path;

mod concrete;
mod judge;
mod spoil;

/// Programs with much to spoil at their heads, as cases.
const DENSE: &str = "
case nested-loops-with-branches
code
  r2 = 0
outer:
  r3 = 0
inner:
  r4 = *(u8 *)(r1 + 0)
  r5 = 0
  if r4 == 7 goto skip
  r5 = 1
skip:
  r3 += 1
  if r3 < 1000 goto inner
  r2 += 1
  if r2 < 1000 goto outer
  r0 = r5
  exit
expect accepted

case counts-down-on-the-stack
code
  r2 = *(u32 *)(r1 + 0)
  if r2 > 100000 goto end
  *(u64 *)(r10 - 8) = r2
again:
  r3 = *(u64 *)(r10 - 8)
  if r3 == 0 goto end
  r4 = *(u8 *)(r1 + 4)
  if r4 > 9 goto more
  r4 = 3
more:
  r3 -= 1
  *(u64 *)(r10 - 8) = r3
  goto again
end:
  r0 = 0
  exit
expect accepted

case linked-at-a-join
map g global 4 64 1
code
  r2 = *(u32 *)(r1 + 0)
  r3 = r2
  r3 += 8
  *(u64 *)(r10 - 8) = r2
  r4 = *(u64 *)(r1 + 8)
  if r4 == 0 goto join
  r4 = 1
join:
  r5 = map[g][0] + 0 ll
  if r3 > 64 goto end
  r6 = *(u64 *)(r10 - 8)
  r5 += r6
  r0 = *(u64 *)(r5 + 0)
  r5 = map[g][0] + 0 ll
  r5 += r2
  r0 = *(u64 *)(r5 + 0)
end:
  r0 = r4
  exit
expect accepted

case copies-of-what-may-be-null
map m array 4 64 4
map n hash 4 16 4
code
  r6 = *(u64 *)(r1 + 0)
  *(u32 *)(r10 - 4) = 0
  r2 = r10
  r2 += -4
  r1 = map[m] ll
  call map_lookup_elem
  r7 = r0
  *(u64 *)(r10 - 16) = r0
  r2 = r10
  r2 += -4
  r1 = map[n] ll
  call map_lookup_elem
  r8 = r0
  if r6 == 0 goto join
  r6 = 8
join:
  if r7 == 0 goto end
  r1 = *(u64 *)(r10 - 16)
  r0 = *(u64 *)(r1 + 56)
  if r8 == 0 goto end
  if r6 == 9 goto end
  r0 = *(u64 *)(r8 + 8)
  r0 = *(u64 *)(r7 + 56)
end:
  r0 = r6
  exit
expect accepted

case a-callee-works-on-its-caller-s-frame
map g global 4 64 1
code
  r6 = *(u32 *)(r1 + 0)
  r7 = r6
  *(u64 *)(r10 - 8) = 0
  *(u64 *)(r10 - 16) = r1
  r2 = r10
  r2 += -8
  call fn sum
  r1 = *(u64 *)(r10 - 16)
  r3 = *(u64 *)(r1 + 8)
  if r6 > 56 goto end
  r4 = map[g][0] + 0 ll
  r4 += r7
  *(u64 *)(r4 + 0) = r3
end:
  r0 = *(u64 *)(r10 - 8)
  exit
fn sum:
  r3 = 0
  *(u64 *)(r10 - 24) = r2
next:
  r4 = r1
  r4 += r3
  r4 = *(u8 *)(r4 + 0)
  if r4 == 0 goto done
  r5 = *(u64 *)(r10 - 24)
  r0 = *(u64 *)(r5 + 0)
  r0 += r4
  *(u64 *)(r5 + 0) = r0
  r3 += 1
  if r3 < 64 goto next
done:
  r0 = 0
  exit
expect accepted

case two-pointers-into-one-value
map m hash 4 64 4
code
  r6 = *(u64 *)(r1 + 0)
  *(u32 *)(r10 - 4) = 0
  r2 = r10
  r2 += -4
  r1 = map[m] ll
  call map_lookup_elem
  if r0 == 0 goto end
  r7 = r0
  r8 = r0
  r8 += 64
  r6 &= 31
  r7 += r6
walk:
  if r7 >= r8 goto end
  r1 = *(u8 *)(r7 + 0)
  r7 += 1
  if r1 != 0 goto walk
end:
  r0 = 0
  exit
expect accepted
";

/// A small deterministic generator (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 11) % n.max(1)
    }
}

/// An accepted program of the corpus.
struct Sample {
    name: String,
    env: Env,
    program: Program,
}

fn map_of(words: &[&str]) -> Option<MapDecl> {
    let kind = MapKind::ALL.into_iter().find(|k| words.get(1) == Some(&k.name()))?;
    let number = |i: usize| words.get(i)?.parse::<u32>().ok();
    let (key_size, value_size, max_entries) = (number(2)?, number(3)?, number(4)?);
    let init = if kind == MapKind::Global { vec![0; value_size as usize] } else { Vec::new() };
    let read_only = words.contains(&"ro");
    let spin_lock = words.iter().position(|w| *w == "lock").and_then(|i| number(i + 1));
    let name = words[0].to_owned();
    Some(MapDecl {
        name,
        kind,
        key_size,
        value_size,
        max_entries,
        read_only,
        init,
        spin_lock,
        ..MapDecl::default()
    })
}

/// One case, if it is of the plain kind: the generic environment, maps that we know, accepted.
fn sample(text: &str) -> Option<Sample> {
    let (head, rest) = text.split_once("\ncode\n")?;
    let (code, verdict) = rest.split_once("\nexpect ")?;
    if !verdict.starts_with("accepted") {
        return None;
    }
    let (mut env, mut maps) = (Env::generic(64), Vec::new());
    let mut lines = head.lines();
    let name = lines.next()?.trim().to_owned();
    for line in lines.filter(|l| !l.is_empty() && !l.starts_with('#')) {
        match line.split_whitespace().collect::<Vec<_>>().as_slice() {
            ["env", "generic", n] => env = Env::generic(n.parse().ok()?),
            ["env", "kernel", n] => {
                env = Env { helpers: Env::kernel_like_helpers(), ..Env::generic(n.parse().ok()?) };
            }
            ["budget", _] => {}
            ["map", words @ ..] if !words.contains(&"=") => maps.push(map_of(words)?),
            _ => return None,
        }
    }
    Some(Sample { name, env, program: assemble(code, &maps).ok()? })
}

fn samples() -> Vec<Sample> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/corpus/verify");
    let mut files: Vec<_> = std::fs::read_dir(dir).expect("the corpus").map(|e| e.unwrap().path()).collect();
    files.sort();
    let texts = files.iter().map(|f| std::fs::read_to_string(f).expect("a case file"));
    let texts = texts.chain([DENSE.to_owned()]);
    texts.flat_map(|t| t.split("\ncase ").skip(1).filter_map(sample).collect::<Vec<_>>()).collect()
}

/// What became of the mutants of one kind.
#[derive(Clone, Copy, Default)]
struct Tally {
    /// A witness shows that more is claimed than is true; of these none may pass.
    witnessed: u32,
    /// No witness, but a gap was found.
    caught: u32,
    /// No witness and no gap: what is claimed is less, or still true.
    passed: u32,
}

struct Bench {
    tallies: BTreeMap<&'static str, Tally>,
    survivors: Vec<String>,
    every: u64,
}

impl Bench {
    fn run(&mut self, s: &Sample, r: &mut Random) {
        let m = Machine::new(&s.program, &s.env);
        let mut cert = explore(&m).unwrap_or_else(|e| panic!("{}: {e}", s.name));
        if cert.visited > 5000 {
            return;
        }
        assert!(check(&m, &cert, |_, _| {}).is_ok(), "{}", s.name);
        assert_eq!(judge::witness(&m, &cert, r), None, "{}: the judge is wrong", s.name);
        for node in 0..cert.nodes.len() {
            for spoilt in spoil::spoils(&cert, node) {
                if r.below(self.every) == 0 {
                    self.try_one(&m, &mut cert, node, spoilt, s, r);
                }
            }
        }
    }

    fn try_one(
        &mut self,
        m: &Machine<'_>,
        cert: &mut Certificate,
        node: usize,
        spoilt: spoil::Spoilt,
        s: &Sample,
        r: &mut Random,
    ) {
        let spoil::Spoilt { kind, change } = spoilt;
        let undo = change.apply(cert);
        let gap = check(m, cert, |_, _| {}).err();
        let witness = judge::witness(m, cert, r);
        let t = self.tallies.entry(kind).or_default();
        match (&witness, &gap) {
            (Some(w), None) => {
                let state = &cert.nodes[node].state;
                self.survivors.push(format!("{} node {node}, {kind}: {w}\n{state:?}", s.name));
            }
            (Some(_), Some(_)) => t.witnessed += 1,
            (None, Some(_)) => t.caught += 1,
            (None, None) => t.passed += 1,
        }
        undo.apply(cert);
    }
}

#[test]
fn a_certificate_that_claims_too_much_is_refused() {
    let every = std::env::var("RINGFENCE_MUTANTS").ok().and_then(|s| s.parse().ok()).unwrap_or(40);
    let mut bench = Bench { tallies: BTreeMap::new(), survivors: Vec::new(), every };
    let samples = samples();
    assert!(samples.len() > 150, "{} programs", samples.len());
    let mut r = Random(0x5eed_cafe);
    samples.iter().for_each(|s| bench.run(s, &mut r));
    let mut all = Tally::default();
    println!("{:<28} witnessed  caught  passed", "corruption");
    for (kind, t) in &bench.tallies {
        println!("{kind:<28} {:>9} {:>7} {:>7}", t.witnessed, t.caught, t.passed);
        all.witnessed += t.witnessed;
        all.caught += t.caught;
        all.passed += t.passed;
    }
    println!("{:<28} {:>9} {:>7} {:>7}", "all", all.witnessed, all.caught, all.passed);
    assert!(
        bench.survivors.is_empty(),
        "{} survive:\n{}",
        bench.survivors.len(),
        bench.survivors[..1].join("\n")
    );
    assert!(all.witnessed > 20_000 / every as u32, "{}", all.witnessed);
    for kind in spoil::ALWAYS_TOO_MUCH {
        let t = bench.tallies.get(kind).copied().unwrap_or_default();
        assert!(t.witnessed > 0 && t.passed == 0, "{kind}: {} witnessed, {} passed", t.witnessed, t.passed);
    }
}
