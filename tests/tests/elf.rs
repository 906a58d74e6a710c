//! The ELF loader on objects that clang made: maps, data, calls, lines and refusals, by value.
//! The objects and their sources are in `tests/elf`; `tests/elf/build.sh` rebuilds them.

use ringfence_translator::isa::{Imm64, Insn, MapIdx, Pc};
use ringfence_translator::{
    At, Error, ErrorKind, FieldDesc, MapDecl, MapKind, Object, Program, Stage, TypeDesc, TypeKind,
};

fn bytes(name: &str) -> Vec<u8> {
    let path = format!("{}/../tests/elf/{name}.bpf.o", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn object(name: &str) -> Object {
    Object::parse(&bytes(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn program(object: &Object, name: &str) -> Program {
    object.program(name).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn refusal(object: &Object, name: &str) -> Error {
    object.program(name).err().unwrap_or_else(|| panic!("{name} was linked"))
}

/// Section and offset of an error, as text.
fn place(error: &Error) -> String {
    match error.at() {
        At::Section { name, offset } => format!("{name}+{offset}"),
        At::Map(name) => format!("map {name}"),
        At::File => "file".to_owned(),
        other => format!("{other:?}"),
    }
}

fn decl(name: &str, kind: MapKind, sizes: [u32; 3], flags: u32) -> MapDecl {
    let [key_size, value_size, max_entries] = sizes;
    let read_only = flags & 1 << 7 != 0;
    MapDecl {
        name: name.into(),
        kind,
        key_size,
        value_size,
        max_entries,
        flags,
        read_only,
        ..MapDecl::default()
    }
}

/// The maps without what BTF says of their types.
fn shapes(program: &Program) -> Vec<MapDecl> {
    let bare = |m: &MapDecl| MapDecl { key_type: None, value_type: None, ..m.clone() };
    program.maps().iter().map(bare).collect()
}

fn global(name: &str, read_only: bool, init: Vec<u8>) -> MapDecl {
    let flags = if read_only { 1 << 7 } else { 0 };
    MapDecl { init: init.clone(), ..decl(name, MapKind::Global, [4, init.len() as u32, 1], flags) }
}

/// All wide loads that were relocated, by position.
fn loads(program: &Program) -> Vec<(u32, Imm64)> {
    let wide = |(pc, insn): (Pc, &Insn)| match insn {
        Insn::LoadImm64 { imm: Imm64::Value(_), .. } => None,
        Insn::LoadImm64 { imm, .. } => Some((pc.0, *imm)),
        _ => None,
    };
    program.iter().filter_map(wide).collect()
}

/// Calls of functions: position and name of the target, which must be the start of a function.
fn calls(program: &Program) -> Vec<(u32, &str)> {
    let call = |(pc, insn): (Pc, &Insn)| match insn {
        Insn::CallLocal { target } => {
            assert_eq!(program.func_at(*target).start, *target);
            Some((pc.0, program.func_at(*target).name.as_str()))
        }
        _ => None,
    };
    program.iter().filter_map(call).collect()
}

fn funcs(program: &Program) -> Vec<(&str, u32, u32)> {
    program.funcs().iter().map(|f| (f.name.as_str(), f.start.0, f.end.0)).collect()
}

fn map(index: u16) -> Imm64 {
    Imm64::Map(MapIdx(index))
}

fn value(index: u16, offset: u32) -> Imm64 {
    Imm64::MapValue { map: MapIdx(index), offset }
}

#[test]
fn programs_are_the_global_functions_outside_text() {
    let list = |name| {
        let object = object(name);
        object.programs().map(|p| format!("{} {}", p.hook(), p.name())).collect::<Vec<_>>()
    };
    assert_eq!(list("calls"), ["tuner first", "tuner second", "profiler third", "control callback"]);
    assert_eq!(list("cpu_v4"), ["tuner entry"]);
    let maps = object("maps");
    assert_eq!((maps.license(), maps.has_btf()), (Some("Dual MIT/GPL"), true));
    let plain = object("nodebug");
    assert_eq!((plain.license(), plain.has_btf()), (None, false));
    let error = refusal(&maps, "nobody");
    assert_eq!((error.stage(), error.kind()), (Stage::Link, ErrorKind::NotFound));
    assert!(error.message().contains("two, one, uses_lpm"), "{error}");
}

#[test]
fn btf_maps_have_the_declared_shapes_in_order_of_use() {
    let object = object("maps");
    let two = program(&object, "two");
    let hidden = decl("hidden", MapKind::Array, [4, 8, 1], 0);
    let by_type = decl("by_type", MapKind::Hash, [12, 40, 64], 0);
    assert_eq!(shapes(&two), [hidden, by_type]);
    assert_eq!(loads(&two), [(7, map(0)), (13, map(1))]);
    let one = program(&object, "one");
    assert_eq!(shapes(&one), [decl("by_size", MapKind::Array, [4, 24, 7], 128)]);
    assert!(one.maps()[0].read_only);
    assert_eq!(loads(&one), [(4, map(0))]);
}

#[test]
fn bad_maps_are_refused_where_they_are_used() {
    let object = object("maps");
    let names: Vec<_> = object.maps().map(|m| m.map_or_else(place, |m| m.name.clone())).collect();
    assert_eq!(
        names,
        ["hidden", "by_type", "by_size", "map lpm", "map wide_key", "map huge", "map torn", "map winged"]
    );
    for (map, kind, word) in [
        ("lpm", ErrorKind::Unsupported, "lpm_trie (11)"),
        ("wide_key", ErrorKind::BadMap, "keys of 8 bytes"),
        ("huge", ErrorKind::TooLarge, "4 GiB"),
        ("torn", ErrorKind::BadMap, "key_size says 8"),
        ("winged", ErrorKind::BadMap, "\"wings\""),
    ] {
        let error = refusal(&object, &format!("uses_{map}"));
        assert_eq!((error.stage(), error.kind(), place(&error)), (Stage::Map, kind, format!("map {map}")));
        assert!(error.message().contains(word), "{error}");
    }
    let error = refusal(&self::object("nodebug"), "entry");
    assert_eq!((error.stage(), error.kind()), (Stage::Btf, ErrorKind::NotFound));
    assert_eq!(place(&error), "map seen");
}

#[test]
fn legacy_maps_of_both_sizes() {
    let object = object("legacy");
    let entry = program(&object, "entry");
    let table = decl("table", MapKind::Hash, [12, 8, 100], 128);
    assert_eq!(shapes(&entry), [table, decl("counts", MapKind::Array, [4, 16, 32], 0)]);
    let loads: Vec<Imm64> = loads(&entry).into_iter().map(|(_, imm)| imm).collect();
    assert_eq!(loads, [map(0), map(1)]);
    assert_eq!(shapes(&program(&object, "uses_ring")), [decl("ring", MapKind::RingBuf, [0, 0, 4096], 0)]);
}

#[test]
fn maps_of_every_kind_have_their_shapes() {
    let object = object("kinds");
    for (name, kind, sizes) in [
        ("lru", MapKind::LruHash, [4, 8, 4]),
        ("percpu", MapKind::PercpuArray, [4, 8, 4]),
        ("percpu_h", MapKind::PercpuHash, [4, 8, 4]),
        // As libbpf, the size of a ring buffer is rounded up to a power of two of pages.
        ("ring", MapKind::RingBuf, [0, 0, 8192]),
        ("jumps", MapKind::ProgArray, [4, 4, 8]),
    ] {
        assert_eq!(shapes(&program(&object, &format!("uses_{name}"))), [decl(name, kind, sizes, 0)]);
    }
    // A ring buffer has no values; a type of values says what its records are.
    let valued = program(&object, "uses_valued");
    assert_eq!(shapes(&valued), [decl("valued", MapKind::RingBuf, [0, 0, 4096], 0)]);
    assert_eq!(valued.maps()[0].value_type.as_deref().map(show), Some("u8".to_owned()));
}

/// The programs in the slots of a program array come with the program that calls them.
#[test]
fn tail_call_targets_are_linked_in() {
    let object = object("kinds");
    let goes_on = program(&object, "goes_on");
    let names: Vec<&str> = goes_on.funcs().iter().map(|f| f.name.as_str()).collect();
    assert_eq!(names, ["goes_on", "first_target", "second_target"]);
    let start = |i: usize| goes_on.funcs()[i].start;
    let slots: Vec<_> = goes_on.tail_targets(MapIdx(0)).collect();
    assert_eq!(slots, [(2, start(1)), (5, start(2))]);
    assert_eq!(goes_on.maps()[1].name, "lru");
    let error = refusal(&object, "other_hook");
    assert_eq!((error.stage(), error.kind()), (Stage::Link, ErrorKind::BadMap));
    assert!(error.message().contains("first_target is for hook tuner"), "{error}");
}

/// BTF tells where a value has its spin lock: inside structs and arrays of one, not in unions, and never twice.
#[test]
fn spin_locks_are_found_in_values() {
    let object = object("kinds");
    let lock = |name: &str| program(&object, &format!("uses_{name}")).maps()[0].spin_lock;
    assert_eq!((lock("locked"), lock("deep"), lock("free_union")), (Some(4), Some(28), None));
    let guard = program(&object, "uses_guard");
    assert_eq!((guard.maps()[0].name.as_str(), guard.maps()[0].spin_lock), (".data.guard", Some(0)));
    for (name, words) in [("two_locks", "several bpf_spin_locks"), ("lru_locked", "a map of kind lru_hash")] {
        let error = refusal(&object, &format!("uses_{name}"));
        assert_eq!((error.stage(), error.kind()), (Stage::Map, ErrorKind::BadMap));
        assert!(error.message().contains(words), "{error}");
    }
}

#[test]
fn global_data_becomes_maps_with_contents() {
    let object = object("data");
    let entry = program(&object, "entry");
    let mut data = 0x1122_3344_5566_7788_u64.to_le_bytes().to_vec();
    data.extend(5_u32.to_le_bytes());
    let table: Vec<u8> = [3_u16, 1, 4, 1, 5, 9, 2, 6].iter().flat_map(|x| x.to_le_bytes()).collect();
    let maps = [
        global(".data", false, data),
        global(".bss", false, vec![0; 40]),
        global(".rodata", true, 77_u32.to_le_bytes().to_vec()),
        global(".rodata.cst16", true, table),
    ];
    assert_eq!(shapes(&entry), maps);
    let loads_of_entry = [
        (0, value(0, 8)),
        (5, value(1, 0)),
        (9, value(0, 0)),
        (14, value(2, 0)),
        (17, value(1, 8)),
        (25, value(3, 0)),
    ];
    assert_eq!(loads(&entry), loads_of_entry);
    let only_bss = program(&object, "only_bss");
    assert_eq!(shapes(&only_bss), &maps[1..2]);
    assert_eq!(loads(&only_bss), [(0, value(0, 8))]);
}

/// A description in one line: names of types, and of fields with their offsets.
fn show(ty: &TypeDesc) -> String {
    let fields = |fields: &[FieldDesc]| {
        let bits = |f: &FieldDesc| f.bits.map_or(String::new(), |b| format!("[{}+{}]", b.shift, b.width));
        let one = |f: &FieldDesc| format!("{}@{}{}:{}", f.name, f.offset, bits(f), show(&f.ty));
        fields.iter().map(one).collect::<Vec<_>>().join(" ")
    };
    let size = ty.size;
    match &ty.kind {
        TypeKind::Unsigned => format!("u{size}"),
        TypeKind::Signed => format!("i{size}"),
        TypeKind::Float => format!("f{size}"),
        TypeKind::Bool => "bool".into(),
        TypeKind::Char => "char".into(),
        TypeKind::SpinLock => "lock".into(),
        TypeKind::Bytes => format!("bytes{size}"),
        TypeKind::Enum { signed, names } => format!("{}{signed}{names:?}", ty.name),
        TypeKind::Array { element, len } => format!("{}x{len}", show(element)),
        TypeKind::Struct(f) => format!("{}{{{}}}{size}", ty.name, fields(f)),
        TypeKind::Union(f) => format!("{}({}){size}", ty.name, fields(f)),
        other => panic!("{other:?}"),
    }
}

/// BTF describes keys, values and global data, field by field; where it says nothing there is no description.
#[test]
fn types_of_keys_and_values_are_described() {
    let entry = program(&object("types"), "entry");
    let map = |name: &str| entry.maps().iter().find(|m| m.name == name).expect("a map").clone();
    let value = |name: &str| show(&map(name).value_type.expect("a description"));
    let rich = map("rich");
    let key = rich.key_type.as_ref().expect("a description");
    assert_eq!(show(key), "key{func@0:u4 nodes@4:u2 flags@6[0+3]:u1 mode@6[3+2]:u1 tag@7:char}8");
    assert_eq!((key.size, rich.value_type.as_ref().map(|t| t.size)), (rich.key_size, Some(rich.value_size)));
    assert_eq!(
        value("rich"),
        "value{lock@0:lock delta@4:i4 id@8:id128{lo@0:u8 hi@8:u8}16 name@24:charx16 counts@40:u4x3x2 \
         colour@64:colourtrue[(\"RED\", 0), (\"GREEN\", 7), (\"BLUE\", -3)] seen@68:bool rest@69:u1x3 \
         @72:(whole@0:u8 half@0:u4)8 big@80:bigfalse[(\"SMALL\", 1), (\"HUGE_ONE\", 1099511627776)] share@88:f4 \
         wide@92[0+20]:u4 narrow@92[20+12]:u4 opaque@96:bytes8 nested@104:{inner@0:i4 beside@4:u4}8}112"
    );
    let found = rich.value_type.as_ref().and_then(|t| t.field("half").map(|(at, f)| (at, f.ty.size)));
    assert_eq!(found, Some((72, 4)));
    assert_eq!(value(".data"), ".data{counter@0:u8 level@8:i4 hidden@12:u4}16");
    assert_eq!(value(".data.late"), ".data.late{before@0:u8 guard@8:lock}12");
    // The lock lies where the symbol says, which BTF alone does not know.
    assert_eq!(map(".data.late").spin_lock, Some(8));
    assert_eq!((map("plain").key_type, map("plain").value_type), (None, None));
    // Flags are refused where the map is used, by name.
    let error = refusal(&object("types"), "uses_flagged");
    assert_eq!((error.stage(), error.kind()), (Stage::Map, ErrorKind::Unsupported));
    assert!(error.message().contains("BPF_F_NO_PREALLOC, BPF_F_WRONLY_PROG (0x101)"), "{error}");
    // Nine structs deep and no further.
    let deep = value("deep");
    assert!(
        deep.starts_with("d10{d@0:d9{") && deep.ends_with("d@0:d2{d@0:bytes1}1}1}1}1}1}1}1}1}1"),
        "{deep}"
    );
    assert!(rich.same_shape(&MapDecl { key_type: None, value_type: None, ..rich.clone() }));
}

#[test]
fn addresses_inside_data_are_refused() {
    let object = object("pointers");
    let error = refusal(&object, "entry");
    assert_eq!((error.stage(), error.kind()), (Stage::Link, ErrorKind::Unsupported));
    assert_eq!(place(&error), ".rodata+0");
    assert!(error.message().contains(".rodata.str1.1"), "{error}");
    assert_eq!(program(&object, "plain").len(), 2);
}

#[test]
fn calls_reach_functions_of_any_section() {
    let object = object("calls");
    let first = program(&object, "first");
    assert_eq!(funcs(&first), [("first", 0, 3), ("shared", 3, 11), ("leaf", 11, 15)]);
    assert_eq!(calls(&first), [(1, "shared"), (4, "leaf"), (8, "leaf")]);
    let second = program(&object, "second");
    assert_eq!(funcs(&second), [("second", 0, 8), ("beside", 8, 11), ("shared", 11, 19), ("leaf", 19, 23)]);
    assert_eq!(calls(&second), [(2, "beside"), (5, "shared"), (8, "leaf"), (12, "leaf"), (16, "leaf")]);
    let third = program(&object, "third");
    assert_eq!((third.name(), third.section()), ("third", "profiler"));
    assert_eq!(calls(&third), [(0, "first"), (4, "shared"), (7, "leaf"), (11, "leaf")]);
    let callback = program(&object, "callback");
    assert_eq!(funcs(&callback), [("callback", 0, 11), ("step", 11, 17)]);
    assert_eq!(loads(&callback), [(5, Imm64::Func(Pc(11)))]);
    assert!(callback.maps().is_empty());
}

#[test]
fn every_cpu_version_gives_the_same_maps_calls_and_lines() {
    let weights: Vec<u8> = [10_u32, 20, 30, 40].iter().flat_map(|x| x.to_le_bytes()).collect();
    let maps = [decl("seen", MapKind::Array, [4, 8, 4], 0), global(".rodata.cst16", true, weights)];
    for cpu in ["v1", "v2", "v3", "v4"] {
        let entry = program(&object(&format!("cpu_{cpu}")), "entry");
        assert_eq!(shapes(&entry), maps, "{cpu}");
        assert_eq!(entry.funcs().len(), 2, "{cpu}");
        let line = |wanted: fn(&Insn) -> bool| {
            let (pc, _) = entry.iter().find(|(_, insn)| wanted(insn)).expect("such an instruction");
            let line = entry.line_at(pc).expect("a line");
            (line.file.clone(), line.line, line.text.clone())
        };
        let at = |line, text: &str| ("./cpu.bpf.c".to_owned(), line, text.to_owned());
        let is_lookup = |i: &Insn| matches!(i, Insn::CallHelper { id: 1 });
        assert_eq!(line(is_lookup), at(21, "u64 *slot = map_lookup(&seen, &key);"), "{cpu}");
        let is_call = |i: &Insn| matches!(i, Insn::CallLocal { .. });
        assert_eq!(line(is_call), at(26, "*slot += weigh(ctx[2]);"), "{cpu}");
        let is_table = |i: &Insn| matches!(i, Insn::LoadImm64 { imm: Imm64::MapValue { .. }, .. });
        assert_eq!(line(is_table), at(15, "return weights[index & 3];"), "{cpu}");
        let first = entry.line_at(Pc(0)).expect("a line of the first instruction");
        assert_eq!(first.line, 18, "{cpu}");
    }
}

#[test]
fn undefined_symbols_and_strange_sections_are_named() {
    let object = object("externs");
    for (name, kind, at, symbol) in [
        ("calls", ErrorKind::NotFound, "tuner+8", "missing_function"),
        ("reads", ErrorKind::NotFound, "tuner+24", "MISSING_SETTING"),
        ("strays", ErrorKind::Unsupported, "tuner+56", ".strange"),
    ] {
        let error = refusal(&object, name);
        assert_eq!((error.stage(), error.kind(), place(&error).as_str()), (Stage::Link, kind, at));
        assert!(error.message().contains(symbol), "{error}");
    }
}

#[test]
fn core_relocation_is_refused_in_the_program_that_wants_it() {
    let object = object("core");
    let error = refusal(&object, "relocated");
    assert_eq!((error.stage(), error.kind()), (Stage::Link, ErrorKind::Unsupported));
    assert_eq!(place(&error), "tuner+16");
    assert!(error.message().contains("CO-RE"), "{error}");
    assert_eq!(program(&object, "plain").len(), 2);
}

#[test]
fn files_that_are_no_ebpf_objects_say_why() {
    let good = bytes("cpu_v3");
    let patched = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    let cases: [(&str, Vec<u8>, ErrorKind, &str); 9] = [
        ("empty", Vec::new(), ErrorKind::NotEbpf, "not an ELF file"),
        ("text", b"#!/bin/sh\n".to_vec(), ErrorKind::NotEbpf, "not an ELF file"),
        ("magic", patched(0, 0), ErrorKind::NotEbpf, "not an ELF file"),
        ("class", patched(4, 1), ErrorKind::NotEbpf, "64-bit"),
        ("machine", patched(18, 62), ErrorKind::NotEbpf, "machine 62"),
        ("linked", patched(16, 3), ErrorKind::NotEbpf, "relocatable"),
        ("byte order", bytes("big"), ErrorKind::BigEndian, "bpfel"),
        ("truncated", good[..good.len() - 1].to_vec(), ErrorKind::Malformed, ""),
        ("large", vec![0; (16 << 20) + 1], ErrorKind::TooLarge, "16777216"),
    ];
    for (name, bytes, kind, word) in cases {
        let error = Object::parse(&bytes).err().unwrap_or_else(|| panic!("{name} was parsed"));
        assert_eq!((error.stage(), error.kind(), error.at()), (Stage::Elf, kind, &At::File), "{name}");
        assert!(error.message().contains(word), "{name}: {error}");
    }
}

#[test]
fn objects_load_at_any_alignment() {
    let good = bytes("calls");
    let mut shifted = vec![0; 3];
    shifted.extend(&good);
    let object = Object::parse(&shifted[3..]).expect("alignment does not matter");
    assert_eq!(object.programs().len(), 4);
}
