//! `ringfence schema`: hooks as data: which there are, what a policy sees and decides there, and headers made from them.

use super::{Exit, Out};
use crate::schema::{Field, FieldRights, Schema};
use anyhow::bail;
use ringfence_translator::verify::RankLabel;
use serde_json::{Value, json};
use std::io;
use std::path::{Path, PathBuf};

mod header;

/// Arguments of `ringfence schema`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List NCCL's hooks, and those of the given files.
    List {
        /// Schema of a library's hook. May be repeated.
        #[arg(long, value_name = "FILE")]
        schema: Vec<PathBuf>,
        /// One JSON object a line.
        #[arg(long)]
        json: bool,
    },
    /// Show what a policy sees and may decide on a hook.
    Show {
        /// A hook of NCCL's, or the file of a schema.
        #[arg(value_name = "NAME|FILE")]
        hook: String,
        /// One JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Write the context of a hook as a C header, for policies and for the library that asks them.
    Header {
        /// A hook of NCCL's, or the file of a schema.
        #[arg(value_name = "NAME|FILE")]
        hook: String,
        /// Rust in place of C.
        #[arg(long)]
        rust: bool,
    },
}

impl Args {
    pub(super) fn json(&self) -> bool {
        matches!(self.action, Action::List { json: true, .. } | Action::Show { json: true, .. })
    }
}

/// Runs the command.
pub(super) fn run(args: &Args, out: Out<'_>) -> anyhow::Result<Exit> {
    match &args.action {
        Action::List { schema, json } => list(schema, *json, out)?,
        Action::Show { hook, json: true } => writeln!(out, "{}", whole(&*find(hook)?))?,
        Action::Show { hook, json: false } => show(&*find(hook)?, out)?,
        Action::Header { hook, rust: false } => write!(out, "{}", header::c(&*find(hook)?))?,
        Action::Header { hook, rust: true } => write!(out, "{}", header::rust(&*find(hook)?))?,
    }
    Ok(Exit::Ok)
}

/// Makes the schemas of files hooks of this process, as `--schema FILE` asks.
pub(super) fn intern_all(files: &[PathBuf]) -> anyhow::Result<()> {
    files.iter().try_for_each(|file| Ok(Schema::read(file)?.intern().map(drop)?))
}

/// A hook of NCCL's by its name, or else the schema of a file. A name that is both means the hook; `./NAME` the file.
fn find(text: &str) -> anyhow::Result<Box<Schema>> {
    if let Some(known) = Schema::builtin(text) {
        return Ok(Box::new(known.clone()));
    }
    let path = Path::new(text);
    if !path.exists() {
        let names: Vec<&str> = Schema::all_builtin().map(Schema::name).collect();
        bail!("{text} is neither a file nor a hook of NCCL's; there are {}", names.join(", "));
    }
    Ok(Box::new(Schema::read(path)?))
}

fn list(files: &[PathBuf], json: bool, out: Out<'_>) -> anyhow::Result<()> {
    let loaded = files.iter().map(|f| Schema::read(f)).collect::<Result<Vec<_>, _>>()?;
    let known: Vec<&Schema> = Schema::all_builtin().map(|s| -> &Schema { s }).chain(&loaded).collect();
    for schema in known {
        if json {
            writeln!(out, "{}", brief(schema))?;
        } else {
            let (bytes, about) = (schema.size(), schema.about());
            writeln!(out, "{:<16} {bytes:>5} bytes  {about}", schema.name())?;
        }
    }
    Ok(())
}

fn show(schema: &Schema, out: Out<'_>) -> io::Result<()> {
    let (name, hash) = (schema.name(), schema.hash().to_string());
    writeln!(out, "{name}: {}", or(schema.about(), "(says nothing about itself)"))?;
    writeln!(out, "  {} bytes, sections {name} and {name}/ANYTHING, sha256:{}", schema.size(), &hash[..12])?;
    let wide = schema.fields().iter().map(|f| shape(f).len()).max().unwrap_or(0).max(5);
    writeln!(out, "  {:>6}  {:<wide$}  {:<6}  {:<7}  what", "offset", "field", "right", "rank")?;
    for field in schema.fields() {
        let what: Vec<String> =
            [in_unit(field), values(field), allowed(field)].into_iter().flatten().collect();
        let (at, right, rank) = (field.offset, right(field), rank(field));
        writeln!(out, "  {at:>6}  {:<wide$}  {right:<6}  {rank:<7}  {}", shape(field), what.join("; "))?;
    }
    if schema.decided().next().is_none() {
        writeln!(out, "  A policy decides nothing here; it observes.")?;
    }
    Ok(())
}

/// `name u32`, `cost_ns u32[21]`.
fn shape(field: &Field) -> String {
    let bits = 8 * field.width;
    match field.count {
        1 => format!("{} u{bits}", field.name),
        n => format!("{} u{bits}[{n}]", field.name),
    }
}

/// What it is, and its unit where the sentence does not have it.
fn in_unit(field: &Field) -> Option<String> {
    let about = field.about.strip_suffix('.').unwrap_or(&field.about);
    match (about, field.unit.as_str()) {
        ("", "") => None,
        ("", unit) => Some(unit.to_owned()),
        (about, "") => Some(about.to_owned()),
        (about, unit) => Some(format!("{about} [{unit}]")),
    }
}

fn values(field: &Field) -> Option<String> {
    let mut named: Vec<_> = field.values.iter().collect();
    named.sort_by_key(|(_, n)| **n);
    let text: Vec<_> = named.iter().map(|(name, n)| format!("{name} = {n}")).collect();
    (!text.is_empty()).then(|| text.join(", "))
}

/// The range that may be decided, and the default.
fn allowed(field: &Field) -> Option<String> {
    if field.rights == FieldRights::Read {
        return None;
    }
    let default = field.value_name(field.default).map_or(field.default.to_string(), str::to_owned);
    Some(match (field.min, field.max) {
        (None, None) => format!("default {default}"),
        (min, max) => {
            format!(
                "{} to {}, default {default}",
                min.unwrap_or(0),
                max.map_or("the greatest".into(), |n| n.to_string())
            )
        }
    })
}

fn or<'a>(text: &'a str, other: &'a str) -> &'a str {
    if text.is_empty() { other } else { text }
}

fn right(field: &Field) -> &'static str {
    match field.rights {
        FieldRights::Read => "read",
        FieldRights::Decide => "decide",
    }
}

fn rank(field: &Field) -> &'static str {
    match field.rank {
        RankLabel::Uniform => "uniform",
        RankLabel::RankLocal => "local",
    }
}

fn brief(schema: &Schema) -> Value {
    json!({
        "name": schema.name(),
        "about": schema.about(),
        "size": schema.size(),
        "fields": schema.fields().len(),
        "decided": schema.decided().map(|f| &f.name).collect::<Vec<_>>(),
        "file": schema.file(),
        "sha256": schema.hash().to_string(),
    })
}

fn whole(schema: &Schema) -> Value {
    let fields = schema.fields().iter().map(|f| {
        json!({
            "name": f.name,
            "offset": f.offset,
            "width": f.width,
            "count": f.count,
            "rights": right(f),
            "rank": rank(f),
            "unit": f.unit,
            "about": f.about,
            "min": f.min,
            "max": f.max,
            "values": f.values,
            "default": (f.rights == FieldRights::Decide).then_some(f.default),
        })
    });
    let fields: Vec<_> = fields.collect();
    let mut json = brief(schema);
    json["fields"] = fields.into();
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(schema: &Schema) -> String {
        let mut out = Vec::new();
        show(schema, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn fields_are_shown_with_units_values_and_ranges() {
        let text = shown(Schema::builtin("tuner").unwrap());
        let row = |name: &str| {
            let line = text.lines().find(|l| l.contains(name)).unwrap();
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert!(row(" n_bytes u64").starts_with("0 n_bytes u64 read uniform Size of the collective"));
        assert!(row(" n_bytes u64").ends_with("[bytes]"));
        assert!(row("decision_algo u32").contains("tree = 0, ring = 1,"), "{text}");
        assert!(row("decision_algo u32").ends_with("default unset"), "{text}");
        assert!(row("cost_ns u32[21]").starts_with("88 cost_ns u32[21] read local"));
    }

    #[test]
    fn what_only_observes_says_so() {
        let schema = Schema::parse("name='x'\nsize=8\n", "x.toml").unwrap();
        assert!(shown(&schema).contains("observes"));
    }

    #[test]
    fn a_name_or_a_file_is_found_and_the_rest_is_listed() {
        assert_eq!(find("tuner").unwrap().name(), "tuner");
        let e = find("no-such-hook").unwrap_err().to_string();
        assert!(e.contains("there are tuner, "), "{e}");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.toml");
        std::fs::write(&path, "name='cli-test'\nsize=8\n").unwrap();
        assert_eq!(find(path.to_str().unwrap()).unwrap().name(), "cli-test");
        std::fs::write(&path, "name='cli-test'\nsize=7\n").unwrap();
        let e = find(path.to_str().unwrap()).unwrap_err().to_string();
        assert!(e.contains("x.toml: line 2, column 6: size: 7 must be"), "{e}");
    }

    #[test]
    fn json_has_every_field() {
        let tuner = Schema::builtin("tuner").unwrap();
        let json = whole(tuner);
        assert_eq!(json["fields"].as_array().unwrap().len(), tuner.fields().len());
        assert_eq!(json["fields"][0]["name"], "n_bytes");
        assert_eq!(json["decided"][2], "decision_channels");
    }
}
