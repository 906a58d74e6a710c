//! [`MapTable`]: the maps that an object declares, in `.maps` (by BTF) or `maps` (`struct bpf_map_def`), and
//! [`global`], which makes a map of a section of global data. A bad definition is kept as an error and comes
//! out when a program uses that map.

use super::btf::{Btf, Member, Type, kind};
use super::image::{Image, Place, Role, Symbol, SymbolKind};
use super::types::Types;
use super::{error_at, lock, u32_at};
use crate::error::{At, Error, ErrorKind, Stage};
use crate::limits::{MAX_KEY_BYTES, MAX_PERCPU_BYTES, MAX_VALUE_BYTES};
use crate::map::{MapDecl, MapKind, SPIN_LOCK_BYTES};
use crate::types::TypeDesc;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// `map_flags`: programs may only read (`BPF_F_RDONLY_PROG`).
const RDONLY_PROG: u32 = 1 << 7;
/// Bytes of the smallest `struct bpf_map_def`: type, key size, value size, entries, flags.
const LEGACY_BYTES: u64 = 20;
/// Unit of a ring buffer's size.
const PAGE: u32 = 4096;
/// More members than any map definition has.
const MAX_MEMBERS: usize = 32;
/// Wrappers around a definition that are looked through (Rust newtypes, `UnsafeCell`).
const MAX_WRAPPERS: usize = 8;

/// Numbers as a definition gives them.
#[derive(Clone, Debug, Default)]
struct Definition {
    kind: u32,
    key_size: Option<u32>,
    value_size: Option<u32>,
    max_entries: u32,
    flags: u32,
    /// `__array(values, ...)`: an array of maps or programs; where it begins in the definition.
    values: Option<u32>,
    /// Of the `struct bpf_spin_lock` in the value.
    spin_lock: Option<u32>,
    key_type: Option<Arc<TypeDesc>>,
    value_type: Option<Arc<TypeDesc>>,
}

/// What BTF says of a section of global data.
#[derive(Clone, Debug, Default)]
struct DataTypes {
    spin_lock: Option<Result<u32, String>>,
    vars: Option<Arc<TypeDesc>>,
}

/// Maps by section and byte offset of their symbol.
#[derive(Clone, Debug, Default)]
pub(super) struct MapTable {
    maps: BTreeMap<(usize, u64), Result<MapDecl, Error>>,
    /// Where the slots of a program array begin, and where they end at the latest: bytes of the section.
    slots: BTreeMap<(usize, u64), (u64, u64)>,
    /// Of global data, by section.
    data: HashMap<usize, DataTypes>,
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
        let mut described = Types::new(btf);
        let (mut maps, mut slots) = (BTreeMap::new(), BTreeMap::new());
        for (&(section, offset), symbol) in &symbols {
            let name = image.symbol_name(symbol);
            let definition = match image.sections[section].role {
                Role::BtfMaps => from_btf(&name, btf, types.get(&name).copied(), &mut described),
                _ => {
                    let next = symbols.range((section, offset + 1)..=(section, u64::MAX)).next();
                    legacy(image, section, symbol, next.map(|((_, at), _)| *at))
                }
            };
            if let Ok(Definition { values: Some(at), .. }) = &definition {
                let end = if symbol.size == 0 { image.sections[section].size } else { offset + symbol.size };
                slots.insert((section, offset), (offset + u64::from(*at), end));
            }
            maps.insert((section, offset), definition.and_then(|d| d.check(name)));
        }
        MapTable { maps, slots, data: data_types(image, btf, &mut described) }
    }

    /// The bytes of the section in which the slots of that program array lie.
    pub(super) fn slots(&self, section: usize, offset: u64) -> Option<(u64, u64)> {
        self.slots.get(&(section, offset)).copied()
    }

    /// The map of the global data section of that index.
    pub(super) fn global(&self, image: &Image, index: usize, read_only: bool) -> Result<MapDecl, Error> {
        let decl = global(image, index, read_only)?;
        let DataTypes { spin_lock, vars: value_type } = self.data.get(&index).cloned().unwrap_or_default();
        let spin_lock = spin_lock.transpose().map_err(|why| bad(&decl.name, why))?;
        check_lock(MapDecl { spin_lock, value_type, ..decl })
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

/// What BTF says of all sections of global data.
fn data_types(
    image: &Image,
    btf: Option<&Btf<'_>>,
    described: &mut Types<'_, '_>,
) -> HashMap<usize, DataTypes> {
    let Some(btf) = btf else { return HashMap::new() };
    let global = |s: &&Symbol| s.global && s.kind == SymbolKind::Object;
    let symbols: HashMap<(Place, String), u64> =
        image.symbols.iter().filter(global).map(|s| ((s.place, image.symbol_name(s)), s.value)).collect();
    let mut all = HashMap::new();
    for (index, section) in image.sections.iter().enumerate() {
        if !matches!(section.role, Role::Data { .. }) {
            continue;
        }
        // Of a global variable BTF knows no offset: it is the linker's to fill in, from the symbol (libbpf does it in
        // `btf_fixup_datasec`).
        let fix = |m: Member| match symbols.get(&(Place::Section(index), btf.string(m.name))) {
            Some(at) => Member { offset: u32::try_from(*at).unwrap_or(u32::MAX), ..m },
            None => m,
        };
        let vars: Vec<Member> = btf.section_vars(&section.name).map(fix).collect();
        let size = u32::try_from(section.size).unwrap_or(u32::MAX);
        let spin_lock = lock::in_section(btf, &vars).transpose();
        let vars = described.describe_section(&section.name, size, &vars);
        all.insert(index, DataTypes { spin_lock, vars });
    }
    all
}

impl Definition {
    fn kind(&self, name: &str) -> Result<MapKind, Error> {
        MapKind::from_bpf_type(self.kind)
            .ok_or_else(|| unsupported(name, format!("map type {}", type_name(self.kind))))
    }

    fn check(mut self, name: String) -> Result<MapDecl, Error> {
        let kind = self.kind(&name)?;
        if self.values.is_some() && kind != MapKind::ProgArray {
            return Err(unsupported(&name, "`__array(values, ...)` of maps".to_owned()));
        }
        match kind {
            // As libbpf: neither has to be said.
            MapKind::RingBuf => {
                self.key_size = self.key_size.or(Some(0));
                // A type of values says what records are, for tools; libbpf has no use for it.
                let records = self.value_type.is_some();
                self.value_size = if records { Some(0) } else { self.value_size.or(Some(0)) };
                self.max_entries = ring_bytes(self.max_entries);
            }
            MapKind::ProgArray => self.value_size = self.value_size.or(Some(4)),
            _ => {}
        }
        let decl = MapDecl {
            key_size: self.key_size.ok_or_else(|| bad(&name, "has no key type or key_size"))?,
            value_size: self.value_size.ok_or_else(|| bad(&name, "has no value type or value_size"))?,
            max_entries: self.max_entries,
            flags: self.flags,
            read_only: self.flags & RDONLY_PROG != 0,
            init: Vec::new(),
            spin_lock: self.spin_lock,
            key_type: self.key_type,
            value_type: self.value_type,
            kind,
            name,
        };
        decl.check_flags()
            .map_err(|why| Error::new(Stage::Map, ErrorKind::Unsupported, At::Map(decl.name.clone()), why))?;
        check_lock(check_sizes(decl)?)
    }
}

/// The size of a ring buffer: a power of two of pages, as libbpf rounds it up (`adjust_ringbuf_sz`).
fn ring_bytes(wanted: u32) -> u32 {
    match wanted {
        0 => 0,
        _ => wanted.max(PAGE).checked_next_power_of_two().unwrap_or(wanted),
    }
}

/// Locks go into plain arrays, hashes and global data that may be written (kernel/bpf/syscall.c, `map_check_btf`).
fn check_lock(decl: MapDecl) -> Result<MapDecl, Error> {
    let fits = matches!(decl.kind, MapKind::Array | MapKind::Hash | MapKind::Global) && !decl.read_only;
    match decl.spin_lock {
        Some(_) if !fits => {
            let text = format!("a bpf_spin_lock cannot be in a map of kind {}", decl.kind.name());
            Err(bad(&decl.name, text + if decl.read_only { " that is read-only" } else { "" }))
        }
        Some(at) if at.checked_add(SPIN_LOCK_BYTES).is_none_or(|end| end > decl.value_size) => {
            Err(bad(&decl.name, "the bpf_spin_lock is outside the value"))
        }
        _ => Ok(decl),
    }
}

/// The map of the global data section of that index.
fn global(image: &Image, index: usize, read_only: bool) -> Result<MapDecl, Error> {
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
        ..MapDecl::default()
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
        MapKind::Array | MapKind::PercpuArray | MapKind::ProgArray if decl.key_size != 4 => {
            return Err(bad(name, format!("array with keys of {} bytes; array keys have 4", decl.key_size)));
        }
        kind if kind.is_hash() && decl.key_size == 0 => return Err(bad(name, "hash with empty keys")),
        kind if kind.is_hash() && decl.key_size > MAX_KEY_BYTES => {
            let text = format!("keys of {} bytes; at most {MAX_KEY_BYTES} are allowed", decl.key_size);
            return Err(too_large(name, text));
        }
        MapKind::ProgArray if decl.value_size != 4 => {
            return Err(bad(name, format!("program array with values of {} bytes, not 4", decl.value_size)));
        }
        MapKind::RingBuf => return check_ring(decl),
        _ => {}
    }
    if decl.value_size == 0 {
        return Err(bad(name, "values are empty"));
    }
    if decl.kind.is_percpu() && decl.value_size > MAX_PERCPU_BYTES {
        let text = format!("per-CPU values of {} bytes; at most {MAX_PERCPU_BYTES} fit", decl.value_size);
        return Err(too_large(name, text));
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

/// A ring buffer has neither keys nor values, and a power of two of whole pages (kernel/bpf/ringbuf.c, `ringbuf_map_alloc`).
fn check_ring(decl: MapDecl) -> Result<MapDecl, Error> {
    let name = &decl.name;
    if (decl.key_size, decl.value_size) != (0, 0) {
        return Err(bad(name, "ring buffer with keys or values"));
    }
    if decl.read_only {
        return Err(bad(name, "a ring buffer cannot be read-only"));
    }
    if !decl.max_entries.is_power_of_two() || !decl.max_entries.is_multiple_of(PAGE) {
        let text =
            format!("ring buffer of {} bytes; a power of two of at least {PAGE} is needed", decl.max_entries);
        return Err(bad(name, text));
    }
    if decl.layout().is_none() {
        return Err(too_large(name, format!("ring buffer of {} bytes; at most 1 GiB fit", decl.max_entries)));
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
        ..Definition::default()
    })
}

fn from_btf(
    name: &str,
    btf: Option<&Btf<'_>>,
    ty: Option<u32>,
    described: &mut Types<'_, '_>,
) -> Result<Definition, Error> {
    let missing =
        |text: &str| Err(Error::new(Stage::Btf, ErrorKind::NotFound, At::Map(name.to_owned()), text));
    let Some(btf) = btf else {
        return missing("the object has no BTF, which defines this map; compile with -g");
    };
    let Some(ty) = ty else { return missing("BTF does not describe this variable; compile with -g") };
    let Some(body) = unwrap(btf, ty) else { return Err(bad(name, "is not a struct of map attributes")) };
    let mut out = Definition::default();
    for member in body.members().filter(|m| !is_marker(btf, *m)) {
        attribute(name, btf, member, &mut out, described)?;
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
fn attribute(
    name: &str,
    btf: &Btf<'_>,
    member: Member,
    out: &mut Definition,
    described: &mut Types<'_, '_>,
) -> Result<(), Error> {
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
        "key" => {
            set(name, &what, &mut out.key_size, size()?)?;
            out.key_type = target.and_then(|t| described.describe(t));
        }
        "value" => {
            set(name, &what, &mut out.value_size, size()?)?;
            let lock = target.map_or(Ok(None), |t| lock::in_value(btf, t));
            out.spin_lock = lock.map_err(|why| bad(name, format!("the value {why}")))?;
            out.value_type = target.and_then(|t| described.describe(t));
        }
        "values" => out.values = Some(member.offset),
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
