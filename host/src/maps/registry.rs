//! [`MapRegistry`]: which programs share which maps. [`MapSet`] is what one program got.
//!
//! A map is shared by name within its [`Scope`]; the same name with another shape is an error that names both. The registry
//! holds maps weakly: a map lives as long as an instance, or a plan that is not dropped yet, uses it. A reload resolves the
//! new plan while the old one is alive, so contents survive exactly where name and shape are unchanged.
//!
//! Global data belongs to the policy (its [`Owner::policy`] name, one object). `.data` and `.bss` survive a reload while
//! their size is unchanged, and start anew otherwise; `.rodata` is part of the code, hence shared only by equal contents.

use super::{Map, check, memory_bytes, shape};
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
    /// Scope of array and hash maps that are not named below.
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

/// The maps of one program, by [`MapIdx`](ringfence_translator::isa::MapIdx). Keeps them alive.
#[derive(Clone, Debug, Default)]
pub struct MapSet {
    maps: Arc<[Arc<Map>]>,
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
    live: Mutex<HashMap<Key, Weak<Map>>>,
}

/// Default bound on the memory of all maps, in bytes.
pub const DEFAULT_MAP_BYTES: u64 = 256 << 20;

type Live = HashMap<Key, Weak<Map>>;

impl MapRegistry {
    /// An empty registry whose maps take at most `limit` bytes together, indexes included.
    pub fn new(engine: &Engine, limit: u64) -> MapRegistry {
        MapRegistry { engine: engine.clone(), limit, live: Mutex::default() }
    }

    /// The maps for `decls`, existing ones where scope, name and shape agree. All or nothing: on an error no map is made or replaced.
    ///
    /// # Errors
    /// [`ErrorKind::MapShape`] for a name that is in use with another shape (unless `rules.reset` names it),
    /// [`ErrorKind::MapLimit`] when the maps would take too much memory, [`ErrorKind::BadMap`].
    pub fn resolve(&self, decls: &[MapDecl], rules: &ScopeRules, owner: &Owner) -> Result<MapSet> {
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.retain(|_, map| map.strong_count() > 0);
        let mut made: HashMap<Key, Arc<Map>> = HashMap::new();
        let mut maps = Vec::with_capacity(decls.len());
        for decl in decls {
            let key = Key::new(decl, rules, owner);
            let known = made.get(&key).cloned().or_else(|| live.get(&key).and_then(Weak::upgrade));
            let map = match reuse(known, decl, rules)? {
                Some(map) => map,
                None => self.make(decl, &live, &made)?,
            };
            made.insert(key, map.clone());
            maps.push(map);
        }
        live.extend(made.iter().map(|(key, map)| (key.clone(), Arc::downgrade(map))));
        Ok(MapSet { maps: maps.into() })
    }

    /// The live maps of the process scope and all others, for `ringfence status` and the like.
    pub fn maps(&self) -> Vec<Arc<Map>> {
        let live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.values().filter_map(Weak::upgrade).collect()
    }

    /// Bytes that the live maps take.
    pub fn memory_bytes(&self) -> u64 {
        used(&self.live.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn make(&self, decl: &MapDecl, live: &Live, made: &HashMap<Key, Arc<Map>>) -> Result<Arc<Map>> {
        let fresh = made
            .iter()
            .filter(|(key, _)| !live.contains_key(key))
            .map(|(_, m)| m.memory_bytes())
            .sum::<u64>();
        let (need, used) = (memory_bytes(decl, check(decl)?), used(live) + fresh);
        if need > self.limit.saturating_sub(used) {
            let text = format!(
                "map {}: {} takes {need} bytes; {used} of {} are in use",
                decl.name,
                shape(decl),
                self.limit
            );
            return Err(Error::new(ErrorKind::MapLimit, text));
        }
        Map::new(&self.engine, decl).map(Arc::new)
    }
}

fn used(live: &Live) -> u64 {
    live.values().filter_map(Weak::upgrade).map(|m| m.memory_bytes()).sum()
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
        shape(decl)
    );
    Err(Error::new(ErrorKind::MapShape, text))
}
