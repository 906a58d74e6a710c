//! [`object`]: the ELF file of an imported policy, laid out as clang lays one out.

use super::btf::{self, Types};
use super::code::Code;
use super::table::Table;
use object::write::{Object, Relocation, SectionId, StandardSegment, Symbol, SymbolSection};
use object::{
    Architecture, BinaryFormat, Endianness, RelocationFlags, SectionFlags, SectionKind, SymbolFlags,
    SymbolKind, SymbolScope, elf,
};

/// Name of the program.
pub(super) const PROGRAM: &str = "nccl_tuner_csv";
/// Its hook.
const SECTION: &str = "tuner";
/// What a compiled policy of ours says too.
const LICENSE: &[u8] = b"Dual MIT/GPL\0";

/// Writes the object; `file` is what lines are said to be of.
///
/// # Errors
/// What the writer cannot express, as text.
pub(super) fn object(table: &Table, code: &Code, file: &str) -> Result<Vec<u8>, String> {
    let mut out = Object::new(BinaryFormat::Elf, Architecture::Bpf, Endianness::Little);
    let alloc = elf::SHF_ALLOC;
    let text = section(&mut out, SECTION, SectionKind::Text, alloc | elf::SHF_EXECINSTR, &code.bytes);
    let rodata = section(&mut out, ".rodata", SectionKind::ReadOnlyData, alloc, &table.bytes);
    let license = section(&mut out, "license", SectionKind::Data, alloc | elf::SHF_WRITE, LICENSE);
    let mut types = Types::new(table, PROGRAM);
    let ext = btf::ext(&mut types, code, SECTION, file);
    section(&mut out, ".BTF", SectionKind::Other, 0, &types.section());
    section(&mut out, ".BTF.ext", SectionKind::Other, 0, &ext);
    symbol(&mut out, PROGRAM, SymbolKind::Text, text, 0, code.bytes.len());
    symbol(&mut out, "LICENSE", SymbolKind::Data, license, 0, LICENSE.len());
    for variable in btf::variables(table) {
        symbol(&mut out, &variable.name, SymbolKind::Data, rodata, variable.at, variable.bytes);
    }
    let base = out.section_symbol(rodata);
    for offset in &code.relocs {
        // The offset in the table is in the instruction, as with clang.
        let flags = RelocationFlags::Elf { r_type: elf::R_BPF_64_64 };
        let reloc = Relocation { offset: *offset, symbol: base, addend: 0, flags };
        out.add_relocation(text, reloc).map_err(|e| e.to_string())?;
    }
    out.write().map_err(|e| e.to_string())
}

fn section(out: &mut Object<'_>, name: &str, kind: SectionKind, flags: u32, data: &[u8]) -> SectionId {
    let segment = out.segment_name(StandardSegment::Data).to_vec();
    let id = out.add_section(segment, name.into(), kind);
    let section = out.section_mut(id);
    section.flags = SectionFlags::Elf { sh_flags: flags.into() };
    section.set_data(data.to_vec(), 8);
    id
}

fn symbol(out: &mut Object<'_>, name: &str, kind: SymbolKind, section: SectionId, value: usize, size: usize) {
    out.add_symbol(Symbol {
        name: name.into(),
        value: value as u64,
        size: size as u64,
        kind,
        scope: SymbolScope::Dynamic,
        weak: false,
        section: SymbolSection::Section(section),
        flags: SymbolFlags::None,
    });
}
