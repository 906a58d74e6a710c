//! [`Image`]: the sections, symbols and relocations of an eBPF relocatable file. Holding one means: ranges lie
//! inside the file, symbols and relocations name sections and symbols that exist, and relocations are sorted.

use super::{c_str, error_at, printable};
use crate::error::{At, Error, ErrorKind, Stage};
use crate::limits::{MAX_OBJECT_BYTES, MAX_SECTIONS, MAX_SYMBOLS};
use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader as _, Rel as _, SectionHeader as _, SectionTable, Sym as _, SymbolTable};
use object::{Endianness, SectionIndex, SymbolIndex};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

type Header = FileHeader64<Endianness>;
type Sections<'a> = SectionTable<'a, Header>;
type Symbols<'a> = SymbolTable<'a, Header>;

/// What a section is to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Instructions.
    Code,
    /// Global data that becomes a map.
    Data { read_only: bool },
    /// `.maps`: definitions in BTF.
    BtfMaps,
    /// `maps`: definitions as `struct bpf_map_def`.
    LegacyMaps,
    /// Anything else.
    Other,
}

/// A section.
#[derive(Clone, Debug)]
pub(super) struct Section {
    pub(super) name: String,
    pub(super) role: Role,
    /// Bytes; more than `range` holds for `.bss`.
    pub(super) size: u64,
    /// Where its contents lie in the file.
    range: Range<usize>,
}

/// Where a symbol points.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    /// Into the section of that index.
    Section(usize),
    /// Nowhere: an extern.
    Undefined,
    /// Absolute, common or reserved.
    Special,
}

/// Type of a symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SymbolKind {
    None,
    Object,
    Func,
    Section,
    Other,
}

/// A symbol; its name is read on demand, because most are never looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Symbol {
    name: u32,
    pub(super) kind: SymbolKind,
    /// Global or weak.
    pub(super) global: bool,
    /// Global or weak, and not hidden.
    pub(super) exported: bool,
    pub(super) place: Place,
    /// Byte offset in its section.
    pub(super) value: u64,
    pub(super) size: u64,
}

/// A relocation of the REL form: the addend is in the instruction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reloc {
    /// Byte offset in the section that it changes.
    pub(super) offset: u64,
    /// `R_BPF_*`
    pub(super) kind: u32,
    /// Index of the symbol.
    pub(super) symbol: usize,
}

/// See the module's text.
#[derive(Clone)]
pub(super) struct Image {
    bytes: Arc<[u8]>,
    pub(super) sections: Vec<Section>,
    pub(super) symbols: Vec<Symbol>,
    /// The string table of the symbols.
    strings: Range<usize>,
    /// By section; only for code, data and maps.
    relocs: BTreeMap<usize, Vec<Reloc>>,
}

impl Image {
    pub(super) fn read(bytes: &[u8]) -> Result<Image, Error> {
        if bytes.len() > MAX_OBJECT_BYTES {
            let text =
                format!("{} bytes, more than the {MAX_OBJECT_BYTES} that an object may have", bytes.len());
            return Err(file_error(ErrorKind::TooLarge, text));
        }
        let header = header(bytes)?;
        let endian = Endianness::Little;
        let table = header.sections(endian, bytes).map_err(malformed)?;
        let mut image = Image {
            bytes: Arc::from(bytes),
            sections: sections(header, &table, bytes)?,
            symbols: Vec::new(),
            strings: 0..0,
            relocs: BTreeMap::new(),
        };
        let symbols = table.symbols(endian, bytes, elf::SHT_SYMTAB).map_err(malformed)?;
        if let Some(strings) = image.sections.get(symbols.string_section().0) {
            image.strings = strings.range.clone();
        }
        image.symbols = image.read_symbols(&symbols)?;
        image.relocs = image.read_relocs(&table, symbols.section(), bytes)?;
        Ok(image)
    }

    fn read_symbols(&self, table: &Symbols<'_>) -> Result<Vec<Symbol>, Error> {
        if table.len() > MAX_SYMBOLS {
            let text =
                format!("{} symbols, more than the {MAX_SYMBOLS} that an object may have", table.len());
            return Err(file_error(ErrorKind::TooLarge, text));
        }
        table.enumerate().map(|(index, raw)| self.read_symbol(table, index, raw)).collect()
    }

    fn read_symbol(
        &self,
        table: &Symbols<'_>,
        index: SymbolIndex,
        raw: &elf::Sym64<Endianness>,
    ) -> Result<Symbol, Error> {
        let endian = Endianness::Little;
        let place = match table.symbol_section(endian, raw, index).map_err(malformed)? {
            Some(section) if section.0 < self.sections.len() => Place::Section(section.0),
            Some(section) => {
                return Err(malformed(format!("symbol {index} is in section {section}, which is not there")));
            }
            None if raw.is_undefined(endian) => Place::Undefined,
            None => Place::Special,
        };
        let kind = match raw.st_type() {
            elf::STT_NOTYPE => SymbolKind::None,
            elf::STT_OBJECT => SymbolKind::Object,
            elf::STT_FUNC => SymbolKind::Func,
            elf::STT_SECTION => SymbolKind::Section,
            _ => SymbolKind::Other,
        };
        let global = matches!(raw.st_bind(), elf::STB_GLOBAL | elf::STB_WEAK);
        let exported = global && matches!(raw.st_visibility(), elf::STV_DEFAULT | elf::STV_PROTECTED);
        let (name, value, size) = (raw.st_name(endian), raw.st_value(endian), raw.st_size(endian));
        Ok(Symbol { name, kind, global, exported, place, value, size })
    }

    fn read_relocs(
        &self,
        table: &Sections<'_>,
        symtab: SectionIndex,
        bytes: &[u8],
    ) -> Result<BTreeMap<usize, Vec<Reloc>>, Error> {
        let endian = Endianness::Little;
        let mut all: BTreeMap<usize, Vec<Reloc>> = BTreeMap::new();
        // Tables that overlap could make a small file cost much; honest ones do not.
        let mut budget = bytes.len() / size_of::<elf::Rel64<Endianness>>();
        for section in table.iter() {
            let kind = section.sh_type(endian);
            let target = section.sh_info(endian) as usize;
            let Some(changed) = self.sections.get(target).filter(|s| s.role != Role::Other) else { continue };
            if kind == elf::SHT_RELA {
                let text = "relocations with addends (SHT_RELA); BPF compilers write SHT_REL";
                return Err(error_at(Stage::Elf, ErrorKind::Unsupported, &changed.name, 0, text));
            }
            let Some((raw, link)) = section.rel(endian, bytes).map_err(malformed)? else { continue };
            if link != symtab {
                return Err(malformed(format!(
                    "relocations of {} do not use the symbol table",
                    changed.name
                )));
            }
            budget = budget.checked_sub(raw.len()).ok_or_else(|| malformed("relocation sections overlap"))?;
            let out = all.entry(target).or_default();
            for rel in raw {
                out.extend(self.read_reloc(changed, rel)?);
            }
        }
        all.values_mut().for_each(|relocs| relocs.sort_by_key(|r| r.offset));
        Ok(all)
    }

    fn read_reloc(&self, changed: &Section, raw: &elf::Rel64<Endianness>) -> Result<Option<Reloc>, Error> {
        let endian = Endianness::Little;
        let reloc = Reloc {
            offset: raw.r_offset(endian),
            kind: raw.r_type(endian),
            symbol: raw.r_sym(endian) as usize,
        };
        let problem = if reloc.kind == elf::R_BPF_NONE {
            return Ok(None);
        } else if reloc.offset >= changed.size {
            "relocation outside the section"
        } else if reloc.symbol == 0 || reloc.symbol >= self.symbols.len() {
            "relocation against a symbol that is not there"
        } else {
            return Ok(Some(reloc));
        };
        Err(error_at(Stage::Elf, ErrorKind::Malformed, &changed.name, reloc.offset, problem))
    }

    /// Contents in the file of that section; empty for `.bss`.
    pub(super) fn data(&self, section: usize) -> &[u8] {
        &self.bytes[self.sections[section].range.clone()]
    }

    /// Index of the first section of that name.
    pub(super) fn section_named(&self, name: &str) -> Option<usize> {
        self.sections.iter().position(|s| s.name == name)
    }

    /// Relocations that change that section, by offset.
    pub(super) fn relocs(&self, section: usize) -> &[Reloc] {
        self.relocs.get(&section).map_or(&[], Vec::as_slice)
    }

    /// Name of a symbol: that of its section for a section symbol; printable, and empty if it has none.
    pub(super) fn symbol_name(&self, symbol: &Symbol) -> String {
        if let (SymbolKind::Section, Place::Section(section)) = (symbol.kind, symbol.place) {
            return self.sections[section].name.clone();
        }
        c_str(&self.bytes[self.strings.clone()], symbol.name as usize).map(printable).unwrap_or_default()
    }
}

/// The file header of a little-endian eBPF relocatable.
fn header(bytes: &[u8]) -> Result<&Header, Error> {
    let not = |text: &str| Err(file_error(ErrorKind::NotEbpf, text));
    match bytes {
        [0x7f, b'E', b'L', b'F', 2, ..] => {}
        [0x7f, b'E', b'L', b'F', class, ..] => {
            return not(&format!("ELF class {class}; eBPF objects are 64-bit ELF files (class 2)"));
        }
        _ => {
            return not(
                "not an ELF file; build the policy with `clang -target bpf -c` or `ringfence-bpf-build`",
            );
        }
    }
    let header = Header::parse(bytes).map_err(malformed)?;
    let endian = header.endian().map_err(malformed)?;
    if header.e_machine(endian) != elf::EM_BPF {
        let machine = header.e_machine(endian);
        return not(&format!("ELF machine {machine}, not eBPF (247); compile with `-target bpf`"));
    }
    if endian == Endianness::Big {
        return Err(file_error(ErrorKind::BigEndian, "big-endian eBPF; compile with `-target bpfel`"));
    }
    if header.e_type(endian) != elf::ET_REL {
        let kind = header.e_type(endian);
        return not(&format!(
            "ELF type {kind}, not a relocatable object (1); compile with `-c`, do not link"
        ));
    }
    Ok(header)
}

fn sections(header: &Header, table: &Sections<'_>, bytes: &[u8]) -> Result<Vec<Section>, Error> {
    let endian = Endianness::Little;
    if table.len() > MAX_SECTIONS {
        let text = format!("{} sections, more than the {MAX_SECTIONS} that an object may have", table.len());
        return Err(file_error(ErrorKind::TooLarge, text));
    }
    let names = match header.section_strings_index(endian, bytes) {
        Ok(index) => table.section(index).and_then(|s| s.data(endian, bytes)).map_err(malformed)?,
        Err(e) if table.is_empty() => return Err(malformed(e)),
        Err(_) => &[],
    };
    table.iter().enumerate().map(|(index, raw)| section(index, raw, names, bytes.len())).collect()
}

fn section(
    index: usize,
    raw: &elf::SectionHeader64<Endianness>,
    names: &[u8],
    file_len: usize,
) -> Result<Section, Error> {
    let endian = Endianness::Little;
    let name = c_str(names, raw.sh_name(endian) as usize);
    let name =
        name.map(printable).ok_or_else(|| malformed(format!("section {index} has no readable name")))?;
    let range = match raw.file_range(endian) {
        // The null section may carry counts in its size field, and has no contents.
        None => 0..0,
        Some(_) if raw.sh_type(endian) == elf::SHT_NULL => 0..0,
        Some((start, size)) => {
            let end = start.checked_add(size).filter(|end| *end <= file_len as u64);
            let end = end
                .ok_or_else(|| error_at(Stage::Elf, ErrorKind::Malformed, &name, 0, "ends after the file"))?;
            start as usize..end as usize
        }
    };
    let role = role(&name, raw.sh_type(endian), raw.sh_flags(endian));
    if role != Role::Other && raw.sh_flags(endian) & u64::from(elf::SHF_COMPRESSED) != 0 {
        return Err(error_at(Stage::Elf, ErrorKind::Unsupported, &name, 0, "compressed section"));
    }
    Ok(Section { name, role, size: raw.sh_size(endian), range })
}

fn role(name: &str, kind: u32, flags: u64) -> Role {
    let is =
        |stem: &str| name.strip_prefix(stem).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    match kind {
        elf::SHT_PROGBITS if flags & u64::from(elf::SHF_EXECINSTR) != 0 => Role::Code,
        elf::SHT_PROGBITS if name == ".maps" => Role::BtfMaps,
        elf::SHT_PROGBITS if name == "maps" || name.starts_with("maps/") => Role::LegacyMaps,
        elf::SHT_PROGBITS if is(".rodata") => Role::Data { read_only: true },
        elf::SHT_PROGBITS | elf::SHT_NOBITS if is(".data") || is(".bss") => Role::Data { read_only: false },
        _ => Role::Other,
    }
}

#[cold]
fn malformed(text: impl ToString) -> Error {
    file_error(ErrorKind::Malformed, text.to_string())
}

#[cold]
fn file_error(kind: ErrorKind, text: impl Into<String>) -> Error {
    Error::new(Stage::Elf, kind, At::File, text)
}
