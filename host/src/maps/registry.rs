//! [`MapRegistry`]: which programs share which maps. [`MapSet`] is what one program got.
//!
//! A map is shared by name within its [`Scope`]; the same name with another shape is an error that names both. The registry
//! holds maps weakly: a map lives as long as an instance, or a plan that is not dropped yet, uses it. A reload resolves the
//! new plan while the old one is alive, so contents survive exactly where name and shape are unchanged.
//!
//! Global data belongs to the policy (its [`Owner::policy`] name, one object). `.data` and `.bss` survive a reload while
//! their size is unchanged, and start anew otherwise; `.rodata` is part of the code, hence shared only by equal contents. A policy
//! into which others are linked, for its tail calls, has their data as they have it themselves ([`DataOf`]).

use super::shape::{check, memory_bytes};
use super::{Map, RankSlot, RankSlots};
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use ringfence_translator::{MapDecl, MapKind};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Who shares a map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// All communicators, within one policy.
    Policy,
    /// All policies, within one communicator.
    Communicator,
    /// Everybody in the process.
    #[default]
    Process,
}

impl Scope {
    /// The scope of that name: `policy`, `communicator`, `process`.
    pub fn parse(name: &str) -> Option<Scope> {
        [Scope::Policy, Scope::Communicator, Scope::Process].into_iter().find(|s| s.name() == name)
    }
    /// The name, as in the manifest.
    pub const fn name(self) -> &'static str {
        match self {
            Scope::Policy => "policy",
            Scope::Communicator => "communicator",
            Scope::Process => "process",
        }
    }
}

/// What the manifest says about maps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScopeRules {
    /// Scope of maps that are not named below.
    pub default: Scope,
    /// Scope by map name.
    pub by_name: BTreeMap<String, Scope>,
    /// Maps that start empty when their shape changed; without this, a changed shape is an error.
    pub reset: BTreeSet<String>,
}

/// For whom maps are resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Name of the policy, the same across reloads: that of its object in the manifest, or the file's.
    pub policy: String,
    /// The communicator: any number that is unique to it in this process.
    pub communicator: u64,
}

/// Global data that a program has from another object, which a tail call leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DataOf {
    /// As [`Owner::policy`] of that object.
    pub(crate) policy: String,
    /// The section, as that object calls it.
    pub(crate) section: String,
}

/// Identity of a map within a registry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Process { name: String },
    Communicator { communicator: u64, name: String },
    Policy { policy: String, name: String },
    Data { policy: String, section: String, size: u32 },
    ReadOnlyData { policy: String, section: String, contents: Vec<u8> },
}

impl Key {
    fn new(decl: &MapDecl, rules: &ScopeRules, owner: &Owner) -> Key {
        let (name, policy) = (decl.name.clone(), owner.policy.clone());
        if decl.kind == MapKind::Global {
            return match decl.read_only {
                true => Key::ReadOnlyData { policy, section: name, contents: decl.init.clone() },
                false => Key::Data { policy, section: name, size: decl.value_size },
            };
        }
        match rules.by_name.get(&name).unwrap_or(&rules.default) {
            Scope::Process => Key::Process { name },
            Scope::Communicator => Key::Communicator { communicator: owner.communicator, name },
            Scope::Policy => Key::Policy { policy, name },
        }
    }
}

impl Key {
    /// Who shares the map, for people.
    fn scope(&self) -> String {
        match self {
            Key::Process { .. } => Scope::Process.name().to_owned(),
            Key::Communicator { communicator, .. } => {
                format!("{} {communicator}", Scope::Communicator.name())
            }
            Key::Policy { policy, .. } | Key::Data { policy, .. } | Key::ReadOnlyData { policy, .. } => {
                format!("{} {policy}", Scope::Policy.name())
            }
        }
    }
}

/// The maps of one program, by [`MapIdx`](ringfence_translator::isa::MapIdx), and whose they are. Keeps them alive.
#[derive(Clone, Debug, Default)]
pub struct MapSet {
    maps: Arc<[Arc<Map>]>,
    slots: Arc<RankSlots>,
    communicator: u64,
}

impl MapSet {
    /// Map `index`.
    #[inline]
    pub fn at(&self, index: usize) -> Option<&Arc<Map>> {
        self.maps.get(index)
    }
    /// The map of that name.
    pub fn get(&self, name: &str) -> Option<&Arc<Map>> {
        self.maps.iter().find(|m| m.decl().name == name)
    }
    /// The same maps for another communicator, which sees its own slot of those that are per CPU.
    #[must_use]
    pub fn for_communicator(&self, communicator: u64) -> MapSet {
        MapSet { communicator, ..self.clone() }
    }
    /// The slot of per-CPU maps that the communicator sees, as long as somebody keeps it.
    pub(crate) fn slot(&self) -> Arc<RankSlot> {
        let slot = self.slots.of(self.communicator);
        self.maps.iter().for_each(|m| m.use_slot(slot.number()));
        slot
    }
    /// All maps, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Map>> {
        self.maps.iter()
    }
    /// Number of maps.
    pub fn len(&self) -> usize {
        self.maps.len()
    }
    /// A program without maps.
    pub fn is_empty(&self) -> bool {
        self.maps.is_empty()
    }
}

/// All maps of a process (or of a test), by name and scope.
#[derive(Debug)]
pub struct MapRegistry {
    engine: Engine,
    /// Bytes that all live maps together may take.
    limit: u64,
    known: Mutex<Known>,
    slots: Arc<RankSlots>,
}

#[derive(Debug, Default)]
struct Known {
    named: HashMap<Key, Weak<Map>>,
    /// All maps that may be alive, also those that lost their name to a reset.
    all: Vec<Weak<Map>>,
}

impl Known {
    fn forget_dropped(&mut self) {
        self.named.retain(|_, map| map.strong_count() > 0);
        self.all.retain(|map| map.strong_count() > 0);
    }
    fn alive(&self) -> impl Iterator<Item = Arc<Map>> {
        self.all.iter().filter_map(Weak::upgrade)
    }
    fn bytes(&self) -> u64 {
        self.alive().map(|m| m.memory_bytes()).sum()
    }
}

/// What a resolution has come to, before it takes effect.
#[derive(Default)]
struct Draft {
    named: HashMap<Key, Arc<Map>>,
    fresh: Vec<Arc<Map>>,
}

/// Default bound on the memory of all maps, in bytes.
pub const DEFAULT_MAP_BYTES: u64 = 256 << 20;

impl MapRegistry {
    /// An empty registry whose maps take at most `limit` bytes together, indexes included.
    pub fn new(engine: &Engine, limit: u64) -> MapRegistry {
        MapRegistry { engine: engine.clone(), limit, known: Mutex::default(), slots: Arc::default() }
    }

    /// The maps for `decls`, existing ones where scope, name and shape agree. All or nothing: on an error no map is made or replaced.
    ///
    /// # Errors
    /// [`ErrorKind::MapShape`] for a name that is in use with another shape (unless `rules.reset` names it),
    /// [`ErrorKind::MapLimit`] when the maps would take too much memory, [`ErrorKind::BadMap`].
    pub fn resolve(&self, decls: &[MapDecl], rules: &ScopeRules, owner: &Owner) -> Result<MapSet> {
        self.resolve_linked(decls, rules, owner, &BTreeMap::new())
    }

    /// As [`MapRegistry::resolve`], for a program into which others are linked: `data` says whose their global data is.
    pub(crate) fn resolve_linked(
        &self,
        decls: &[MapDecl],
        rules: &ScopeRules,
        owner: &Owner,
        data: &BTreeMap<String, DataOf>,
    ) -> Result<MapSet> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.forget_dropped();
        let mut draft = Draft::default();
        let maps: Vec<_> = decls
            .iter()
            .map(|decl| match data.get(&decl.name).filter(|_| decl.kind == MapKind::Global) {
                None => self.resolve_one(decl, rules, Key::new(decl, rules, owner), &known, &mut draft),
                Some(of) => {
                    let decl = MapDecl { name: of.section.clone(), ..decl.clone() };
                    let owner = Owner { policy: of.policy.clone(), communicator: owner.communicator };
                    self.resolve_one(&decl, rules, Key::new(&decl, rules, &owner), &known, &mut draft)
                }
            })
            .collect::<Result<_>>()?;
        known.named.extend(draft.named.iter().map(|(key, map)| (key.clone(), Arc::downgrade(map))));
        known.all.extend(draft.fresh.iter().map(Arc::downgrade));
        let (slots, communicator) = (Arc::clone(&self.slots), owner.communicator);
        Ok(MapSet { maps: maps.into(), slots, communicator })
    }

    /// The live maps, in the order of their making, for `ringfence status` and the like.
    pub fn maps(&self) -> Vec<Arc<Map>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).alive().collect()
    }

    /// The live maps in the same order, each with who shares it: `process`, `communicator 2`, `policy a.bpf.o`; `nobody new` for one
    /// that a reload has replaced and old communicators still use.
    pub(crate) fn scoped_maps(&self) -> Vec<(Arc<Map>, String)> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let scope = |map: &Arc<Map>| {
            let named = |(_, named): &(&Key, &Weak<Map>)| std::ptr::eq(named.as_ptr(), Arc::as_ptr(map));
            known.named.iter().find(named).map_or_else(|| "nobody new".to_owned(), |(key, _)| key.scope())
        };
        known.alive().map(|map| (map.clone(), scope(&map))).collect()
    }

    /// Bytes that the live maps take.
    pub fn memory_bytes(&self) -> u64 {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).bytes()
    }

    fn resolve_one(
        &self,
        decl: &MapDecl,
        rules: &ScopeRules,
        key: Key,
        known: &Known,
        draft: &mut Draft,
    ) -> Result<Arc<Map>> {
        let old = draft.named.get(&key).cloned().or_else(|| known.named.get(&key).and_then(Weak::upgrade));
        let map = match reuse(old, decl, rules)? {
            Some(map) => map,
            None => self.make(decl, known, draft)?,
        };
        draft.named.insert(key, map.clone());
        Ok(map)
    }

    fn make(&self, decl: &MapDecl, known: &Known, draft: &mut Draft) -> Result<Arc<Map>> {
        let used = known.bytes() + draft.fresh.iter().map(|m| m.memory_bytes()).sum::<u64>();
        let need = memory_bytes(decl, check(decl)?);
        if need > self.limit.saturating_sub(used) {
            let (name, shape, limit) = (&decl.name, decl.shape(), self.limit);
            let text = format!("map {name}: {shape} takes {need} bytes; {used} of {limit} are in use");
            return Err(Error::new(ErrorKind::MapLimit, text));
        }
        let map = Arc::new(Map::new(&self.engine, decl)?);
        draft.fresh.push(map.clone());
        Ok(map)
    }
}

/// A known map of that name, if it can serve `decl`.
fn reuse(known: Option<Arc<Map>>, decl: &MapDecl, rules: &ScopeRules) -> Result<Option<Arc<Map>>> {
    let Some(map) = known else { return Ok(None) };
    if map.decl().same_shape(decl) {
        return Ok(Some(map));
    }
    if rules.reset.contains(&decl.name) {
        return Ok(None);
    }
    let text = format!(
        "map {} is in use as {}, and is declared as {}; rename it, give it another scope, or let the manifest reset it",
        decl.name,
        map.shape(),
        decl.shape()
    );
    Err(Error::new(ErrorKind::MapShape, text))
}
