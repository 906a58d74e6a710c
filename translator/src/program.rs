//! [`Program`]: decoded and linked code. It means: every slot is decoded, relocations are done, jumps land
//! on instruction starts inside their own function, and maps are named.

use crate::error::{At, Error, ErrorKind, Stage};
use crate::isa::{Insn, MapIdx, Pc};
use crate::map::MapDecl;
use std::collections::BTreeMap;

mod link;
mod merge;
#[cfg(all(test, feature = "asm"))]
mod merge_tests;
pub(crate) use link::LinkInput;

/// A function of a program: the entry, or a target of bpf-to-bpf calls and callbacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Func {
    /// Symbol name (or `func_PC` if there is none).
    pub name: String,
    /// First slot.
    pub start: Pc,
    /// One past the last slot.
    pub end: Pc,
    /// The symbol is global: the kernel would verify it on its own (we verify each call), and no such function may be called
    /// while a spin lock is held.
    pub global: bool,
}

impl Func {
    /// A static function.
    pub(crate) fn new(name: String, start: Pc, end: Pc) -> Func {
        Func { name, start, end, global: false }
    }
}

/// A line of source, from BTF.ext line info.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLine {
    /// File as the compiler recorded it.
    pub file: String,
    /// Line, from 1.
    pub line: u32,
    /// Text of the line as recorded; may be empty.
    pub text: String,
}

/// Decoded, linked code of one entry point, with the targets of its tail calls. Made by [`Object::program`](crate::Object::program) or
/// [`Program::from_code`] alone; [`Program::append`] and [`Program::fill_slot`] add targets from other objects.
#[derive(Clone, Debug)]
pub struct Program {
    pub(crate) name: String,
    pub(crate) section: String,
    /// Indexed by slot; `None` for the second slot of `lddw`.
    pub(crate) insns: Vec<Option<Insn>>,
    /// Ordered by start; the first is the entry at pc 0; together they cover all slots.
    pub(crate) funcs: Vec<Func>,
    pub(crate) maps: Vec<MapDecl>,
    /// (first slot, line), ordered.
    pub(crate) lines: Vec<(Pc, SourceLine)>,
    /// What lies in the slots of program arrays.
    pub(crate) tails: Vec<TailTargets>,
}

/// The functions in the slots of a program array, as the object initialises them or [`Program::fill_slot`] put them there. Each is an
/// entry point of its own: a tail call ends the function that makes it and begins the target, with the context and an empty stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TailTargets {
    pub(crate) map: MapIdx,
    /// By slot; a slot that is not named is empty.
    pub(crate) slots: BTreeMap<u32, Pc>,
}

impl Program {
    /// Raw code without maps: little-endian slots, the entry function first. Functions are found by their calls.
    ///
    /// # Errors
    /// Code that is empty, too long or no multiple of 8 bytes; a slot that is no instruction; a jump or call that
    /// lands outside its function or program, or inside `lddw`.
    pub fn from_code(name: &str, code: &[u8]) -> Result<Program, Error> {
        Program::with_maps(name, code, Vec::new())
    }

    /// Raw code with maps: `lddw` with src 1 holds an index into `maps`, with src 2 also a byte offset in its second imm.
    ///
    /// # Errors
    /// Those of [`Program::from_code`], and a map index or offset out of range.
    pub fn with_maps(name: &str, code: &[u8], maps: Vec<MapDecl>) -> Result<Program, Error> {
        Program::link(LinkInput { name: name.to_owned(), code: code.to_vec(), maps, ..LinkInput::default() })
    }

    /// The same program with functions in the slots of that program array, by name; `None` for an empty slot.
    ///
    /// # Errors
    /// `NotFound` for a map or function that is not there, `BadMap` for a map of another kind or too many slots.
    pub fn with_targets(mut self, map: &str, targets: &[Option<&str>]) -> Result<Program, Error> {
        let missing = |what: &str| {
            let text = format!("the program has no {what}");
            Error::new(Stage::Link, ErrorKind::NotFound, At::Map(map.to_owned()), text)
        };
        let index = self.maps.iter().position(|m| m.name == map).ok_or_else(|| missing("such map"))?;
        let find = |name: &str| self.funcs.iter().find(|f| f.name == name).map(|f| f.start);
        let mut slots = BTreeMap::new();
        for (slot, target) in (0..).zip(targets) {
            let Some(name) = target else { continue };
            slots.insert(slot, find(name).ok_or_else(|| missing(&format!("function {name}")))?);
        }
        self.tails.push(TailTargets { map: MapIdx(index as u16), slots });
        self.check_tails()?;
        Ok(self)
    }

    /// The slots of that program array that hold functions, in order, each with the start of its function.
    pub fn tail_targets(&self, map: MapIdx) -> impl Iterator<Item = (u32, Pc)> {
        let slots = self.tails.iter().filter(move |t| t.map == map).flat_map(|t| &t.slots);
        slots.map(|(slot, pc)| (*slot, *pc))
    }

    /// The function in that slot of that program array.
    pub fn tail_target(&self, map: MapIdx, slot: u32) -> Option<Pc> {
        self.tails.iter().filter(|t| t.map == map).find_map(|t| t.slots.get(&slot).copied())
    }

    /// Where runs may begin: the entry function, then every target of a tail call, each once.
    pub(crate) fn roots(&self) -> Vec<Pc> {
        let mut roots = vec![Pc(0)];
        for pc in self.tails.iter().flat_map(|t| t.slots.values()) {
            if !roots.contains(pc) {
                roots.push(*pc);
            }
        }
        roots
    }

    /// Name of the entry function.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// ELF section of the entry function; empty for raw code.
    pub fn section(&self) -> &str {
        &self.section
    }
    /// Number of slots.
    pub fn len(&self) -> usize {
        self.insns.len()
    }
    /// Never true: a program has at least an `exit`.
    pub fn is_empty(&self) -> bool {
        self.insns.is_empty()
    }
    /// The instruction that starts at `pc`.
    pub fn insn(&self, pc: Pc) -> Option<&Insn> {
        self.insns.get(pc.index())?.as_ref()
    }
    /// All instructions with their positions.
    pub fn iter(&self) -> impl Iterator<Item = (Pc, &Insn)> {
        self.insns.iter().enumerate().filter_map(|(i, x)| Some((Pc(i as u32), x.as_ref()?)))
    }
    /// Functions, ordered by start; the first is the entry.
    pub fn funcs(&self) -> &[Func] {
        &self.funcs
    }
    /// The function that holds `pc`.
    pub fn func_at(&self, pc: Pc) -> &Func {
        let i = self.funcs.partition_point(|f| f.start <= pc);
        &self.funcs[i - 1]
    }
    /// Maps, by [`MapIdx`](crate::isa::MapIdx).
    pub fn maps(&self) -> &[MapDecl] {
        &self.maps
    }
    /// Source line of `pc`, where the object has line info.
    pub fn line_at(&self, pc: Pc) -> Option<&SourceLine> {
        let i = self.lines.partition_point(|(p, _)| *p <= pc);
        let (p, line) = &self.lines[i.checked_sub(1)?];
        (self.func_at(*p).start == self.func_at(pc).start).then_some(line)
    }
}
