//! [`Program::append`]: a program that was cut into an entry and targets, each an object of its own, and is joined again behaves like the
//! same code in one object. Random programs, by the interpreter and by Wasm: what they return, what they leave in the context and in every
//! map. They call functions, loop with callbacks, count in a map that all share and in global data of their own, and tail-call each other
//! in circles.

use proptest::prelude::*;
use ringfence_host::maps::DEFAULT_MAP_BYTES;
use ringfence_host::{Engine, Instance, Limits, MapRegistry, MapSet, Owner, PolicyModule, ScopeRules};
use ringfence_translator::interp::Interp;
use ringfence_translator::isa::Pc;
use ringfence_translator::isa::asm::assemble;
use ringfence_translator::verify::Verifier;
use ringfence_translator::{Env, MapDecl, MapKind, Program, Translator};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of the context. Words 0 to 5 are for numbers, word 6 counts the programs that ran.
const CTX: u32 = 64;
const SLOTS: usize = 8;

/// A step of a program. Places are words of the context.
#[derive(Clone, Debug)]
enum Step {
    Add {
        from: u8,
        to: u8,
        n: u16,
    },
    /// Writes `n` where the word is greater than it.
    Clamp {
        at: u8,
        n: u16,
    },
    /// Adds to a word of the shared array, found by its address.
    Shared {
        n: u16,
    },
    /// The same by a look-up.
    LookUp {
        to: u8,
        n: u16,
    },
    /// Adds to a word of the program's own global data, and shows it.
    Own {
        to: u8,
        n: u16,
    },
    Call {
        to: u8,
        n: u16,
    },
    Loop {
        to: u8,
        laps: u8,
    },
}

/// A program: its steps, and how it chooses the slot to go on in: `(count * factor + start) % SLOTS`.
#[derive(Clone, Debug)]
struct Part {
    steps: Vec<Step>,
    factor: u8,
    start: u8,
    returns: u16,
}

/// Programs, the first being the entry, and which of them is in which slot.
#[derive(Clone, Debug)]
struct World {
    parts: Vec<Part>,
    slots: Vec<Option<usize>>,
    /// Does the part's own object put it into the first of its slots, rather than the manifest?
    own: Vec<bool>,
    /// In which order the objects declare their maps.
    turn: Vec<usize>,
    words: [u16; 6],
}

fn step() -> impl Strategy<Value = Step> {
    let (at, n) = (0u8..6, any::<u16>());
    prop_oneof![
        (at.clone(), at.clone(), n).prop_map(|(from, to, n)| Step::Add { from, to, n }),
        (at.clone(), n).prop_map(|(at, n)| Step::Clamp { at, n }),
        n.prop_map(|n| Step::Shared { n }),
        (at.clone(), n).prop_map(|(to, n)| Step::LookUp { to, n }),
        (at.clone(), n).prop_map(|(to, n)| Step::Own { to, n }),
        (at.clone(), n).prop_map(|(to, n)| Step::Call { to, n }),
        (at, 0u8..5).prop_map(|(to, laps)| Step::Loop { to, laps }),
    ]
}

fn part() -> impl Strategy<Value = Part> {
    let steps = prop::collection::vec(step(), 1..6);
    (steps, any::<u8>(), any::<u8>(), any::<u16>()).prop_map(|(steps, factor, start, returns)| Part {
        steps,
        factor,
        start,
        returns,
    })
}

fn world() -> impl Strategy<Value = World> {
    prop::collection::vec(part(), 1..5).prop_flat_map(|parts| {
        let n = parts.len();
        let slots = prop::collection::vec(prop::option::weighted(0.8, 0..n), SLOTS);
        let own = prop::collection::vec(any::<bool>(), n);
        let turn = prop::collection::vec(0usize..4, n);
        (Just(parts), slots, own, turn, any::<[u16; 6]>())
            .prop_map(|(parts, slots, own, turn, words)| World { parts, slots, own, turn, words })
    })
}

impl Step {
    /// `i` is the part's number, `data` the name of its global data.
    fn text(&self, i: usize, data: &str) -> String {
        match self {
            Step::Add { from, to, n } => {
                let (from, to) = (8 * from, 8 * to);
                format!("r7 = *(u64 *)(r6 + {from})\nr7 += {n}\n*(u64 *)(r6 + {to}) = r7\n")
            }
            Step::Clamp { at, n } => {
                let at = 8 * at;
                format!(
                    "r7 = *(u64 *)(r6 + {at})\nif r7 <= {n} goto +1\nr7 = {n}\n*(u64 *)(r6 + {at}) = r7\n"
                )
            }
            Step::Shared { n } => format!(
                "r7 = map[shared][0] + 8 ll\nr8 = *(u64 *)(r7 + 0)\nr8 += {n}\n*(u64 *)(r7 + 0) = r8\n"
            ),
            Step::LookUp { to, n } => {
                let to = 8 * to;
                format!(
                    "*(u32 *)(r10 - 4) = 1\nr1 = map[shared] ll\nr2 = r10\nr2 += -4\ncall map_lookup_elem\nif r0 == 0 goto +4\n\
                     r7 = *(u64 *)(r0 + 0)\nr7 += {n}\n*(u64 *)(r0 + 0) = r7\n*(u64 *)(r6 + {to}) = r7\n"
                )
            }
            Step::Own { to, n } => {
                let to = 8 * to;
                format!(
                    "r7 = map[{data}][0] + 8 ll\nr8 = *(u64 *)(r7 + 0)\nr8 += {n}\n*(u64 *)(r7 + 0) = r8\n*(u64 *)(r6 + {to}) = r8\n"
                )
            }
            Step::Call { to, n } => {
                let to = 8 * to;
                format!("r1 = {n}\ncall fn h{i}\n*(u64 *)(r6 + {to}) = r0\n")
            }
            Step::Loop { to, laps } => {
                let to = 8 * to;
                format!(
                    "*(u64 *)(r10 - 16) = {i}\nr1 = {laps}\nr2 = fn c{i} ll\nr3 = r10\nr3 += -16\nr4 = 0\ncall loop\n\
                     r7 = *(u64 *)(r10 - 16)\n*(u64 *)(r6 + {to}) = r7\n"
                )
            }
        }
    }
}

impl Part {
    fn text(&self, i: usize, data: &str) -> String {
        let (factor, start, returns) = (self.factor, self.start, self.returns);
        let steps: String = self.steps.iter().map(|s| s.text(i, data)).collect();
        format!(
            "fn f{i}:\nr6 = r1\n{steps}\
             r3 = *(u64 *)(r6 + 48)\nr7 = r3\nr7 += 1\n*(u64 *)(r6 + 48) = r7\nr3 *= {factor}\nr3 += {start}\nr3 &= 7\n\
             r1 = r6\nr2 = map[jump] ll\ncall tail_call\nr0 = {returns}\nexit\n\
             fn h{i}:\nr0 = map[{data}][0] + 0 ll\nr0 = *(u64 *)(r0 + 0)\nr0 += r1\nexit\n\
             fn c{i}:\nr3 = *(u64 *)(r2 + 0)\nr3 *= 3\nr3 += r1\n*(u64 *)(r2 + 0) = r3\nr0 = 0\nexit\n"
        )
    }
}

fn map(name: &str, kind: MapKind, value_size: u32, max_entries: u32) -> MapDecl {
    MapDecl { name: name.to_owned(), kind, key_size: 4, value_size, max_entries, ..MapDecl::default() }
}

/// Global data of part `i`: a number that tells whose it is, and a count.
fn data(name: &str, i: usize) -> MapDecl {
    let init = [[i as u8 + 100, 0, 0, 0, 0, 0, 0, 0], [0; 8]].concat();
    MapDecl { init, ..map(name, MapKind::Global, 16, 1) }
}

/// What all parts share.
fn shared() -> Vec<MapDecl> {
    vec![map("shared", MapKind::Array, 16, 2), map("jump", MapKind::ProgArray, 4, SLOTS as u32)]
}

fn program(text: &str, maps: &[MapDecl]) -> Program {
    assemble(text, maps).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

impl World {
    /// The data of part `i`, as it is called in the joined program.
    fn data_name(i: usize) -> String {
        if i == 0 { ".data".to_owned() } else { format!(".data@t{i}") }
    }

    /// All of it in one object.
    fn whole(&self) -> Program {
        let n = self.parts.len();
        let maps: Vec<MapDecl> =
            shared().into_iter().chain((0..n).map(|i| data(&World::data_name(i), i))).collect();
        // `@` is no name in text.
        let by_index = |i: usize| format!("#{}", 2 + i);
        let text: String = self.parts.iter().enumerate().map(|(i, p)| p.text(i, &by_index(i))).collect();
        let names: Vec<Option<String>> = self.slots.iter().map(|s| s.map(|i| format!("f{i}"))).collect();
        let names: Vec<Option<&str>> = names.iter().map(Option::as_deref).collect();
        program(&text, &maps).with_targets("jump", &names).unwrap()
    }

    /// Part `i` as an object, which may fill the first of its slots.
    fn object(&self, i: usize) -> Program {
        let mut maps = shared();
        maps.insert(self.turn[i] % 3, data(".data", i));
        if self.turn[i] == 3 {
            maps.reverse();
        }
        let alone = program(&self.parts[i].text(i, ".data"), &maps);
        match self.own_slot(i) {
            Some(slot) => {
                let name = format!("f{i}");
                let slots: Vec<Option<&str>> = (0..SLOTS).map(|s| (s == slot).then_some(&*name)).collect();
                alone.with_targets("jump", &slots).unwrap()
            }
            None => alone,
        }
    }

    fn own_slot(&self, i: usize) -> Option<usize> {
        self.slots.iter().position(|s| *s == Some(i)).filter(|_| self.own[i])
    }

    /// The parts as objects, joined. Some targets are met in no slot.
    fn joined(&self) -> Program {
        let mut program = self.object(0);
        let mut starts = BTreeMap::from([(0, Pc(0))]);
        for (slot, i) in self.slots.iter().enumerate().filter_map(|(slot, i)| Some((slot, (*i)?))) {
            let at = *starts
                .entry(i)
                .or_insert_with(|| program.append(&format!("t{i}"), &self.object(i)).unwrap());
            if self.own_slot(i) != Some(slot) {
                program.fill_slot("jump", slot as u32, at).unwrap();
            }
        }
        program
    }

    fn ctx(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.words.iter().flat_map(|w| u64::from(*w).to_le_bytes()).collect();
        bytes.resize(CTX as usize, 0);
        bytes
    }
}

/// What a run leaves: r0, context, and the values of maps by name.
#[derive(Debug, PartialEq, Eq)]
struct Left {
    r0: u64,
    ctx: Vec<u8>,
    maps: BTreeMap<String, Vec<u8>>,
}

/// Values of arrays; a program array has none.
fn keys(decl: &MapDecl) -> impl Iterator<Item = [u8; 4]> {
    let entries = if decl.kind == MapKind::ProgArray { 0 } else { decl.max_entries };
    (0..entries).map(u32::to_le_bytes)
}

/// The run in the interpreter, and the most tail calls that it can have made.
fn interpreted(world: &World, program: &Program) -> Left {
    let mut interp = Interp::new(program, world.ctx());
    let r0 = interp.run().unwrap_or_else(|e| panic!("{e}\n{}", program.disassemble()));
    let mut maps = BTreeMap::new();
    for of in interp.memory_mut().maps_mut() {
        let values = keys(of.decl()).flat_map(|key| of.value(&key).unwrap().to_vec()).collect();
        maps.insert(of.decl().name.clone(), values);
    }
    Left { r0, ctx: interp.memory().ctx().to_vec(), maps }
}

/// The run in wasmtime, on new maps, with no more fuel than is proved to be enough.
fn compiled(world: &World, program: &Program) -> Left {
    let verified = Verifier::new(Arc::new(Env::generic(CTX))).verify(program.clone());
    let verified = verified.unwrap_or_else(|e| panic!("{e}\n{}", program.disassemble()));
    let module = Translator::new().translate(&verified).unwrap();
    let engine = Engine::global().unwrap();
    let module = PolicyModule::compile(engine, module).unwrap();
    let owner = Owner { policy: "p".into(), communicator: 0 };
    let registry = MapRegistry::new(engine, DEFAULT_MAP_BYTES);
    let set: MapSet = registry.resolve(module.maps(), &ScopeRules::default(), &owner).unwrap();
    let mut instance = Instance::new(&module, &set, Limits { fuel: None }).unwrap();
    let mut ctx = world.ctx();
    let r0 = instance.run_generic(&mut ctx).unwrap_or_else(|e| panic!("{e}\n{}", program.disassemble()));
    let values =
        |m: &Arc<ringfence_host::Map>| keys(m.decl()).flat_map(|key| m.lookup(&key).unwrap()).collect();
    Left { r0, ctx, maps: set.iter().map(|m| (m.decl().name.clone(), values(m))).collect() }
}

/// Parts that no slot names are in the one object and not among the joined: their data is left as it was.
fn known_to(left: Left, joined: &Left) -> Left {
    let maps = left.maps.into_iter().filter(|(name, _)| joined.maps.contains_key(name)).collect();
    Left { maps, ..left }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn joined_again_it_behaves_like_one_object(world in world()) {
        let (whole, joined) = (world.whole(), world.joined());
        let left = interpreted(&world, &joined);
        prop_assert_eq!(&known_to(interpreted(&world, &whole), &left), &left, "\n{}", joined.disassemble());
        prop_assert_eq!(&compiled(&world, &joined), &left, "\n{}", joined.disassemble());
    }
}

/// The random programs are worth something: a run goes through all parts, to the last tail call that it may make.
#[test]
fn a_circle_through_all_parts_makes_33_calls_and_counts_each() {
    let part = |i: u16| Part {
        steps: vec![Step::Own { to: 0, n: 1 }, Step::Shared { n: 1 }],
        factor: 1,
        start: 0,
        returns: i,
    };
    let world = World {
        parts: (0..4).map(part).collect(),
        slots: (0..SLOTS).map(|slot| Some((slot + 1) % 4)).collect(),
        own: vec![true, false, true, false],
        turn: vec![0, 1, 2, 3],
        words: [0; 6],
    };
    let joined = world.joined();
    let left = interpreted(&world, &joined);
    assert_eq!(compiled(&world, &joined), left);
    let word = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[8 * at..8 * at + 8].try_into().unwrap());
    // 34 programs ran, in turn; the last could not go on.
    assert_eq!((word(&left.ctx, 6), left.r0), (34, 1));
    assert_eq!(word(&left.maps["shared"], 1), 34);
    let counts: Vec<(u64, u64)> =
        (0..4).map(|i| &left.maps[&World::data_name(i)]).map(|d| (word(d, 0), word(d, 1))).collect();
    assert_eq!(counts, [(100, 9), (101, 9), (102, 8), (103, 8)]);
}
