//! [`Elf`] and [`Types`]: forged objects and BTF, for what no compiler writes.

/// Kinds of symbols (`st_info`).
pub(crate) const FUNC: u8 = 0x12;
pub(crate) const LOCAL_FUNC: u8 = 0x02;
pub(crate) const OBJECT: u8 = 0x11;
pub(crate) const NOTYPE: u8 = 0x10;

/// Types of sections.
pub(crate) const PROGBITS: u32 = 1;
pub(crate) const RELA: u32 = 4;
pub(crate) const NOBITS: u32 = 8;
pub(crate) const REL: u32 = 9;

const ALLOC: u64 = 2;
const EXEC: u64 = 4;

/// One slot.
pub(crate) fn slot(opcode: u8, regs: u8, off: i16, imm: i32) -> [u8; 8] {
    let mut out = [opcode, regs, 0, 0, 0, 0, 0, 0];
    out[2..4].copy_from_slice(&off.to_le_bytes());
    out[4..8].copy_from_slice(&imm.to_le_bytes());
    out
}

pub(crate) fn exit() -> [u8; 8] {
    slot(0x95, 0, 0, 0)
}

/// `call` with source register `src`.
pub(crate) fn call(src: u8, imm: i32) -> [u8; 8] {
    slot(0x85, src << 4, 0, imm)
}

/// `r1 = imm ll` with source register `src`.
pub(crate) fn lddw(src: u8, imm: i32) -> [[u8; 8]; 2] {
    [slot(0x18, src << 4 | 1, 0, imm), slot(0, 0, 0, 0)]
}

pub(crate) fn code(slots: &[[u8; 8]]) -> Vec<u8> {
    slots.concat()
}

pub(crate) struct Section {
    pub(crate) name: String,
    pub(crate) kind: u32,
    pub(crate) flags: u64,
    pub(crate) data: Vec<u8>,
    /// Size in the header, where it is not that of the data.
    pub(crate) size: Option<u64>,
    /// File offset in the header, where it is not that of the data.
    pub(crate) offset: Option<u64>,
    pub(crate) info: u32,
}

pub(crate) struct Symbol {
    pub(crate) name: u32,
    pub(crate) info: u8,
    pub(crate) section: u16,
    pub(crate) value: u64,
    pub(crate) size: u64,
}

/// A little-endian eBPF relocatable: null section, the given ones, symbol table, string table.
#[derive(Default)]
pub(crate) struct Elf {
    pub(crate) sections: Vec<Section>,
    pub(crate) symbols: Vec<Symbol>,
    pub(crate) strings: Vec<u8>,
}

impl Elf {
    pub(crate) fn new() -> Elf {
        Elf { strings: vec![0], ..Elf::default() }
    }

    /// Adds a section and returns its index in the file.
    pub(crate) fn section(&mut self, name: &str, kind: u32, flags: u64, data: Vec<u8>) -> u16 {
        let name = name.to_owned();
        self.sections.push(Section { name, kind, flags, data, size: None, offset: None, info: 0 });
        self.sections.len() as u16
    }

    pub(crate) fn code(&mut self, name: &str, slots: &[[u8; 8]]) -> u16 {
        self.section(name, PROGBITS, ALLOC | EXEC, code(slots))
    }

    pub(crate) fn data(&mut self, name: &str, data: Vec<u8>) -> u16 {
        self.section(name, PROGBITS, ALLOC, data)
    }

    pub(crate) fn string(&mut self, text: &str) -> u32 {
        let at = self.strings.len() as u32;
        self.strings.extend(text.bytes());
        self.strings.push(0);
        at
    }

    /// Adds a symbol and returns its index.
    pub(crate) fn symbol(&mut self, name: &str, info: u8, section: u16, value: u64, size: u64) -> u32 {
        let name = self.string(name);
        self.symbols.push(Symbol { name, info, section, value, size });
        self.symbols.len() as u32
    }

    /// A program of one function: section and symbol of that name.
    pub(crate) fn program(&mut self, name: &str, slots: &[[u8; 8]]) -> u16 {
        let section = self.code(name, slots);
        self.symbol(name, FUNC, section, 0, slots.len() as u64 * 8);
        section
    }

    /// Adds relocations (offset, type, symbol) against that section.
    pub(crate) fn relocs(&mut self, section: u16, relocs: &[(u64, u32, u32)]) -> u16 {
        let entry = |(at, kind, symbol): &(u64, u32, u32)| {
            [at.to_le_bytes(), (u64::from(*symbol) << 32 | u64::from(*kind)).to_le_bytes()].concat()
        };
        let index = self.section(".rel", REL, 0, relocs.iter().flat_map(entry).collect());
        self.sections[usize::from(index) - 1].info = section.into();
        index
    }

    pub(crate) fn build(mut self) -> Vec<u8> {
        let names: Vec<u32> =
            (0..self.sections.len()).map(|i| self.string(&self.sections[i].name.clone())).collect();
        let mut file = vec![0; 64];
        let mut headers = vec![0; 64];
        let symtab = self.sections.len() as u32 + 1;
        for (section, name) in self.sections.iter().zip(names) {
            let offset = section.offset.unwrap_or(file.len() as u64);
            let size = section.size.unwrap_or(section.data.len() as u64);
            let is_reloc = section.kind == REL || section.kind == RELA;
            let (link, entry) = if is_reloc { (symtab, 16) } else { (0, 0) };
            header(&mut headers, name, section.kind, section.flags, offset, size, link, section.info, entry);
            file.extend(&section.data);
        }
        let mut symbols = vec![0; 24];
        for s in &self.symbols {
            symbols.extend(s.name.to_le_bytes());
            symbols.extend([s.info, 0]);
            symbols.extend(s.section.to_le_bytes());
            symbols.extend(s.value.to_le_bytes());
            symbols.extend(s.size.to_le_bytes());
        }
        header(&mut headers, 0, 2, 0, file.len() as u64, symbols.len() as u64, symtab + 1, 1, 24);
        file.extend(symbols);
        header(&mut headers, 0, 3, 0, file.len() as u64, self.strings.len() as u64, 0, 0, 0);
        file.extend(&self.strings);
        let table = file.len() as u64;
        file.extend(&headers);
        let count = (headers.len() / 64) as u16;
        file[..8].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1, 0]);
        file[16..20].copy_from_slice(&[1, 0, 247, 0]);
        file[20..24].copy_from_slice(&1_u32.to_le_bytes());
        file[40..48].copy_from_slice(&table.to_le_bytes());
        file[52..54].copy_from_slice(&64_u16.to_le_bytes());
        file[58..60].copy_from_slice(&64_u16.to_le_bytes());
        file[60..62].copy_from_slice(&count.to_le_bytes());
        file[62..64].copy_from_slice(&(count - 1).to_le_bytes());
        file
    }
}

#[allow(clippy::too_many_arguments)]
fn header(
    out: &mut Vec<u8>,
    name: u32,
    kind: u32,
    flags: u64,
    offset: u64,
    size: u64,
    link: u32,
    info: u32,
    entry: u64,
) {
    out.extend(name.to_le_bytes());
    out.extend(kind.to_le_bytes());
    for word in [flags, 0, offset, size] {
        out.extend(word.to_le_bytes());
    }
    out.extend(link.to_le_bytes());
    out.extend(info.to_le_bytes());
    out.extend(1_u64.to_le_bytes());
    out.extend(entry.to_le_bytes());
}

/// BTF under construction.
#[derive(Default)]
pub(crate) struct Types {
    records: Vec<u8>,
    strings: Vec<u8>,
    count: u32,
}

impl Types {
    pub(crate) fn new() -> Types {
        Types { strings: vec![0], ..Types::default() }
    }

    fn string(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        let at = self.strings.len() as u32;
        self.strings.extend(text.bytes());
        self.strings.push(0);
        at
    }

    /// Adds a record and returns its id.
    pub(crate) fn add(&mut self, name: &str, kind: u32, vlen: u32, size_or_type: u32, tail: &[u32]) -> u32 {
        let name = self.string(name);
        for word in [name, kind << 24 | vlen, size_or_type] {
            self.records.extend(word.to_le_bytes());
        }
        self.records.extend(tail.iter().flat_map(|word| word.to_le_bytes()));
        self.count += 1;
        self.count
    }

    pub(crate) fn int(&mut self, name: &str, bytes: u32) -> u32 {
        self.add(name, 1, 0, bytes, &[bytes * 8])
    }

    pub(crate) fn ptr(&mut self, to: u32) -> u32 {
        self.add("", 2, 0, to, &[])
    }

    /// What `__uint(name, number)` becomes.
    pub(crate) fn number(&mut self, number: u32) -> u32 {
        let array = self.add("", 3, 0, 0, &[0, 0, number]);
        self.ptr(array)
    }

    pub(crate) fn structure(&mut self, name: &str, size: u32, members: &[(&str, u32)]) -> u32 {
        let tail: Vec<u32> = members.iter().flat_map(|(name, ty)| [self.string(name), *ty, 0]).collect();
        self.add(name, 4, members.len() as u32, size, &tail)
    }

    /// The variables of `.maps`, by name and type.
    pub(crate) fn maps(&mut self, vars: &[(&str, u32)]) {
        let vars: Vec<u32> = vars.iter().map(|(name, ty)| self.add(name, 14, 0, *ty, &[1])).collect();
        let tail: Vec<u32> = vars.iter().flat_map(|var| [*var, 0, 32]).collect();
        self.add(".maps", 15, vars.len() as u32, 0, &tail);
    }

    pub(crate) fn build(&self) -> Vec<u8> {
        let mut out = vec![0x9f, 0xeb, 1, 0];
        let (types, strings) = (self.records.len() as u32, self.strings.len() as u32);
        for word in [24, 0, types, types, strings] {
            out.extend(word.to_le_bytes());
        }
        out.extend(&self.records);
        out.extend(&self.strings);
        out
    }
}
