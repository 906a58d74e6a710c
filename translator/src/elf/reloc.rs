//! [`link`]: one entry point with all that it reaches, as relocated code. Functions are laid out in the order
//! in which they are first met, so that a function's place is known as soon as something refers to it.

use super::funcs::{FuncId, Function};
use super::image::{Image, Place, Reloc, Role, Symbol};
use super::object::{Object, ProgramSpec};
use super::{error_at, u32_at};
use crate::error::{At, Error, ErrorKind, Stage};
use crate::isa::{MapIdx, Pc};
use crate::limits::{MAX_LINE_BYTES, MAX_MAPS, MAX_PROGRAM_SLOTS};
use crate::map::MapDecl;
use crate::program::{Func, LinkInput, Program, SourceLine, TailTargets};
use std::collections::{BTreeMap, HashMap};

/// Relocation of a 64-bit immediate load.
const R_BPF_64_64: u32 = object::elf::R_BPF_64_64;
/// Relocation of a call.
const R_BPF_64_32: u32 = object::elf::R_BPF_64_32;
const LDDW: u8 = 0x18;
const CALL: u8 = 0x85;
/// `src` of a load of a map object, of an address in a map's value, of a function's address.
const PSEUDO_MAP: u8 = 1;
const PSEUDO_MAP_VALUE: u8 = 2;
const PSEUDO_FUNC: u8 = 4;
/// `src` of a call of a function of the program.
const PSEUDO_CALL: u8 = 1;

/// Links that entry point; see [`Object::program`].
pub(super) fn link(object: &Object, spec: &ProgramSpec) -> Result<Program, Error> {
    let mut linker = Linker {
        object,
        order: Vec::new(),
        starts: HashMap::new(),
        slots: 0,
        code: Vec::new(),
        funcs: Vec::new(),
        maps: Vec::new(),
        map_ids: HashMap::new(),
        lines: Vec::new(),
        line_budget: MAX_LINE_BYTES,
        tails: Vec::new(),
    };
    linker.place(spec.function)?;
    let mut next = 0;
    while let Some(id) = linker.order.get(next).copied() {
        linker.append(id)?;
        next += 1;
    }
    if let Some(entry) = linker.funcs.first_mut() {
        // Of several names of one function, the one that was asked for.
        spec.name().clone_into(&mut entry.name);
    }
    Program::link(LinkInput {
        name: spec.name().to_owned(),
        section: spec.section().to_owned(),
        code: linker.code,
        funcs: linker.funcs,
        maps: linker.maps,
        lines: linker.lines,
        tails: linker.tails,
    })
}

struct Linker<'o> {
    object: &'o Object,
    /// Functions by place; those before `funcs.len()` are already in `code`.
    order: Vec<FuncId>,
    starts: HashMap<FuncId, Pc>,
    /// Slots of all placed functions.
    slots: u64,
    code: Vec<u8>,
    funcs: Vec<Func>,
    maps: Vec<MapDecl>,
    /// By section and byte offset of the definition (0 for global data).
    map_ids: HashMap<(usize, u64), u16>,
    lines: Vec<(Pc, SourceLine)>,
    line_budget: usize,
    tails: Vec<TailTargets>,
}

/// An instruction that is being relocated.
#[derive(Clone, Copy)]
struct Site<'o> {
    function: &'o Function,
    /// Byte offset in the section of the function.
    offset: u64,
    /// Slot of the program.
    pc: Pc,
}

impl<'o> Linker<'o> {
    fn image(&self) -> &'o Image {
        &self.object.image
    }

    /// Start of that function in the program; reserves a place at the first call.
    fn place(&mut self, id: FuncId) -> Result<Pc, Error> {
        if let Some(start) = self.starts.get(&id) {
            return Ok(*start);
        }
        let function = self.object.functions.get(id);
        let start = Pc(self.slots as u32);
        self.slots += (function.bytes.end - function.bytes.start) / 8;
        if self.slots > MAX_PROGRAM_SLOTS as u64 {
            let text = format!("with {} the program has more than {MAX_PROGRAM_SLOTS} slots", function.name);
            let section = &self.image().sections[function.section].name;
            return Err(error_at(Stage::Link, ErrorKind::TooLarge, section, function.bytes.start, text));
        }
        self.starts.insert(id, start);
        self.order.push(id);
        Ok(start)
    }

    /// Appends the code of a placed function and relocates it.
    fn append(&mut self, id: FuncId) -> Result<(), Error> {
        let function = self.object.functions.get(id);
        let bytes = function.bytes.start as usize..function.bytes.end as usize;
        let start = Pc((self.code.len() / 8) as u32);
        self.code.extend_from_slice(&self.image().data(function.section)[bytes]);
        let end = Pc((self.code.len() / 8) as u32);
        let mut site = Site { function, offset: function.bytes.start, pc: start };
        if let Some(offset) = self.object.lines.core_relocation(function) {
            site.offset = offset;
            let text = "wants CO-RE relocation against kernel types, of which there are none here; drop \
                        `preserve_access_index` and `bpf_core_*`";
            return Err(self.error(site, ErrorKind::Unsupported, text));
        }
        // A name beyond MAX_NAME_BYTES counts as none.
        let name = if function.name.is_empty() { format!("func_{start}") } else { function.name.clone() };
        self.funcs.push(Func { global: function.global, ..Func::new(name, start, end) });
        self.object.lines.append(function, start, &mut self.line_budget, &mut self.lines);
        let relocs = self.image().relocs(function.section);
        let first = relocs.partition_point(|r| r.offset < function.bytes.start);
        let mut relocs = relocs[first..].iter().peekable();
        while site.pc < end {
            let wide = self.slot(site.pc)[0] == LDDW;
            let len = if wide { 16 } else { 8 };
            let reloc = relocs.next_if(|r| r.offset < site.offset + len);
            self.relocate(site, reloc)?;
            site.offset += len;
            site.pc = site.pc.plus(if wide { 2 } else { 1 });
        }
        Ok(())
    }

    fn relocate(&mut self, site: Site<'o>, reloc: Option<&Reloc>) -> Result<(), Error> {
        if let Some(reloc) = reloc.filter(|r| r.offset != site.offset) {
            let text = format!("relocation at byte {:#x}, not at the start of an instruction", reloc.offset);
            return Err(self.error(site, ErrorKind::Malformed, text));
        }
        let [opcode, registers, ..] = self.slot(site.pc);
        match (opcode, registers >> 4, reloc) {
            (LDDW, ..) if site.offset + 16 > site.function.bytes.end => Err(self.error(
                site,
                ErrorKind::Malformed,
                "the function ends inside a 64-bit immediate load",
            )),
            (LDDW, _, Some(reloc)) if reloc.kind == R_BPF_64_64 => self.load(site, reloc),
            (CALL, PSEUDO_CALL, Some(reloc)) if reloc.kind == R_BPF_64_32 => self.call(site, Some(reloc)),
            (CALL, PSEUDO_CALL, None) => self.call(site, None),
            (LDDW, 1.., None) => {
                let text = "load of a map, variable or function that no relocation names";
                Err(self.error(site, ErrorKind::Malformed, text))
            }
            (.., Some(reloc)) => Err(self.unexpected(site, opcode, reloc)),
            (.., None) => Ok(()),
        }
    }

    /// `lddw` of the address of something.
    fn load(&mut self, site: Site<'o>, reloc: &Reloc) -> Result<(), Error> {
        let (symbol, section) = self.target(site, reloc)?;
        let target = &self.image().sections[section];
        // The compiler leaves the offset from the symbol in the instruction.
        let offset = symbol.value.checked_add_signed(i64::from(self.imm(site.pc)));
        let offset =
            offset.filter(|at| *at <= target.size && u32::try_from(*at).is_ok()).ok_or_else(|| {
                let text = format!(
                    "address outside of section {}, {} from {}",
                    target.name,
                    self.imm(site.pc),
                    self.name(symbol)
                );
                self.error(site, ErrorKind::Malformed, text)
            })?;
        match target.role {
            Role::Code => {
                let distance = self.distance(site, section, offset)?;
                self.patch(site.pc, PSEUDO_FUNC, distance, 0);
            }
            Role::BtfMaps | Role::LegacyMaps => {
                let index = self.map(site, symbol, section, offset)?;
                self.patch(site.pc, PSEUDO_MAP, index.into(), 0);
            }
            Role::Data { read_only } => {
                let index = self.global(section, read_only)?;
                self.patch(site.pc, PSEUDO_MAP_VALUE, index.into(), offset as u32 as i32);
            }
            Role::Other => {
                let text = format!(
                    "{} is in section {}, which is not loaded; use .rodata, .data, .bss or .maps",
                    self.name(symbol),
                    target.name
                );
                return Err(self.error(site, ErrorKind::Unsupported, text));
            }
        }
        Ok(())
    }

    /// A call of a function: of the symbol, `imm + 1` slots on; without a relocation, relative to itself.
    fn call(&mut self, site: Site<'o>, reloc: Option<&Reloc>) -> Result<(), Error> {
        let (section, base) = match reloc {
            None => (site.function.section, site.offset),
            Some(reloc) => {
                let (symbol, section) = self.target(site, reloc)?;
                if self.image().sections[section].role != Role::Code {
                    let text = format!("call of {}, which is no function", self.name(symbol));
                    return Err(self.error(site, ErrorKind::BadJump, text));
                }
                (section, symbol.value)
            }
        };
        let target = base.checked_add_signed((i64::from(self.imm(site.pc)) + 1) * 8);
        let target =
            target.ok_or_else(|| self.error(site, ErrorKind::BadJump, "call to before the section"))?;
        let distance = self.distance(site, section, target)?;
        self.patch(site.pc, PSEUDO_CALL, distance, 0);
        Ok(())
    }

    /// Slots from behind the instruction to the function at that byte of that section.
    fn distance(&mut self, site: Site<'o>, section: usize, offset: u64) -> Result<i32, Error> {
        let Some(id) = self.object.functions.starting_at(section, offset) else {
            let text = format!("no function starts at {}+{offset:#x}", self.image().sections[section].name);
            return Err(self.error(site, ErrorKind::BadJump, text));
        };
        let start = self.place(id)?;
        // Both are below MAX_PROGRAM_SLOTS.
        Ok(start.0 as i32 - site.pc.0 as i32 - 1)
    }

    fn map(&mut self, site: Site<'o>, symbol: &Symbol, section: usize, offset: u64) -> Result<u16, Error> {
        if let Some(index) = self.map_ids.get(&(section, offset)) {
            return Ok(*index);
        }
        let decl = self.object.maps.at(section, offset).ok_or_else(|| {
            let text = format!("{}{:+} is not the start of a map", self.name(symbol), self.imm(site.pc));
            self.error(site, ErrorKind::BadMap, text)
        })?;
        let index = self.add_map((section, offset), decl.clone()?)?;
        if let Some(slots) = self.object.maps.slots(section, offset) {
            self.tail_targets(index, section, slots)?;
        }
        Ok(index)
    }

    /// What the object puts into the slots of a program array, as libbpf reads it: a relocation per slot, of 8 bytes.
    fn tail_targets(&mut self, map: u16, section: usize, (start, end): (u64, u64)) -> Result<(), Error> {
        let entries = u64::from(self.maps.get(usize::from(map)).map_or(0, |m| m.max_entries));
        let mut slots = BTreeMap::new();
        for reloc in self.image().relocs(section).iter().filter(|r| (start..end).contains(&r.offset)) {
            let bad = |text: String| {
                let name = &self.image().sections[section].name;
                Err(error_at(Stage::Link, ErrorKind::BadMap, name, reloc.offset, text))
            };
            let slot = (reloc.offset - start) / 8;
            let symbol = &self.image().symbols[reloc.symbol];
            let data = usize::try_from(reloc.offset).ok();
            let addend = data.and_then(|at| u32_at(self.image().data(section), at)).unwrap_or_default();
            let target = match symbol.place {
                Place::Section(code) => self
                    .object
                    .functions
                    .starting_at(code, symbol.value + u64::from(addend))
                    .map(|id| (code, id)),
                _ => None,
            };
            let Some((code, id)) = target.filter(|_| slot < entries) else {
                return bad(format!("slot {slot} of a program array: {} is no function", self.name(symbol)));
            };
            let hook = |section: &str| section.split('/').next().unwrap_or_default().to_owned();
            let (of, ours) = (&self.image().sections[code].name, self.hook());
            if hook(of) != ours {
                return bad(format!(
                    "{} is for hook {}, this program for {ours}",
                    self.name(symbol),
                    hook(of)
                ));
            }
            let pc = self.place(id)?;
            // Below `entries`, which are 32 bits.
            slots.insert(slot as u32, pc);
        }
        self.tails.push(TailTargets { map: MapIdx(map), slots });
        Ok(())
    }

    /// The hook that the entry's section names, without what follows a slash.
    fn hook(&self) -> String {
        let entry = self.order.first().map(|id| self.object.functions.get(*id).section);
        let section = entry.map_or("", |s| self.image().sections[s].name.as_str());
        section.split('/').next().unwrap_or_default().to_owned()
    }

    fn global(&mut self, section: usize, read_only: bool) -> Result<u16, Error> {
        if let Some(index) = self.map_ids.get(&(section, 0)) {
            return Ok(*index);
        }
        self.add_map((section, 0), self.object.maps.global(self.image(), section, read_only)?)
    }

    fn add_map(&mut self, key: (usize, u64), decl: MapDecl) -> Result<u16, Error> {
        let at = || At::Map(decl.name.clone());
        if self.maps.len() >= MAX_MAPS {
            let text = format!("the program uses more than {MAX_MAPS} maps");
            return Err(Error::new(Stage::Map, ErrorKind::TooLarge, at(), text));
        }
        if self.maps.iter().any(|m| m.name == decl.name) {
            let text = "the program uses two maps of this name; maps are told apart by name";
            return Err(Error::new(Stage::Map, ErrorKind::BadMap, at(), text));
        }
        let index = self.maps.len() as u16;
        self.maps.push(decl);
        self.map_ids.insert(key, index);
        Ok(index)
    }

    /// The symbol of a relocation and the section that it is in.
    fn target(&self, site: Site<'o>, reloc: &Reloc) -> Result<(&'o Symbol, usize), Error> {
        let symbol = &self.image().symbols[reloc.symbol];
        match symbol.place {
            Place::Section(section) => Ok((symbol, section)),
            Place::Undefined => {
                let text = format!(
                    "{} is not defined in the object; externs, kfuncs, kernel symbols and kconfig do not exist here",
                    self.name(symbol)
                );
                Err(self.error(site, ErrorKind::NotFound, text))
            }
            Place::Special => {
                let text = format!("{} is an absolute or common symbol", self.name(symbol));
                Err(self.error(site, ErrorKind::Unsupported, text))
            }
        }
    }

    fn unexpected(&self, site: Site<'o>, opcode: u8, reloc: &Reloc) -> Error {
        let symbol = &self.image().symbols[reloc.symbol];
        let text = format!(
            "relocation type {} against {} on opcode {opcode:#04x} is not supported; known are R_BPF_64_64 (1) on \
             64-bit immediate loads and R_BPF_64_32 (10) on calls of functions",
            reloc.kind,
            self.name(symbol)
        );
        self.error(site, ErrorKind::Unsupported, text)
    }

    fn name(&self, symbol: &Symbol) -> String {
        let name = self.image().symbol_name(symbol);
        if name.is_empty() { "an unnamed symbol".to_owned() } else { name }
    }

    #[cold]
    fn error(&self, site: Site<'o>, kind: ErrorKind, text: impl Into<String>) -> Error {
        let section = &self.image().sections[site.function.section].name;
        let text = format!("in {}: {}", site.function.name, text.into());
        error_at(Stage::Link, kind, section, site.offset, text)
    }

    fn slot(&self, pc: Pc) -> [u8; 8] {
        let at = pc.index() * 8;
        self.code.get(at..at + 8).and_then(|slot| slot.try_into().ok()).unwrap_or_default()
    }

    fn imm(&self, pc: Pc) -> i32 {
        let [.., a, b, c, d] = self.slot(pc);
        i32::from_le_bytes([a, b, c, d])
    }

    /// Sets the source field and the immediate, and for `lddw` the immediate of the second slot.
    fn patch(&mut self, pc: Pc, src: u8, imm: i32, second: i32) {
        let slot = &mut self.code[pc.index() * 8..];
        slot[1] = slot[1] & 0x0f | src << 4;
        slot[4..8].copy_from_slice(&imm.to_le_bytes());
        if slot[0] == LDDW {
            slot[12..16].copy_from_slice(&second.to_le_bytes());
        }
    }
}
