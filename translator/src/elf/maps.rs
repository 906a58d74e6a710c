//! [`MapTable`]: the maps that an object declares, in `.maps` (by BTF) or `maps` (`struct bpf_map_def`), and
//! [`global`], which makes a map of a section of global data. A bad definition is kept as an error and comes
//! out when a program uses that map.

use super::btf::{Btf, Member, Type, kind};
use super::image::{Image, Place, Role, Symbol, SymbolKind};
use super::{error_at, u32_at};
use crate::error::{At, Error, ErrorKind, Stage};
use crate::limits::{MAX_KEY_BYTES, MAX_VALUE_BYTES};
use crate::map::{MapDecl, MapKind};
use std::collections::{BTreeMap, HashMap};

/// `map_flags`: programs may only read (`BPF_F_RDONLY_PROG`).
const RDONLY_PROG: u32 = 1 << 7;
/// `map_flags`: programs may only write (`BPF_F_WRONLY_PROG`).
const WRONLY_PROG: u32 = 1 << 8;
/// Bytes of the smallest `struct bpf_map_def`: type, key size, value size, entries, flags.
const LEGACY_BYTES: u64 = 20;
/// More members than any map definition has.
const MAX_MEMBERS: usize = 32;
/// Wrappers around a definition that are looked through (Rust newtypes, `UnsafeCell`).
const MAX_WRAPPERS: usize = 8;

/// Numbers as a definition gives them.
#[derive(Clone, Copy, Debug, Default)]
struct Definition {
    kind: u32,
    key_size: Option<u32>,
    value_size: Option<u32>,
    max_entries: u32,
    flags: u32,
    /// `__array(values, ...)`: an array of maps or programs.
    values: bool,
}

/// Maps by section and byte offset of their symbol.
#[derive(Clone, Debug, Default)]
pub(super) struct MapTable {
    maps: BTreeMap<(usize, u64), Result<MapDecl, Error>>,
}

impl MapTable {
    pub(super) fn of(image: &Image, btf: Option<&Btf<'_>>) -> MapTable {
        let types: HashMap<String, u32> = btf
            .into_iter()
            .flat_map(|btf| btf.section_vars(".maps").map(|v| (btf.string(v.name), v.ty)))
            .collect();
        let mut symbols: BTreeMap<(usize, u64), &Symbol> = BTreeMap::new();
        for symbol in &image.symbols {
            let Place::Section(section) = symbol.place else { continue };
            let is_map = matches!(image.sections[section].role, Role::BtfMaps | Role::LegacyMaps);
            if is_map && matches!(symbol.kind, SymbolKind::Object | SymbolKind::None) {
                symbols.entry((section, symbol.value)).or_insert(symbol);
            }
        }
        let mut maps = BTreeMap::new();
        for (&(section, offset), symbol) in &symbols {
            let name = image.symbol_name(symbol);
            let definition = match image.sections[section].role {
                Role::BtfMaps => from_btf(&name, btf, types.get(&name).copied()),
                _ => {
                    let next = symbols.range((section, offset + 1)..=(section, u64::MAX)).next();
                    legacy(image, section, symbol, next.map(|((_, at), _)| *at))
                }
            };
            maps.insert((section, offset), definition.and_then(|d| d.check(name)));
        }
        MapTable { maps }
    }

    /// The map at that byte of that section.
    pub(super) fn at(&self, section: usize, offset: u64) -> Option<&Result<MapDecl, Error>> {
        self.maps.get(&(section, offset))
    }

    /// All maps, in the order of the file.
    pub(super) fn iter(&self) -> impl Iterator<Item = Result<&MapDecl, &Error>> {
        self.maps.values().map(Result::as_ref)
    }
}

impl Definition {
    fn check(self, name: String) -> Result<MapDecl, Error> {
        let kind = match self.kind {
            1 => MapKind::Hash,
            2 => MapKind::Array,
            other => return Err(unsupported(&name, format!("map type {}", type_name(other)))),
        };
        if self.values {
            return Err(unsupported(&name, "`__array(values, ...)`".to_owned()));
        }
        if self.flags & WRONLY_PROG != 0 {
            return Err(unsupported(&name, "BPF_F_WRONLY_PROG".to_owned()));
        }
        let decl = MapDecl {
            key_size: self.key_size.ok_or_else(|| bad(&name, "has no key type or key_size"))?,
            value_size: self.value_size.ok_or_else(|| bad(&name, "has no value type or value_size"))?,
            max_entries: self.max_entries,
            flags: self.flags,
            read_only: self.flags & RDONLY_PROG != 0,
            init: Vec::new(),
            kind,
            name,
        };
        check_sizes(decl)
    }
}

/// The map of the global data section of that index.
pub(super) fn global(image: &Image, index: usize, read_only: bool) -> Result<MapDecl, Error> {
    let section = &image.sections[index];
    if let Some(reloc) = image.relocs(index).first() {
        let text = format!(
            "the data holds the address of {} (relocation type {}), which has no meaning here; avoid tables of \
             pointers, and build Rust with `-C relocation-model=static`",
            image.symbol_name(&image.symbols[reloc.symbol]),
            reloc.kind
        );
        return Err(error_at(Stage::Link, ErrorKind::Unsupported, &section.name, reloc.offset, text));
    }
    let decl = MapDecl {
        name: section.name.clone(),
        kind: MapKind::Global,
        key_size: 4,
        value_size: u32::try_from(section.size).unwrap_or(u32::MAX),
        max_entries: 1,
        flags: if read_only { RDONLY_PROG } else { 0 },
        read_only,
        init: Vec::new(),
    };
    let decl = check_sizes(decl)?;
    let mut init = image.data(index).to_vec();
    // `.bss` has no bytes in the file.
    init.resize(decl.value_size as usize, 0);
    Ok(MapDecl { init, ..decl })
}

fn check_sizes(decl: MapDecl) -> Result<MapDecl, Error> {
    let name = &decl.name;
    match decl.kind {
        MapKind::Array if decl.key_size != 4 => {
            return Err(bad(name, format!("array with keys of {} bytes; array keys have 4", decl.key_size)));
        }
        MapKind::Hash if decl.key_size == 0 => return Err(bad(name, "hash with empty keys")),
        MapKind::Hash if decl.key_size > MAX_KEY_BYTES => {
            let text = format!("keys of {} bytes; at most {MAX_KEY_BYTES} are allowed", decl.key_size);
            return Err(too_large(name, text));
        }
        MapKind::Hash | MapKind::Array | MapKind::Global => {}
    }
    if decl.value_size == 0 {
        return Err(bad(name, "values are empty"));
    }
    if decl.value_size > MAX_VALUE_BYTES {
        return Err(too_large(
            name,
            format!("values of {} bytes; at most {MAX_VALUE_BYTES} are allowed", decl.value_size),
        ));
    }
    if decl.max_entries == 0 {
        return Err(bad(name, "max_entries is 0"));
    }
    if decl.layout().is_none() {
        let text = format!("{} values of {} bytes do not fit into 4 GiB", decl.max_entries, decl.value_size);
        return Err(too_large(name, text));
    }
    Ok(decl)
}

fn legacy(image: &Image, section: usize, symbol: &Symbol, next: Option<u64>) -> Result<Definition, Error> {
    let name = image.symbol_name(symbol);
    let limit = next.unwrap_or(image.sections[section].size);
    let size = if symbol.size == 0 { limit.saturating_sub(symbol.value) } else { symbol.size };
    if size < LEGACY_BYTES {
        return Err(bad(&name, format!("bpf_map_def of {size} bytes; it has at least {LEGACY_BYTES}")));
    }
    // Fields after the flags (inner map, NUMA node, pinning) mean nothing for the kinds that we have.
    let at = usize::try_from(symbol.value).unwrap_or(usize::MAX);
    let word = |i: usize| {
        let found = at.checked_add(i * 4).and_then(|at| u32_at(image.data(section), at));
        found.ok_or_else(|| bad(&name, "bpf_map_def reaches outside its section"))
    };
    Ok(Definition {
        kind: word(0)?,
        key_size: Some(word(1)?),
        value_size: Some(word(2)?),
        max_entries: word(3)?,
        flags: word(4)?,
        values: false,
    })
}

fn from_btf(name: &str, btf: Option<&Btf<'_>>, ty: Option<u32>) -> Result<Definition, Error> {
    let missing =
        |text: &str| Err(Error::new(Stage::Btf, ErrorKind::NotFound, At::Map(name.to_owned()), text));
    let Some(btf) = btf else {
        return missing("the object has no BTF, which defines this map; compile with -g");
    };
    let Some(ty) = ty else { return missing("BTF does not describe this variable; compile with -g") };
    let Some(body) = unwrap(btf, ty) else { return Err(bad(name, "is not a struct of map attributes")) };
    let mut out = Definition::default();
    for member in body.members().filter(|m| !is_marker(btf, *m)) {
        attribute(name, btf, member, &mut out)?;
    }
    Ok(out)
}

/// The struct of attributes behind typedefs and wrappers: structs whose only member with a size (Rust has
/// markers without) is a struct. It cannot be an attribute, because those are pointers.
fn unwrap<'a>(btf: &Btf<'a>, mut ty: u32) -> Option<Type<'a>> {
    for _ in 0..MAX_WRAPPERS {
        let body = btf.resolve(ty).filter(|t| t.kind == kind::STRUCT && t.members().len() <= MAX_MEMBERS)?;
        let mut sized = body.members().filter(|m| !is_marker(btf, *m));
        let only = sized.next().filter(|_| sized.next().is_none());
        match only.filter(|m| btf.resolve(m.ty).is_some_and(|t| t.kind == kind::STRUCT)) {
            Some(inner) => ty = inner.ty,
            None => return Some(body),
        }
    }
    None
}

/// A member without a size, as `PhantomData` leaves behind.
fn is_marker(btf: &Btf<'_>, member: Member) -> bool {
    btf.resolve(member.ty).is_some_and(|t| t.kind == kind::STRUCT && t.size_or_type == 0)
}

/// Reads one attribute: `__uint` is a pointer to an array of that length, `__type` a pointer to the type.
fn attribute(name: &str, btf: &Btf<'_>, member: Member, out: &mut Definition) -> Result<(), Error> {
    let what = btf.string(member.name);
    let target = btf.resolve(member.ty).filter(|t| t.kind == kind::PTR).map(|t| t.size_or_type);
    let number = || {
        let len = target.and_then(|t| btf.resolve(t)?.array()).map(|(_, len)| len);
        len.ok_or_else(|| bad(name, format!("{what} is not a number (`int (*{what})[N]`)")))
    };
    let size = || {
        let size = target.and_then(|t| btf.size_of(t));
        size.ok_or_else(|| bad(name, format!("{what} is not a pointer to a type of known size")))
    };
    match what.as_str() {
        "type" => out.kind = number()?,
        "max_entries" => out.max_entries = number()?,
        "map_flags" => out.flags = number()?,
        "key_size" => set(name, &what, &mut out.key_size, number()?)?,
        "value_size" => set(name, &what, &mut out.value_size, number()?)?,
        "key" => set(name, &what, &mut out.key_size, size()?)?,
        "value" => set(name, &what, &mut out.value_size, size()?)?,
        "values" => out.values = true,
        // Where the kernel would keep it does not concern us: a map lives as long as the host says.
        "pinning" | "numa_node" | "map_extra" => {}
        _ => return Err(bad(name, format!("unknown map attribute {what:?}"))),
    }
    Ok(())
}

fn set(name: &str, what: &str, field: &mut Option<u32>, size: u32) -> Result<(), Error> {
    match field.replace(size) {
        Some(other) if other != size => {
            Err(bad(name, format!("{what} says {size} bytes where an earlier attribute says {other}")))
        }
        _ => Ok(()),
    }
}

/// `BPF_MAP_TYPE_*` in lower case, for messages.
fn type_name(kind: u32) -> String {
    const NAMES: [&str; 34] = [
        "unspec",
        "hash",
        "array",
        "prog_array",
        "perf_event_array",
        "percpu_hash",
        "percpu_array",
        "stack_trace",
        "cgroup_array",
        "lru_hash",
        "lru_percpu_hash",
        "lpm_trie",
        "array_of_maps",
        "hash_of_maps",
        "devmap",
        "sockmap",
        "cpumap",
        "xskmap",
        "sockhash",
        "cgroup_storage",
        "reuseport_sockarray",
        "percpu_cgroup_storage",
        "queue",
        "stack",
        "sk_storage",
        "devmap_hash",
        "struct_ops",
        "ringbuf",
        "inode_storage",
        "task_storage",
        "bloom_filter",
        "user_ringbuf",
        "cgrp_storage",
        "arena",
    ];
    NAMES.get(kind as usize).map_or_else(|| kind.to_string(), |name| format!("{name} ({kind})"))
}

#[cold]
fn bad(map: &str, text: impl Into<String>) -> Error {
    Error::new(Stage::Map, ErrorKind::BadMap, At::Map(map.to_owned()), text)
}

#[cold]
fn too_large(map: &str, text: String) -> Error {
    Error::new(Stage::Map, ErrorKind::TooLarge, At::Map(map.to_owned()), text)
}

#[cold]
fn unsupported(map: &str, what: String) -> Error {
    Error::new(
        Stage::Map,
        ErrorKind::Unsupported,
        At::Map(map.to_owned()),
        format!("{what} is not supported"),
    )
}
