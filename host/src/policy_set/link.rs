//! [`Members`]: the objects of a set, each program linked; [`Linked`]: a program of the chain with everything that the manifest's `programs`
//! lead to, one program before it is verified.
//!
//! A policy is linked into another once, however many slots and arrays lead to it; tail calls may go in circles, as long as a run makes 33 of
//! them at most. A tail call stays on its hook: the context is the caller's.

use super::{LoadError, LoadErrorKind, choose};
use crate::config::{MANIFEST, Manifest, PolicyEntry, SourceSet};
use crate::hooks::Hook;
use crate::maps::DataOf;
use ringfence_translator::isa::{MapIdx, Pc};
use ringfence_translator::{MapDecl, MapKind, Object, Program};
use std::collections::{BTreeMap, BTreeSet};

/// A slot of a program array, and the function to which it leads: `small.decide` of another policy, `decide` of the object's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TailSlot {
    /// Name of the map.
    pub map: String,
    /// The slot.
    pub slot: u32,
    /// Name of the function, with the name of its policy before it if that is not the one which was asked.
    pub function: String,
}

/// A `[[policy]]` with the programs that it means.
pub(super) struct Member<'a> {
    pub(super) entry: &'a PolicyEntry,
    pub(super) programs: Vec<(Program, Hook)>,
}

/// All of a set's, in the manifest's order.
pub(super) struct Members<'a> {
    manifest: &'a Manifest,
    members: Vec<Member<'a>>,
}

/// A program that is asked on its own, with all targets of its tail calls.
pub(super) struct Linked<'a> {
    pub(super) member: &'a Member<'a>,
    pub(super) hook: Hook,
    pub(super) program: Program,
    /// Whose the global data of other objects is, by the name that it has here.
    pub(super) data: BTreeMap<String, DataOf>,
    /// Where each member begins that is in it.
    starts: BTreeMap<usize, Pc>,
}

impl<'a> Member<'a> {
    fn read(entry: &'a PolicyEntry, bytes: &[u8]) -> Result<Member<'a>, LoadError> {
        let file = entry.file.as_str();
        let translator = |e| LoadError::translator(file, e);
        let object = Object::parse(bytes).map_err(translator)?;
        let chosen = choose(&object, entry)?;
        if entry.ops.is_some() && chosen.iter().all(|(_, hook)| *hook != Hook::Net) {
            let message = "`ops` is for programs on the hook net, and this object has none of them";
            return Err(LoadError::new(LoadErrorKind::Config, file, message));
        }
        let program = |(name, hook): (String, Hook)| Ok((object.program(&name).map_err(translator)?, hook));
        let programs = chosen.into_iter().map(program).collect::<Result<_, LoadError>>()?;
        Ok(Member { entry, programs })
    }

    /// The map of that name, if a program uses it. An object has one of a name.
    fn map(&self, name: &str) -> Option<&MapDecl> {
        self.programs.iter().flat_map(|(program, _)| program.maps()).find(|decl| decl.name == name)
    }

    /// The name, and where it is from.
    fn describe(&self) -> String {
        format!("{} ({})", self.entry.display_name(), self.entry.file)
    }

    fn hooks(&self) -> String {
        self.programs.iter().map(|(_, hook)| hook.name()).collect::<Vec<_>>().join(", ")
    }
}

impl<'a> Members<'a> {
    /// Parses and links what was read, each object for itself.
    pub(super) fn read(read: &'a SourceSet) -> Result<Members<'a>, LoadError> {
        let manifest = &read.manifest;
        let each = manifest.policies.iter().zip(&read.files);
        let members =
            each.map(|(entry, file)| Member::read(entry, &file.bytes)).collect::<Result<_, LoadError>>()?;
        let members = Members { manifest, members };
        members.check_slots()?;
        Ok(members)
    }

    /// The programs of the chain, in its order.
    pub(super) fn linked(&'a self) -> Result<Vec<Linked<'a>>, LoadError> {
        let mut all = Vec::new();
        for (i, member) in self.members.iter().enumerate().filter(|(_, m)| m.entry.chain) {
            for (program, hook) in &member.programs {
                all.push(self.link(i, program, *hook)?);
            }
        }
        self.check_reached(&all)?;
        Ok(all)
    }

    fn link(&'a self, first: usize, program: &Program, hook: Hook) -> Result<Linked<'a>, LoadError> {
        let mut linked = Linked {
            member: &self.members[first],
            hook,
            program: program.clone(),
            data: BTreeMap::new(),
            starts: BTreeMap::from([(first, Pc(0))]),
        };
        let mut next = 0;
        // A target's maps come behind those that are there, so its arrays have their turn.
        while let Some(map) = linked.program.maps().get(next) {
            next += 1;
            let Some((map, slots)) = self.slots_of(map) else { continue };
            for (slot, name) in slots {
                let at = self.place(&mut linked, map, *slot, name)?;
                linked.program.fill_slot(map, *slot, at).map_err(|e| slot_error(map, *slot, e.message()))?;
            }
        }
        Ok(linked)
    }

    /// What the manifest puts into that map, if it is a program array.
    fn slots_of(&self, map: &MapDecl) -> Option<(&'a str, &'a BTreeMap<u32, String>)> {
        let (name, entry) = self.manifest.maps.get_key_value(&map.name)?;
        (map.kind == MapKind::ProgArray).then_some((name, &entry.programs))
    }

    /// Where the policy of that name begins; appended, if it is not there yet.
    fn place(&'a self, linked: &mut Linked<'a>, map: &str, slot: u32, name: &str) -> Result<Pc, LoadError> {
        let found = self.members.iter().position(|m| m.entry.display_name() == name);
        let Some(index) = found else {
            // `config/links.rs` has looked.
            return Err(slot_error(map, slot, format!("no policy is called {name:?}")));
        };
        if let Some(at) = linked.starts.get(&index) {
            return Ok(*at);
        }
        let (target, caller) = (&self.members[index], linked.member);
        let Some((program, _)) = target.programs.iter().find(|(_, hook)| *hook == linked.hook) else {
            let why = format!(
                "{} makes the tail call on the hook {}, and {} has programs for {} only; a tail call stays on its hook",
                caller.describe(),
                linked.hook,
                target.describe(),
                target.hooks()
            );
            return Err(slot_error(map, slot, why));
        };
        let before = linked.program.maps().len();
        let at = linked.program.append(name, program).map_err(|e| {
            let why = format!("linking {} into {}: {e}", target.describe(), caller.entry.display_name());
            LoadError::new(LoadErrorKind::Object, &caller.entry.file, why)
        })?;
        linked.note_data(before, name, &target.entry.file);
        linked.starts.insert(index, at);
        Ok(at)
    }

    /// Does every map with `programs` have those slots, wherever it is declared?
    fn check_slots(&self) -> Result<(), LoadError> {
        for (map, entry) in self.manifest.maps.iter().filter(|(_, m)| !m.programs.is_empty()) {
            let mut declared = self.members.iter().filter_map(|m| Some((m, m.map(map)?))).peekable();
            if declared.peek().is_none() {
                return Err(map_error(map, "no program of the set uses a map of this name".to_owned()));
            }
            for (member, decl) in declared {
                check_slots_of(member, decl, &entry.programs)?;
            }
        }
        Ok(())
    }

    /// Is everything that is no link of the chain reached from one?
    fn check_reached(&self, linked: &[Linked<'_>]) -> Result<(), LoadError> {
        let reached: BTreeSet<usize> = linked.iter().flat_map(|l| l.starts.keys().copied()).collect();
        let idle = self.members.iter().enumerate().find(|(i, m)| !m.entry.chain && !reached.contains(i));
        let Some((index, member)) = idle else { return Ok(()) };
        let message = format!(
            "policy[{index}].chain: false, and no tail call leads to {}: the maps whose `programs` name it are used by no policy \
             of the chain, nor by what that leads to",
            member.describe()
        );
        Err(LoadError::new(LoadErrorKind::Config, MANIFEST, message))
    }
}

impl Linked<'_> {
    /// Name in logs: the manifest's, and the program's if the object has several.
    pub(super) fn name(&self) -> String {
        let name = self.member.entry.display_name();
        if self.member.programs.len() == 1 {
            name.to_owned()
        } else {
            format!("{name}.{}", self.program.name())
        }
    }

    /// All slots that lead somewhere.
    pub(super) fn tails(&self) -> Vec<TailSlot> {
        let program = &self.program;
        let of_map = |(index, decl): (u16, &MapDecl)| {
            let slot = |(slot, pc)| {
                let function = program.func_at(pc).name.clone();
                TailSlot { map: decl.name.clone(), slot, function }
            };
            program.tail_targets(MapIdx(index)).map(slot).collect::<Vec<_>>()
        };
        (0..).zip(program.maps()).flat_map(of_map).collect()
    }

    /// Remembers whose the global data is that came with the policy of that name: the same as if that were asked on its own.
    fn note_data(&mut self, before: usize, name: &str, file: &str) {
        let suffix = format!("@{name}");
        for decl in self.program.maps()[before..].iter().filter(|m| m.kind == MapKind::Global) {
            let section = decl.name.strip_suffix(&suffix).unwrap_or(&decl.name).to_owned();
            self.data.insert(decl.name.clone(), DataOf { policy: file.to_owned(), section });
        }
    }
}

fn check_slots_of(
    member: &Member<'_>,
    decl: &MapDecl,
    programs: &BTreeMap<u32, String>,
) -> Result<(), LoadError> {
    let who = member.describe();
    if decl.kind != MapKind::ProgArray {
        let why =
            format!("in {who} the map is of kind {}; only a prog_array holds programs", decl.kind.name());
        return Err(map_error(&decl.name, why));
    }
    match programs.keys().find(|slot| **slot >= decl.max_entries) {
        None => Ok(()),
        Some(slot) => {
            let why = format!("in {who} the map has no such slot: max_entries is {}", decl.max_entries);
            Err(slot_error(&decl.name, *slot, why))
        }
    }
}

#[cold]
fn map_error(map: &str, why: String) -> LoadError {
    LoadError::new(LoadErrorKind::Config, MANIFEST, format!("maps.{map}.programs: {why}"))
}

#[cold]
fn slot_error(map: &str, slot: u32, why: impl AsRef<str>) -> LoadError {
    map_error(map, format!("slot {slot}: {}", why.as_ref()))
}
