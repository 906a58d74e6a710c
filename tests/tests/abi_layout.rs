//! What the built plugin shows to a dynamic linker: the tuner symbols as data objects of NCCL's sizes, nothing else, nodelete, and
//! no library that a training container might lack.

mod plugin;

use object::read::elf::{Dyn, ElfFile64, FileHeader, SectionHeader};
use object::{Endianness, LittleEndian, Object, ObjectSymbol, SymbolKind, elf};

fn bytes() -> Vec<u8> {
    std::fs::read(plugin::so()).unwrap()
}

#[test]
fn only_nccl_s_symbols_are_exported_as_data() {
    let data = bytes();
    let file = ElfFile64::<LittleEndian>::parse(&*data).unwrap();
    let exported: Vec<_> = file
        .dynamic_symbols()
        .filter(|s| s.is_definition() && s.is_global())
        .map(|s| (s.name().unwrap().to_owned(), s.kind(), s.size()))
        .collect();
    let mut tuners: Vec<_> =
        exported.iter().filter(|(name, ..)| name.starts_with("ncclTunerPlugin_")).collect();
    tuners.sort_by_key(|(name, ..)| name.clone());
    let want: Vec<_> = (2..=6)
        .map(|v| (format!("ncclTunerPlugin_v{v}"), SymbolKind::Data, if v == 6 { 40 } else { 32 }))
        .collect();
    assert_eq!(tuners, want.iter().collect::<Vec<_>>());
    let others: Vec<_> = exported.iter().filter(|(name, ..)| !name.starts_with("nccl")).collect();
    assert!(others.is_empty(), "exported besides NCCL's: {others:?}");
}

#[test]
fn the_library_stays_loaded_and_is_bound_at_once() {
    let data = bytes();
    let (flags, flags_1, _) = dynamic(&data);
    assert_ne!(flags_1 & u64::from(elf::DF_1_NODELETE), 0, "dlclose must not unmap the code: -z nodelete");
    assert_ne!((flags & u64::from(elf::DF_BIND_NOW)) | (flags_1 & u64::from(elf::DF_1_NOW)), 0, "-z now");
}

/// The library is linked with `-z defs`: each undefined symbol is one of these libraries'.
#[test]
fn nothing_but_the_c_library_is_needed() {
    let data = bytes();
    let (_, _, needed) = dynamic(&data);
    const HARMLESS: [&str; 7] = [
        "libc.so.6",
        "libm.so.6",
        "libgcc_s.so.1",
        "libpthread.so.0",
        "libdl.so.2",
        "librt.so.1",
        "ld-linux-x86-64.so.2",
    ];
    for name in &needed {
        assert!(
            HARMLESS.contains(&name.as_str()) || name.starts_with("ld-linux"),
            "{name} is needed: {needed:?}"
        );
    }
    assert!(needed.iter().any(|n| n == "libc.so.6"));
}

/// DT_FLAGS, DT_FLAGS_1 and the names of needed libraries.
fn dynamic(data: &[u8]) -> (u64, u64, Vec<String>) {
    let header = elf::FileHeader64::<Endianness>::parse(data).unwrap();
    let endian = header.endian().unwrap();
    let sections = header.sections(endian, data).unwrap();
    let (entries, strings) = sections
        .iter()
        .find_map(|s| s.dynamic(endian, data).unwrap())
        .map(|(entries, link)| (entries, sections.strings(endian, data, link).unwrap()))
        .unwrap();
    let (mut flags, mut flags_1, mut needed) = (0, 0, Vec::new());
    for entry in entries {
        match entry.tag(endian) {
            elf::DT_FLAGS => flags = entry.d_val(endian),
            elf::DT_FLAGS_1 => flags_1 = entry.d_val(endian),
            elf::DT_NEEDED => {
                needed.push(String::from_utf8(entry.string(endian, strings).unwrap().to_vec()).unwrap());
            }
            _ => {}
        }
    }
    (flags, flags_1, needed)
}
