//! What `ringfence map` prints: maps, entries and records, as lines for people or as JSON.

use crate::cli::Out;
use crate::cli::number;
use crate::cli::table::Table;
use crate::observe::control::message::{Bytes, MapInfo};
use crate::observe::value::{Shown, show};
use serde::Serialize;

#[derive(Serialize)]
struct ListLine<'a> {
    id: u64,
    name: &'a str,
    kind: &'a str,
    scope: &'a str,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    entries: u32,
    slots: u32,
    flags: u32,
    bytes: u64,
    dropped: u64,
    read_only: bool,
    key_type: Option<String>,
    value_type: Option<String>,
}

fn type_name(map: &MapInfo, key: bool) -> Option<String> {
    let ty = if key { &map.key_type } else { &map.value_type };
    ty.as_ref().and_then(|t| t.to_desc()).map(|d| d.name).filter(|n| !n.is_empty())
}

/// All maps.
pub(super) fn list(maps: &[MapInfo], json: bool, out: Out<'_>) -> anyhow::Result<()> {
    if json {
        for m in maps {
            let line = ListLine {
                id: m.id,
                name: &m.name,
                kind: &m.kind,
                scope: &m.scope,
                key_size: m.key_size,
                value_size: m.value_size,
                max_entries: m.max_entries,
                entries: m.entries,
                slots: m.slots,
                flags: m.flags,
                bytes: m.bytes,
                dropped: m.dropped,
                read_only: m.read_only,
                key_type: type_name(m, true),
                value_type: type_name(m, false),
            };
            writeln!(out, "{}", serde_json::to_string(&line)?)?;
        }
        return Ok(());
    }
    let mut table = Table::new(
        0,
        &["id", "name", "kind", "shared by", "key", "value", "entries", "room", "bytes", "dropped"],
    );
    for m in maps {
        let typed = |size: u32, key| match type_name(m, key) {
            Some(name) => format!("{size} {}", name.escape_debug()),
            None => size.to_string(),
        };
        table.row([
            m.id.to_string(),
            m.name.escape_debug().to_string(),
            m.kind.clone(),
            m.scope.escape_debug().to_string(),
            typed(m.key_size, true),
            typed(m.value_size, false),
            m.entries.to_string(),
            m.max_entries.to_string(),
            number::bytes(m.bytes),
            m.dropped.to_string(),
        ]);
    }
    write!(out, "{table}")?;
    Ok(())
}

#[derive(Serialize)]
struct EntryLine {
    key: Shown,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Shown>,
    /// Of per-CPU maps: one a slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    values: Option<Vec<Shown>>,
}

/// A key with its value or values.
pub(super) fn entry(
    map: &MapInfo,
    key: &Bytes,
    values: &[Bytes],
    json: bool,
    out: Out<'_>,
) -> anyhow::Result<()> {
    let key = show(&key.0, &map.key_desc());
    let desc = map.value_desc();
    let mut shown: Vec<_> = values.iter().map(|v| show(&v.0, &desc)).collect();
    let single = map.slots <= 1 && shown.len() == 1;
    if json {
        let value = if single { shown.pop() } else { None };
        let line = EntryLine { key, value, values: (!single).then_some(shown) };
        writeln!(out, "{}", serde_json::to_string(&line)?)?;
        return Ok(());
    }
    if single {
        writeln!(out, "{key} = {}", shown.first().map_or_else(String::new, Shown::to_string))?;
        return Ok(());
    }
    writeln!(out, "{key}")?;
    for (slot, value) in shown.iter().enumerate() {
        writeln!(out, "  slot {slot} = {value}")?;
    }
    Ok(())
}

/// A record of a ring buffer.
pub(super) fn record(map: &MapInfo, record: &Bytes, json: bool, out: Out<'_>) -> anyhow::Result<()> {
    let desc = map.record_desc(record.0.len());
    let shown = show(&record.0, &desc);
    match json {
        true => writeln!(out, "{}", serde_json::to_string(&shown)?)?,
        false => writeln!(out, "{shown}")?,
    }
    out.flush()?;
    Ok(())
}
