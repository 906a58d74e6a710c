//! [`to`]: what a process answers to a request about its maps.

use super::super::numbers::Numbered;
use super::message::{Bytes, MapInfo, Request, Response, Type};
use crate::maps::{Errno, Map};
use ringfence_translator::MapKind;

/// Most raw bytes of keys, values and records in one answer, and one entry besides.
const PAGE_BYTES: usize = 512 << 10;
/// Most places of a map that are looked at for one answer.
const PAGE_PLACES: u32 = 1 << 18;
/// Most maps in one answer.
const PAGE_MAPS: usize = 64;

/// The answer to a request.
pub(super) fn to(request: &Request, maps: &[Numbered]) -> Response {
    let answer = match request {
        Request::Maps { from } => Ok(list(maps, *from)),
        Request::Dump { map, from } => with_values(maps, *map, "dump").map(|m| dump(m, *from)),
        Request::Get { map, key } => with_values(maps, *map, "get").and_then(|m| get(m, &key.0)),
        Request::Set { map, key, value, flags, slot } => {
            with_values(maps, *map, "set").and_then(|m| set(m, &key.0, &value.0, *flags, *slot))
        }
        Request::Delete { map, key } => with_values(maps, *map, "delete").and_then(|m| delete(m, &key.0)),
        Request::Drain { map } => named(maps, *map).and_then(drain),
    };
    answer.unwrap_or_else(|refused| refused)
}

fn list(maps: &[Numbered], from: u64) -> Response {
    let mut rest = maps.iter().filter(|m| m.id >= from);
    let page: Vec<_> = rest.by_ref().take(PAGE_MAPS).map(info).collect();
    Response::Maps { maps: page, next: rest.next().map(|m| m.id) }
}

fn info(numbered: &Numbered) -> MapInfo {
    let (map, decl) = (&numbered.map, numbered.map.decl());
    MapInfo {
        id: numbered.id,
        name: decl.name.clone(),
        kind: decl.kind.name().to_owned(),
        scope: numbered.scope.clone(),
        key_size: decl.key_size,
        value_size: decl.value_size,
        max_entries: decl.max_entries,
        flags: decl.flags,
        entries: map.len(),
        slots: map.slots(),
        bytes: map.memory_bytes(),
        dropped: map.dropped(),
        read_only: decl.read_only,
        key_type: decl.key_type.as_deref().map(Type::from),
        value_type: decl.value_type.as_deref().map(Type::from),
    }
}

fn named(maps: &[Numbered], id: u64) -> Result<&Map, Response> {
    let found = maps.iter().find(|m| m.id == id).map(|m| &*m.map);
    found.ok_or_else(|| {
        Response::refused(
            None,
            format!("there is no map {id} any more: a reload dropped it, or its communicator ended"),
        )
    })
}

/// The map, if it has keys and values.
fn with_values<'a>(maps: &'a [Numbered], id: u64, what: &str) -> Result<&'a Map, Response> {
    let map = named(maps, id)?;
    let name = &map.decl().name;
    let why = match map.decl().kind {
        MapKind::RingBuf => format!(
            "{name} is a ring buffer and has no entries to {what}: `ringfence map drain` takes its records"
        ),
        MapKind::ProgArray => {
            format!("{name} is a program array: its slots hold programs, which a policy set fills")
        }
        _ => return Ok(map),
    };
    Err(Response::refused(Some(Errno::INVAL.name()), why))
}

/// Entries from place `from` on, as many as fit.
fn dump(map: &Map, from: u32) -> Response {
    let (mut entries, mut bytes) = (Vec::new(), 0);
    let end = map.places();
    let last = from.saturating_add(PAGE_PLACES).min(end);
    let mut next = from;
    while next < last && bytes < PAGE_BYTES {
        if let Some((key, values)) = map.entry_at(next) {
            bytes += key.len() + values.iter().map(Vec::len).sum::<usize>();
            entries.push((Bytes(key), values.into_iter().map(Bytes).collect()));
        }
        next += 1;
    }
    Response::Entries { entries, next: (next < end).then_some(next) }
}

fn get(map: &Map, key: &[u8]) -> Result<Response, Response> {
    check_key(map, key)?;
    match map.lookup_slots(key) {
        Some(values) => Ok(Response::Values { values: values.into_iter().map(Bytes).collect() }),
        None => Err(failed(map, Errno::NOENT)),
    }
}

fn set(map: &Map, key: &[u8], value: &[u8], flags: u64, slot: Option<u32>) -> Result<Response, Response> {
    check_key(map, key)?;
    let (name, size) = (&map.decl().name, map.decl().value_size);
    if value.len() != size as usize {
        let why = format!("map {name} has values of {size} bytes, {} were given", value.len());
        return Err(Response::refused(Some(Errno::INVAL.name()), why));
    }
    // A map with BPF_F_RDONLY_PROG is read-only for policies alone.
    if map.decl().read_only && map.decl().kind == MapKind::Global {
        let why = format!("map {name} is read-only: it is part of the policy's code");
        return Err(Response::refused(Some(Errno::PERM.name()), why));
    }
    let done = match slot {
        Some(slot) => map.update_slot(key, slot, value, flags),
        None => map.update(key, value, flags),
    };
    done.map(|()| Response::Done).map_err(|errno| failed(map, errno))
}

fn delete(map: &Map, key: &[u8]) -> Result<Response, Response> {
    check_key(map, key)?;
    if !map.decl().kind.is_hash() {
        let (name, kind) = (&map.decl().name, map.decl().kind.name());
        let why =
            format!("map {name} is of kind {kind}, whose entries are always there: set them to zero instead");
        return Err(Response::refused(Some(Errno::INVAL.name()), why));
    }
    map.delete(key).map(|()| Response::Done).map_err(|errno| failed(map, errno))
}

fn drain(map: &Map) -> Result<Response, Response> {
    if map.decl().kind != MapKind::RingBuf {
        let (name, kind) = (&map.decl().name, map.decl().kind.name());
        let why = format!("map {name} is of kind {kind}, not a ring buffer: use `ringfence map dump`");
        return Err(Response::refused(Some(Errno::INVAL.name()), why));
    }
    let mut records = Vec::new();
    map.drain(PAGE_BYTES, |record| records.push(Bytes(record.to_vec())));
    Ok(Response::Records { records, more: !map.is_empty(), dropped: map.dropped() })
}

fn check_key(map: &Map, key: &[u8]) -> Result<(), Response> {
    let (name, size) = (&map.decl().name, map.decl().key_size);
    if key.len() == size as usize {
        return Ok(());
    }
    let why = format!("map {name} has keys of {size} bytes, {} were given", key.len());
    Err(Response::refused(Some(Errno::INVAL.name()), why))
}

fn failed(map: &Map, errno: Errno) -> Response {
    let decl = map.decl();
    let why = match errno {
        Errno::NOENT if decl.kind.is_hash() => "there is no such key".to_owned(),
        Errno::NOENT | Errno::TOO_BIG if !decl.kind.is_hash() => {
            format!("the index is out of range: there are {} entries", decl.max_entries)
        }
        Errno::TOO_BIG => format!("the map is full ({} entries): delete some first", decl.max_entries),
        Errno::EXIST => "the key is there already: leave out --create to replace its value".to_owned(),
        Errno::BUSY => "others keep writing it: try again".to_owned(),
        _ => "the map does not take that".to_owned(),
    };
    Response::refused(Some(errno.name()), format!("map {}: {why}", decl.name))
}
