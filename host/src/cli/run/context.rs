//! [`fill`]: the context of any hook from `NAME=VALUE` settings, and what a policy made of it as text and as JSON.

use crate::cli::number;
use crate::schema::{Field, Schema};
use anyhow::{Context, bail, ensure};
use serde_json::{Map, Value};
use std::fmt::Write;

/// A context of zeros and defaults with the settings applied in order. An element of an array is `NAME[3]=VALUE`; several from the
/// first on are `NAME=V,V,V`. A value is a number, or one of the names that the schema gives to numbers.
pub(super) fn fill(schema: &Schema, settings: &[String]) -> anyhow::Result<Vec<u8>> {
    let mut ctx = schema.blank();
    for setting in settings {
        set(schema, &mut ctx, setting).with_context(|| setting.clone())?;
    }
    Ok(ctx)
}

fn set(schema: &Schema, ctx: &mut [u8], setting: &str) -> anyhow::Result<()> {
    let (place, value) = setting.split_once('=').context("is not NAME=VALUE")?;
    let (name, first) = match place.strip_suffix(']').and_then(|p| p.split_once('[')) {
        Some((name, index)) => (name, index.parse().context("the index is no number")?),
        None => (place, 0),
    };
    let Some(field) = schema.field(name) else {
        let names: Vec<&str> = schema.fields().iter().map(|f| f.name.as_str()).collect();
        bail!("\"{name}\" is no field of hook {}; set any of {}", schema.name(), names.join(", "));
    };
    for (i, text) in value.split(',').enumerate() {
        let number = number_of(field, text)?;
        ensure!(number <= field.greatest(), "{number} does not fit into {} bits", 8 * field.width);
        let index = u32::try_from(i).ok().and_then(|i| i.checked_add(first));
        let done = index.is_some_and(|index| field.put(ctx, index, number));
        ensure!(done, "{name} has {} element{}", field.count, if field.count == 1 { "" } else { "s" });
    }
    Ok(())
}

fn number_of(field: &Field, text: &str) -> anyhow::Result<u64> {
    match field.values.get(text) {
        Some(n) => Ok(*n),
        None => number::parse(text),
    }
}

/// The decided fields: `mode = low_latency (0, was high_throughput)`.
pub(super) fn text(schema: &Schema, before: &[u8], after: &[u8]) -> String {
    let mut out = String::new();
    for field in schema.decided() {
        let (old, new) = (shown(field, before), shown(field, after));
        // Writing to a string does not fail.
        let _ = match old == new {
            true => writeln!(out, "  {} = {new}", field.name),
            false => writeln!(out, "  {} = {new} (was {old})", field.name),
        };
    }
    out
}

fn shown(field: &Field, ctx: &[u8]) -> String {
    let one = |i| {
        let n = field.get(ctx, i).unwrap_or(0);
        field.value_name(n).map_or(n.to_string(), |name| format!("{name} ({n})"))
    };
    (0..field.count).map(one).collect::<Vec<_>>().join(", ")
}

/// The decided fields, by name: a number, or an array of them.
pub(super) fn json(schema: &Schema, ctx: &[u8]) -> Value {
    let decided = schema.decided().map(|field| {
        let all: Vec<Value> = (0..field.count).filter_map(|i| field.get(ctx, i)).map(Value::from).collect();
        let value = if field.count == 1 { all.into_iter().next().unwrap_or(Value::Null) } else { all.into() };
        (field.name.clone(), value)
    });
    Value::Object(decided.collect::<Map<_, _>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema() -> Schema {
        let field = |name: &str, at: u32, more: &str| {
            format!("[[field]]\nname = '{name}'\noffset = {at}\nwidth = 2\nrank = 'uniform'\n{more}\n")
        };
        let text = "name = 'run-test'\nsize = 16\n".to_owned()
            + &field("a", 0, "rights = 'read'")
            + &field("list", 2, "count = 3\nrights = 'read'")
            + &field("mode", 8, "rights = 'decide'\nvalues = { low = 1, high = 2 }\ndefault = 2");
        Schema::parse(&text, "x.toml").unwrap()
    }

    fn filled(settings: &[&str]) -> anyhow::Result<Vec<u8>> {
        fill(&schema(), &settings.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn numbers_names_and_elements_arrive() {
        let ctx = filled(&["a=0x102", "list=1,2", "list[2]=3", "mode=low"]).unwrap();
        assert_eq!(ctx[..10], [2, 1, 1, 0, 2, 0, 3, 0, 1, 0]);
        assert_eq!(filled(&[]).unwrap()[8], 2, "the default");
    }

    #[test]
    fn what_does_not_fit_is_refused_with_its_setting() {
        for (setting, want) in [
            ("a", "a: is not NAME=VALUE"),
            ("b=1", "b=1: \"b\" is no field of hook run-test; set any of a, list, mode"),
            ("a=65536", "a=65536: 65536 does not fit into 16 bits"),
            ("a=1,2", "a=1,2: a has 1 element"),
            ("list[3]=1", "list[3]=1: list has 3 elements"),
            ("list[4294967295]=1,2", "list[4294967295]=1,2: list has 3 elements"),
            ("mode=middle", "mode=middle: \"middle\" is no number"),
        ] {
            let e = format!("{:#}", filled(&[setting]).unwrap_err());
            assert!(e.starts_with(want), "want {want}, got {e}");
        }
    }

    #[test]
    fn decisions_are_shown_by_name() {
        let (before, after) = (filled(&[]).unwrap(), filled(&["mode=low"]).unwrap());
        assert_eq!(text(&schema(), &before, &after), "  mode = low (1) (was high (2))\n");
        assert_eq!(text(&schema(), &before, &before), "  mode = high (2)\n");
        assert_eq!(json(&schema(), &after), serde_json::json!({"mode": 1}));
    }
}
