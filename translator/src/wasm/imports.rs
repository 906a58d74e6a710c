//! [`Input`], what is translated, and [`Imports`], what the module needs from outside and at which index.

use crate::cfg::Flow;
use crate::error::{At, Error, ErrorKind, Stage};
use crate::isa::{Insn, MapIdx, Pc};
use crate::limits::MAX_MAPS;
use crate::map::{MapKind, MapLayout};
use crate::program::Program;
use crate::verify::helpers::{FOR_EACH_MAP_ELEM, LOOP, TAIL_CALL, calls_back, is_variadic};
use crate::verify::{Access, Fact, HelperSig, Region, Ways};
use std::collections::{BTreeMap, BTreeSet};

/// Number of `map_lookup_elem`.
const MAP_LOOKUP: u32 = 1;
/// Arguments of any helper where no signature was proved.
const MAX_ARGS: u32 = 5;

/// A program with what is known about it.
#[derive(Clone, Copy)]
pub(super) struct Input<'a> {
    pub(super) program: &'a Program,
    /// By slot; `None` if the program was not verified.
    pub(super) facts: Option<&'a [Option<Fact>]>,
    /// Helpers on offer.
    pub(super) helpers: &'a [HelperSig],
    /// Bytes of the context, if each access is to be held against its region at run time.
    pub(super) check_regions: Option<u32>,
    /// r2 that targets of tail calls get.
    pub(super) ctx_size: u32,
}

impl Input<'_> {
    /// The fact of a reachable instruction; says nothing for an unverified program.
    pub(super) fn fact(&self, pc: Pc) -> Fact {
        self.facts.and_then(|f| f.get(pc.index()).copied().flatten()).unwrap_or_default()
    }

    /// What is known of the memory access at `pc`.
    pub(super) fn access(&self, pc: Pc) -> Access {
        self.fact(pc).access.unwrap_or(Access { region: Region::Mixed, offset: None })
    }

    pub(super) fn helper(&self, id: u32) -> Option<&HelperSig> {
        self.helpers.iter().find(|h| h.id == id)
    }

    /// Arguments that a call of the helper passes: those of its signature if they were proved and are all that it takes, else all five.
    pub(super) fn arity(&self, sig: &HelperSig) -> u32 {
        if self.facts.is_some() && !is_variadic(sig.id) { sig.args.len() as u32 } else { MAX_ARGS }
    }

    /// The maps that a `for_each_map_elem` at `pc` may walk over.
    pub(super) fn walked_maps(&self, pc: Pc) -> Vec<MapIdx> {
        let known = self.fact(pc).call.and_then(|c| c.map);
        let all = (0..).zip(self.program.maps()).filter(|(_, m)| m.kind.has_values());
        match known {
            Some(map) => vec![map],
            None => all.map(|(k, _)| MapIdx(k)).collect(),
        }
    }

    /// The array that the call at `pc` looks up, if it is such a call and can be inlined.
    pub(super) fn array_lookup(&self, pc: Pc, helper: u32) -> Option<MapIdx> {
        let map = self.fact(pc).call?.map?;
        let decl = self.program.maps().get(usize::from(map.0))?;
        let is_array = matches!(decl.kind, MapKind::Array | MapKind::PercpuArray);
        (helper == MAP_LOOKUP && is_array && decl.key_size == 4).then_some(map)
    }
}

impl Flow for Input<'_> {
    fn reachable(&self, pc: Pc) -> bool {
        self.facts.is_none_or(|f| f.get(pc.index()).is_some_and(Option::is_some))
    }
    fn ways(&self, pc: Pc) -> Ways {
        match self.facts {
            None => Ways { taken: true, fallthrough: true },
            Some(_) => self.fact(pc).ways,
        }
    }
}

/// Imports of the module: a memory for each map, then the helpers that are called, ascending, then the walks over hashes, then the
/// slots of per-CPU maps.
pub(super) struct Imports {
    pub(super) maps: Vec<MapLayout>,
    /// Helper number -> arity.
    pub(super) helpers: BTreeMap<u32, u32>,
    /// Hashes that are walked over.
    pub(super) walks: BTreeSet<MapIdx>,
    /// Per-CPU maps, each with a global for its slot.
    pub(super) slots: BTreeSet<MapIdx>,
}

/// Arguments of a walk: place and key address.
pub(super) const WALK_ARGS: u32 = 2;

impl Imports {
    /// What `input` needs.
    ///
    /// # Errors
    /// `TooLarge` or `BadMap` for maps that cannot be laid out, `NotFound` for a helper that is not on offer.
    pub(super) fn new(input: &Input<'_>) -> Result<Imports, Error> {
        let maps = layouts(input.program)?;
        let (mut helpers, mut walks) = (BTreeMap::new(), BTreeSet::new());
        let reachable = input.program.iter().filter(|(pc, _)| input.reachable(*pc));
        for (pc, insn) in reachable {
            match insn {
                Insn::CallHelper { id: FOR_EACH_MAP_ELEM } => {
                    let is_hash = |k: &MapIdx| {
                        input.program.maps().get(usize::from(k.0)).is_some_and(|m| m.kind.is_hash())
                    };
                    walks.extend(input.walked_maps(pc).into_iter().filter(is_hash));
                }
                Insn::CallHelper { id: LOOP | TAIL_CALL } => {}
                Insn::CallHelper { id } if input.array_lookup(pc, *id).is_none() => {
                    let sig = input.helper(*id).ok_or_else(|| unknown_helper(input.program, pc, *id))?;
                    helpers.insert(*id, input.arity(sig));
                }
                Insn::CallReg { .. } => {
                    let plain = input.helpers.iter().filter(|sig| !calls_back(sig.id) && sig.id != TAIL_CALL);
                    helpers.extend(plain.map(|sig| (sig.id, input.arity(sig))));
                }
                _ => {}
            }
        }
        let percpu = (0..).zip(input.program.maps()).filter(|(_, m)| m.kind.is_percpu());
        Ok(Imports { maps, helpers, walks, slots: percpu.map(|(k, _)| MapIdx(k)).collect() })
    }

    /// Index of the private memory.
    pub(super) fn private(&self) -> u32 {
        self.maps.len() as u32
    }

    /// Function index of an imported helper.
    pub(super) fn helper(&self, id: u32) -> Option<u32> {
        self.helpers.contains_key(&id).then(|| self.helpers.range(..id).count() as u32)
    }

    /// Function index of the walk over that map.
    pub(super) fn walk(&self, map: MapIdx) -> Option<u32> {
        let at = self.helpers.len() + self.walks.range(..map).count();
        self.walks.contains(&map).then_some(at as u32)
    }

    /// Index of the global that holds the pointer to a per-CPU map's first value; `None` for other maps.
    pub(super) fn slot(&self, map: MapIdx) -> Option<u32> {
        self.slots.contains(&map).then(|| self.slots.range(..map).count() as u32)
    }

    /// Index of the global that counts tail calls, if there is one.
    pub(super) fn tail_count(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Function index of the program's `n`th function.
    pub(super) fn func(&self, n: usize) -> u32 {
        (self.helpers.len() + self.walks.len() + n) as u32
    }
}

fn layouts(program: &Program) -> Result<Vec<MapLayout>, Error> {
    let maps = program.maps();
    if maps.len() > MAX_MAPS {
        let text = format!("{} maps in one program, at most {MAX_MAPS} are supported", maps.len());
        return Err(Error::new(Stage::Translate, ErrorKind::TooLarge, At::File, text));
    }
    let layout = |m: &crate::map::MapDecl| {
        m.layout().ok_or_else(|| {
            let text = format!(
                "{} entries of {} bytes: a map needs at least one byte and must fit into 4 GiB",
                m.max_entries, m.value_size
            );
            Error::new(Stage::Translate, ErrorKind::BadMap, At::Map(m.name.clone()), text)
        })
    };
    maps.iter().map(layout).collect()
}

#[cold]
fn unknown_helper(program: &Program, pc: Pc, id: u32) -> Error {
    let at = At::Insn { func: program.func_at(pc).name.clone(), pc };
    Error::new(Stage::Translate, ErrorKind::NotFound, at, format!("helper {id} is not on offer"))
}
