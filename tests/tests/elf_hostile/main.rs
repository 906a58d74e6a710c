//! The ELF loader on bytes that mean ill, or that no C compiler writes: each yields an object or an error of
//! the right kind, soon, and never a panic.

mod forge;

use forge::{Elf, FUNC, LOCAL_FUNC, NOBITS, NOTYPE, OBJECT, RELA, Types, call, exit, lddw, slot};
use ringfence_translator::isa::{Imm64, Insn, MapIdx, Pc};
use ringfence_translator::{At, Error, ErrorKind, MapKind, Object, Stage};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Far above what any case takes in a debug build on a busy machine, far below what quadratic work would.
const SOON: Duration = Duration::from_secs(5);

/// Parses and links every program; the first error, if any.
fn load_all(bytes: &[u8]) -> Result<usize, Error> {
    let object = Object::parse(bytes)?;
    object.programs().try_fold(0, |n, p| object.program(p.name()).map(|_| n + 1))
}

fn error(elf: Elf) -> (Stage, ErrorKind, String) {
    let error = load_all(&elf.build()).expect_err("must be refused");
    (error.stage(), error.kind(), error.to_string())
}

#[test]
fn relocations_that_make_no_sense() {
    let wide = |src, imm| [lddw(src, imm).to_vec(), vec![exit()]].concat();
    let one = |slots: Vec<[u8; 8]>, at: u64, kind: u32| {
        let mut elf = Elf::new();
        let section = elf.program("tuner", &slots);
        let data = elf.data(".rodata", vec![0; 16]);
        let table = elf.symbol("table", OBJECT, data, 8, 8);
        elf.relocs(section, &[(at, kind, table)]);
        error(elf)
    };
    let nop = slot(0xb7, 0, 0, 0);
    let cases = [
        (
            "unknown type on lddw",
            one(wide(0, 0), 0, 2),
            ErrorKind::Unsupported,
            "tuner+0x0: in tuner: relocation type 2 against table",
        ),
        (
            "unknown type on call",
            one(vec![nop, call(1, -1), exit()], 8, 77),
            ErrorKind::Unsupported,
            "tuner+0x8: in tuner: relocation type 77",
        ),
        ("load relocation on alu", one(vec![nop, exit()], 0, 1), ErrorKind::Unsupported, "opcode 0xb7"),
        (
            "call relocation on helper",
            one(vec![call(0, 1), exit()], 0, 10),
            ErrorKind::Unsupported,
            "opcode 0x85",
        ),
        ("inside an instruction", one(wide(0, 0), 8, 1), ErrorKind::Malformed, "not at the start"),
        (
            "call of data",
            one(vec![call(1, -1), exit()], 0, 10),
            ErrorKind::BadJump,
            "call of table, which is no function",
        ),
        (
            "before the section",
            one(wide(0, -9), 0, 1),
            ErrorKind::Malformed,
            "outside of section .rodata, -9 from table",
        ),
        (
            "after the section",
            one(wide(0, 9), 0, 1),
            ErrorKind::Malformed,
            "outside of section .rodata, 9 from table",
        ),
    ];
    for (name, (stage, kind, text), wanted, word) in cases {
        assert_eq!((stage, kind), (Stage::Link, wanted), "{name}: {text}");
        assert!(text.contains(word), "{name}: {text}");
    }
    let (stage, kind, text) = one(vec![exit()], 8, 1);
    assert_eq!((stage, kind), (Stage::Elf, ErrorKind::Malformed), "{text}");
}

#[test]
fn code_that_makes_no_sense() {
    let one = |slots: &[[u8; 8]]| {
        let mut elf = Elf::new();
        elf.program("tuner", slots);
        error(elf)
    };
    let [wide, tail] = lddw(1, 3);
    let cases = [
        ("pseudo load", one(&[wide, tail, exit()]), ErrorKind::Malformed, "no relocation names"),
        ("half a load", one(&[exit(), lddw(0, 3)[0]]), ErrorKind::Malformed, "ends inside"),
        (
            "call into the middle",
            one(&[call(1, 0), exit()]),
            ErrorKind::BadJump,
            "no function starts at tuner+0x8",
        ),
        ("call to before the section", one(&[call(1, -7), exit()]), ErrorKind::BadJump, "before the section"),
    ];
    for (name, (stage, kind, text), wanted, word) in cases {
        assert_eq!((stage, kind), (Stage::Link, wanted), "{name}: {text}");
        assert!(text.contains(word), "{name}: {text}");
    }
    let symbol = |value, size| {
        let mut elf = Elf::new();
        let section = elf.code("tuner", &[exit(), exit()]);
        elf.symbol("tuner", FUNC, section, value, size);
        error(elf)
    };
    for (value, size) in [(4, 8), (0, 12), (0, 24), (16, 0), (8, u64::MAX - 7)] {
        let (stage, kind, text) = symbol(value, size);
        assert_eq!((stage, kind), (Stage::Elf, ErrorKind::Malformed), "{value} {size}: {text}");
    }
}

#[test]
fn relocations_with_addends_are_refused() {
    let mut elf = Elf::new();
    let section = elf.program("tuner", &[exit()]);
    let rela = elf.section(".rela", RELA, 0, vec![0; 24]);
    elf.sections[usize::from(rela) - 1].info = section.into();
    let (stage, kind, text) = error(elf);
    assert_eq!((stage, kind), (Stage::Elf, ErrorKind::Unsupported), "{text}");
}

#[test]
fn assembly_without_symbol_types_links() {
    let mut elf = Elf::new();
    let section = elf.code("tuner", &[call(1, -1), exit(), exit()]);
    elf.symbol("entry", NOTYPE, section, 0, 0);
    let helper = elf.symbol("helper", NOTYPE, section, 16, 0);
    elf.relocs(section, &[(0, 10, helper)]);
    let object = Object::parse(&elf.build()).expect("parses");
    let entry = object.program("entry").expect("links");
    assert_eq!(entry.insn(Pc(0)), Some(&Insn::CallLocal { target: Pc(2) }));
    assert_eq!(entry.len(), 3);
}

/// A hash of 256 entries as Rust writes it, behind `wrappers` newtypes with a marker each.
fn rust_map(types: &mut Types, wrappers: usize) -> u32 {
    let (key, value) = (types.int("u32", 4), types.int("u64", 8));
    let marker = types.structure("PhantomData<(u32, u64)>", 0, &[]);
    let members = [
        ("type", types.number(1)),
        ("key", types.ptr(key)),
        ("value", types.ptr(value)),
        ("max_entries", types.number(256)),
    ];
    let mut map = types.structure("BtfMap<u32, u64, 1, 256>", 32, &members);
    for _ in 0..wrappers {
        map = types.structure("UnsafeCell<BtfMap<u32, u64, 1, 256>>", 32, &[("value", map), ("_m", marker)]);
    }
    map
}

/// A program that loads the address of the map `M`, which has that type.
fn map_user(types: &Types) -> Elf {
    let mut elf = Elf::new();
    let [wide, tail] = lddw(0, 0);
    let section = elf.program("tuner", &[wide, tail, exit()]);
    let maps = elf.data(".maps", vec![0; 32]);
    elf.data(".BTF", types.build());
    let map = elf.symbol("M", OBJECT, maps, 0, 32);
    elf.relocs(section, &[(0, 1, map)]);
    elf
}

#[test]
fn rust_map_types_are_accepted_behind_wrappers_and_among_all_kinds() {
    for wrappers in [0, 1, 7] {
        let mut types = Types::new();
        // One record of every kind, so that a wrong length of any would lose what follows.
        for (kind, tail) in [
            (1, 1),
            (2, 0),
            (3, 3),
            (4, 3),
            (5, 3),
            (6, 2),
            (7, 0),
            (8, 0),
            (9, 0),
            (10, 0),
            (11, 0),
            (12, 0),
            (13, 2),
            (14, 1),
            (15, 3),
            (16, 0),
            (17, 1),
            (18, 0),
            (19, 3),
        ] {
            let vlen = u32::from(matches!(kind, 4 | 5 | 6 | 13 | 15 | 19));
            types.add("filler", kind, vlen, 0, &vec![0; tail]);
        }
        let map = rust_map(&mut types, wrappers);
        types.maps(&[("M", map)]);
        let object = Object::parse(&map_user(&types).build()).expect("parses");
        let program = object.program("tuner").expect("links");
        let [map] = program.maps() else { panic!("one map") };
        assert_eq!((map.kind, map.key_size, map.value_size, map.max_entries), (MapKind::Hash, 4, 8, 256));
        assert_eq!(map.name, "M");
        let load = program.insn(Pc(0));
        assert!(matches!(load, Some(Insn::LoadImm64 { imm: Imm64::Map(MapIdx(0)), .. })), "{load:?}");
    }
}

#[test]
fn types_that_never_end_are_refused() {
    let lost = |what: &str, build: fn(&mut Types) -> u32| {
        let mut types = Types::new();
        let map = build(&mut types);
        types.maps(&[("M", map)]);
        let error = load_all(&map_user(&types).build()).expect_err(what);
        assert_eq!((error.stage(), error.kind()), (Stage::Map, ErrorKind::BadMap), "{what}: {error}");
        assert_eq!(error.at(), &At::Map("M".into()), "{what}");
    };
    lost("typedef of itself", |t| t.add("loop", 8, 0, 1, &[]));
    lost("wrapper of itself", |t| t.structure("W", 8, &[("value", 1)]));
    lost("too many wrappers", |t| rust_map(t, 9));
    lost("no such type", |_| 99);
    lost("more members than a map has", |t| {
        let number = t.number(1);
        t.structure("big", 8, &[("pinning", number); 33])
    });
    lost("value of endless arrays", |t| {
        // Array 1 has itself as element.
        let array = t.add("", 3, 0, 0, &[1, 0, 1]);
        let members = [
            ("type", t.number(2)),
            ("max_entries", t.number(1)),
            ("key", t.ptr(array)),
            ("value", t.ptr(array)),
        ];
        t.structure("m", 32, &members)
    });
    lost("value whose size overflows", |t| {
        let int = t.int("u64", 8);
        let inner = t.add("", 3, 0, 0, &[int, 0, u32::MAX]);
        let outer = t.add("", 3, 0, 0, &[inner, 0, u32::MAX]);
        let members = [
            ("type", t.number(1)),
            ("max_entries", t.number(1)),
            ("key", t.ptr(int)),
            ("value", t.ptr(outer)),
        ];
        t.structure("m", 32, &members)
    });
}

#[test]
fn btf_that_is_cut_or_unknown_is_refused() {
    let mut types = Types::new();
    let map = rust_map(&mut types, 1);
    types.maps(&[("M", map)]);
    let whole = types.build();
    let load = |btf: Vec<u8>| {
        let mut elf = Elf::new();
        elf.program("tuner", &[exit()]);
        elf.data(".BTF", btf);
        load_all(&elf.build())
    };
    assert_eq!(load(whole.clone()).expect("whole"), 1);
    for len in 0..whole.len() {
        let error = load(whole[..len].to_vec()).expect_err("cut");
        assert_eq!((error.stage(), error.kind()), (Stage::Btf, ErrorKind::Malformed), "{len}: {error}");
    }
    types.add("future", 20, 0, 0, &[]);
    let error = load(types.build()).expect_err("kind 20");
    assert_eq!((error.stage(), error.kind()), (Stage::Btf, ErrorKind::Unsupported), "{error}");
}

#[test]
fn limits_on_maps_slots_and_data() {
    let many_maps = |count: usize, name: fn(usize) -> String| {
        let mut elf = Elf::new();
        let [wide, tail] = lddw(0, 0);
        let slots: Vec<_> = (0..count).flat_map(|_| [wide, tail]).chain([exit()]).collect();
        let section = elf.program("tuner", &slots);
        let def: Vec<u8> = [2_u32, 4, 8, 1, 0].iter().flat_map(|w| w.to_le_bytes()).collect();
        let maps = elf.data("maps", def.repeat(count));
        let relocs: Vec<_> = (0..count)
            .map(|i| (i as u64 * 16, 1, elf.symbol(&name(i), OBJECT, maps, i as u64 * 20, 20)))
            .collect();
        elf.relocs(section, &relocs);
        elf
    };
    assert_eq!(load_all(&many_maps(64, |i| format!("m{i}")).build()).expect("64 maps"), 1);
    let (_, kind, text) = error(many_maps(65, |i| format!("m{i}")));
    assert_eq!(kind, ErrorKind::TooLarge, "{text}");
    let (_, kind, text) = error(many_maps(2, |_| "same".into()));
    assert_eq!(kind, ErrorKind::BadMap, "{text}");

    let bss = |size: u64| {
        let mut elf = Elf::new();
        let [wide, tail] = lddw(0, 0);
        let section = elf.program("tuner", &[wide, tail, exit()]);
        let data = elf.section(".bss", NOBITS, 3, Vec::new());
        elf.sections[usize::from(data) - 1].size = Some(size);
        let var = elf.symbol("var", OBJECT, data, 0, 8);
        elf.relocs(section, &[(0, 1, var)]);
        elf
    };
    assert_eq!(load_all(&bss(1 << 20).build()).expect("a MiB"), 1);
    for size in [(1 << 20) + 1, u64::MAX] {
        let (stage, kind, text) = error(bss(size));
        assert_eq!((stage, kind), (Stage::Map, ErrorKind::TooLarge), "{text}");
    }
    let mut elf = Elf::new();
    elf.program("tuner", &vec![exit(); (1 << 20) + 1]);
    let (stage, kind, text) = error(elf);
    assert_eq!((stage, kind), (Stage::Link, ErrorKind::TooLarge), "{text}");
}

#[test]
fn long_call_chains_link_without_recursion() {
    const LEN: usize = 100_000;
    let mut elf = Elf::new();
    let slots: Vec<_> =
        (0..LEN).flat_map(|i| [if i + 1 < LEN { call(1, 1) } else { exit() }, exit()]).collect();
    let section = elf.code("tuner", &slots);
    elf.symbol("f0", FUNC, section, 0, 16);
    for i in 1..LEN {
        elf.symbol(&format!("f{i}"), LOCAL_FUNC, section, i as u64 * 16, 16);
    }
    let start = Instant::now();
    let object = Object::parse(&elf.build()).expect("parses");
    let program = object.program("f0").expect("links");
    assert_eq!((program.funcs().len(), program.len()), (LEN, 2 * LEN));
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
}

#[test]
fn overlapping_tables_cost_no_quadratic_time() {
    let start = Instant::now();
    // A thousand relocation sections over the same eight megabytes.
    let mut elf = Elf::new();
    let section = elf.program("tuner", &vec![exit(); 1 << 20]);
    for _ in 0..1000 {
        let rel = elf.relocs(section, &[]);
        let rel = &mut elf.sections[usize::from(rel) - 1];
        (rel.offset, rel.size) = (Some(64), Some(8 << 20));
    }
    let (stage, kind, text) = error(elf);
    assert_eq!((stage, kind), (Stage::Elf, ErrorKind::Malformed), "{text}");
    // A hundred thousand functions whose names are all the same eight megabytes without an end.
    let mut elf = Elf::new();
    let section = elf.code("tuner", &vec![exit(); 100_000]);
    for i in 0..100_000 {
        elf.symbols.push(forge::Symbol { name: 1, info: FUNC, section, value: i * 8, size: 8 });
    }
    let name = elf.strings.len();
    elf.strings.resize(name + (8 << 20), b'x');
    let object = Object::parse(&elf.build()).expect("parses");
    assert_eq!(object.programs().filter(|p| p.name().is_empty()).count(), 100_000);
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
}

/// Every object in `tests/elf`.
fn fixtures() -> Vec<(String, Vec<u8>)> {
    let dir = format!("{}/../tests/elf", env!("CARGO_MANIFEST_DIR"));
    let paths = std::fs::read_dir(dir).expect("tests/elf").map(|entry| entry.expect("entry").path());
    let objects = paths.filter(|path| path.to_string_lossy().ends_with(".bpf.o"));
    objects.map(|path| (path.display().to_string(), std::fs::read(&path).expect("object"))).collect()
}

/// SplitMix64: the same mutations in every run.
struct Random(u64);

impl Random {
    fn next(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) % below as u64) as usize
    }
}

/// Up to eight changes of a byte, or of an aligned word to a number that tables dislike; a cut now and then.
fn mutate(random: &mut Random, bytes: &mut Vec<u8>) {
    const WORDS: [u32; 8] = [0, 1, 7, 0x7fff_ffff, 0x8000_0000, 0xffff_fff8, u32::MAX, 0x10_0000];
    for _ in 0..=random.next(8) {
        let at = random.next(bytes.len());
        if random.next(2) == 0 {
            bytes[at] ^= 1 << random.next(8);
        } else if let Some(word) = bytes.get_mut(at & !3..(at & !3) + 4) {
            word.copy_from_slice(&WORDS[random.next(WORDS.len())].to_le_bytes());
        }
    }
    if random.next(16) == 0 {
        bytes.truncate(random.next(bytes.len()));
    }
}

#[test]
fn mutated_objects_never_panic_and_end_soon() {
    let mut random = Random(0x7269_6e67);
    let mut outcomes: BTreeMap<String, usize> = BTreeMap::new();
    for (name, good) in fixtures() {
        for round in 0..600 {
            let mut bytes = good.clone();
            mutate(&mut random, &mut bytes);
            let start = Instant::now();
            let outcome =
                load_all(&bytes).map_or_else(|e| format!("{:?} {:?}", e.stage(), e.kind()), |_| "ok".into());
            assert!(start.elapsed() < SOON, "{name}, round {round}: {:?}", start.elapsed());
            *outcomes.entry(outcome).or_default() += 1;
        }
    }
    // The mutations reach every stage, and do not always destroy the object.
    for wanted in ["ok", "Elf Malformed", "Btf Malformed", "Map BadMap", "Link Unsupported", "Link Malformed"]
    {
        assert!(outcomes.get(wanted).is_some_and(|n| *n >= 3), "{wanted}: {outcomes:?}");
    }
}

#[test]
fn each_byte_changed_and_each_cut_is_an_object_or_an_error() {
    for (name, good) in fixtures() {
        for len in 0..good.len() {
            let error = Object::parse(&good[..len]).expect_err("cut");
            assert!(
                matches!(error.kind(), ErrorKind::NotEbpf | ErrorKind::Malformed | ErrorKind::BigEndian),
                "{name} {len}: {error}"
            );
        }
        for at in 0..good.len() {
            for change in [0x01, 0x80, 0xff] {
                let mut bytes = good.clone();
                bytes[at] ^= change;
                // One outcome or the other; a panic fails the test.
                let _ = load_all(&bytes);
            }
        }
    }
}
