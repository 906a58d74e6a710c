//! [`Schema::parse`]: TOML text to a checked schema.

use super::{Field, FieldRights, Schema, SchemaError};
use crate::policy::ContentHash;
use ringfence_translator::verify::RankLabel;
use ringfence_translator::wasm::layout::CTX_MAX;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use toml::Spanned;

/// Most bytes of a schema's file.
pub const MAX_SCHEMA_BYTES: usize = 64 << 10;
/// Most fields of a context.
pub const MAX_FIELDS: usize = 256;
/// Most names of numbers of a field.
const MAX_VALUES: usize = 256;
/// Longest name of a hook or a field in bytes.
const MAX_NAME: usize = 63;

/// First parts of names that belong to NCCL's hooks, sections that mean something else to every loader, and two whose context would
/// be called like one of ringfence.h.
const RESERVED: [&str; 14] = [
    "tuner", "uprobe", "ncclbpf", "profiler", "net", "env", "control", "generic", "license", "maps",
    "version", "text", "coll", "chunk",
];

/// Words that cannot name a member of a struct in C, C++ or Rust. Headers are made from schemas.
const KEYWORDS: &str = " abstract alignas alignof and as asm async auto await become bitand bitor bool box break case \
    catch char class compl const const_cast constexpr continue crate decltype default delete do double dyn else enum \
    explicit export extern false final float fn for friend gen goto if impl in inline int let long loop macro match mod move \
    mut mutable namespace new noexcept not nullptr operator or override priv private protected pub public ref register \
    restrict return self short signed sizeof static struct super switch template this throw trait true try type typedef \
    typeid typename typeof union unsafe unsigned unsized use using virtual void volatile wchar_t where while xor yield ";

/// What serde reads; [`Schema`] is what passed the checks.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    name: Spanned<String>,
    #[serde(default)]
    about: String,
    size: Spanned<i64>,
    #[serde(default, rename = "field")]
    fields: Vec<RawField>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawField {
    name: Spanned<String>,
    offset: i64,
    width: i64,
    #[serde(default = "one")]
    count: i64,
    rights: FieldRights,
    rank: Rank,
    #[serde(default)]
    unit: String,
    #[serde(default)]
    about: String,
    min: Option<i64>,
    max: Option<i64>,
    #[serde(default)]
    values: BTreeMap<String, i64>,
    default: Option<i64>,
}

fn one() -> i64 {
    1
}

/// How a file spells [`RankLabel`].
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Rank {
    Uniform,
    Local,
}

impl Schema {
    /// Reads the text of a schema; `file` names it in messages.
    ///
    /// # Errors
    /// Text that is too long or no TOML, unknown or missing keys, a reserved or bad name, and fields that overlap, are
    /// misaligned, lie outside the context, have a width that no access has, or say what cannot be.
    pub fn parse(text: &str, file: &str) -> Result<Schema, SchemaError> {
        let raw = Text { text, file }.read()?;
        let reserved = raw.name.get_ref().split('/').next().is_some_and(|head| RESERVED.contains(&head));
        if reserved {
            let name = raw.name.get_ref();
            return Err(Text { text, file }.at(
                raw.name.span().start,
                format!(
                    "name: {name:?} belongs to a hook of NCCL's or to the loader; begin with another word"
                ),
            ));
        }
        Text { text, file }.schema(raw)
    }

    /// Reads the schema of a file.
    ///
    /// # Errors
    /// A file that cannot be read or is none, and as [`Schema::parse`].
    pub fn read(path: &Path) -> Result<Schema, SchemaError> {
        let shown = path.display().to_string();
        let fail = |e: std::io::Error| SchemaError::new(&shown, format!("cannot read: {e}"));
        let file = File::open(path).map_err(fail)?;
        if !file.metadata().map_err(fail)?.is_file() {
            return Err(SchemaError::new(&shown, "is not a regular file"));
        }
        let mut text = Vec::new();
        // One byte more than is taken, so that a longer file is told from one that just fits.
        file.take(MAX_SCHEMA_BYTES as u64 + 1).read_to_end(&mut text).map_err(fail)?;
        let text = String::from_utf8(text).map_err(|_| SchemaError::new(&shown, "is not UTF-8"))?;
        Schema::parse(&text, &shown)
    }

    /// As [`Schema::parse`], for the schemas of NCCL's own hooks.
    pub(super) fn parse_builtin(text: &str, file: &str) -> Result<Schema, SchemaError> {
        let text = Text { text, file };
        text.schema(text.read()?)
    }
}

/// A file's text, for messages that name a place in it.
#[derive(Clone, Copy)]
struct Text<'a> {
    text: &'a str,
    file: &'a str,
}

impl Text<'_> {
    #[cold]
    fn fail(self, message: impl AsRef<str>) -> SchemaError {
        // One line, whatever a name in the text holds.
        let message: String =
            message.as_ref().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        SchemaError::new(self.file, message)
    }

    #[cold]
    fn at(self, byte: usize, message: impl AsRef<str>) -> SchemaError {
        let before = self.text.get(..byte).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
        self.fail(format!("line {line}, column {column}: {}", message.as_ref()))
    }

    fn read(self) -> Result<Raw, SchemaError> {
        if self.text.len() > MAX_SCHEMA_BYTES {
            return Err(self.fail(format!("{} bytes, at most {MAX_SCHEMA_BYTES}", self.text.len())));
        }
        toml::from_str(self.text).map_err(|e| match e.span() {
            Some(span) => self.at(span.start, e.message()),
            None => self.fail(e.message()),
        })
    }

    fn schema(self, raw: Raw) -> Result<Schema, SchemaError> {
        let name = raw.name.get_ref();
        if let Err(why) = check_name(name) {
            return Err(self.at(raw.name.span().start, format!("name: {name:?} {why}")));
        }
        let size = u32::try_from(*raw.size.get_ref())
            .ok()
            .filter(|n| (8..=CTX_MAX).contains(n) && n % 8 == 0)
            .ok_or_else(|| {
                let message = format!(
                    "size: {} must be a multiple of 8 from 8 to {CTX_MAX}; end the struct with padding",
                    raw.size.get_ref()
                );
                self.at(raw.size.span().start, message)
            })?;
        if raw.fields.len() > MAX_FIELDS {
            let message = format!("{} fields, at most {MAX_FIELDS}; use arrays (count)", raw.fields.len());
            return Err(self.fail(message));
        }
        let fields = self.fields(&raw.fields, size)?;
        let hash = hash(name, size, &fields);
        let (name, about) = (name.clone(), raw.about.trim().to_owned());
        Ok(Schema { name, about, size, fields, file: self.file.to_owned(), hash })
    }

    fn fields(self, raw: &[RawField], size: u32) -> Result<Vec<Field>, SchemaError> {
        let mut fields: Vec<(Field, usize)> = Vec::with_capacity(raw.len());
        for raw in raw {
            let (name, start) = (raw.name.get_ref(), raw.name.span().start);
            let fail = |why: String| self.at(start, format!("field {name:?}: {why}"));
            if fields.iter().any(|(f, _)| f.name == *name) {
                return Err(fail("there is one of that name already".into()));
            }
            fields.push((raw.check(size).map_err(fail)?, start));
        }
        fields.sort_by_key(|(f, _)| f.offset);
        for pair in fields.windows(2) {
            let [(a, _), (b, start)] = pair else { continue };
            if a.offset + a.bytes() > b.offset {
                let (last, first) = (a.offset + a.bytes() - 1, a.offset);
                let message =
                    format!("field {:?}: overlaps {:?}, which has bytes {first} to {last}", b.name, a.name);
                return Err(self.at(*start, message));
            }
        }
        Ok(fields.into_iter().map(|(f, _)| f).collect())
    }
}

impl RawField {
    fn check(&self, size: u32) -> Result<Field, String> {
        check_identifier(self.name.get_ref())?;
        let (offset, width, count) = self.place(size)?;
        let mut field = Field {
            name: self.name.get_ref().clone(),
            offset,
            width,
            count,
            rights: self.rights,
            rank: match self.rank {
                Rank::Uniform => RankLabel::Uniform,
                Rank::Local => RankLabel::RankLocal,
            },
            unit: self.unit.trim().to_owned(),
            about: self.about.trim().to_owned(),
            min: None,
            max: None,
            values: BTreeMap::new(),
            default: 0,
        };
        self.numbers(&mut field)?;
        Ok(field)
    }

    fn place(&self, size: u32) -> Result<(u32, u32, u32), String> {
        let width = match self.width {
            1 | 2 | 4 | 8 => self.width,
            other => return Err(format!("width {other} must be 1, 2, 4 or 8 bytes; an array has a count")),
        };
        if self.count < 1 {
            return Err(format!("count {} must be at least 1", self.count));
        }
        let end = self.count.checked_mul(width).and_then(|n| n.checked_add(self.offset));
        if self.offset < 0 || end.is_none_or(|end| end > i64::from(size)) {
            let (offset, count) = (self.offset, self.count);
            return Err(format!(
                "offset {offset} with {count} x {width} bytes lies outside the context of {size} bytes; \
                 move it, or enlarge size"
            ));
        }
        if self.offset % width != 0 {
            let offset = self.offset;
            return Err(format!(
                "offset {offset} is no multiple of its width {width}; C would not put it there either"
            ));
        }
        // All three lie in 0 to CTX_MAX.
        Ok((self.offset as u32, width as u32, self.count as u32))
    }

    fn numbers(&self, field: &mut Field) -> Result<(), String> {
        let most = field.greatest();
        let number = |what: &str, n: i64| {
            let fits = u64::try_from(n).ok().filter(|n| *n <= most);
            fits.ok_or_else(|| format!("{what} {n} does not fit; fields are unsigned, here 0 to {most}"))
        };
        if field.rights == FieldRights::Read {
            let given = [self.min.map(|_| "min"), self.max.map(|_| "max"), self.default.map(|_| "default")];
            if let Some(key) = given.into_iter().flatten().next() {
                return Err(format!("{key} is for rights = \"decide\"; an input holds what the caller says"));
            }
        }
        field.min = self.min.map(|n| number("min", n)).transpose()?;
        field.max = self.max.map(|n| number("max", n)).transpose()?;
        if let (Some(min), Some(max)) = (field.min, field.max)
            && min > max
        {
            return Err(format!("min {min} is more than max {max}: nothing could be decided"));
        }
        field.values = self.named_values(&number)?;
        self.take_default(field, &number)
    }

    fn named_values(
        &self,
        number: &impl Fn(&str, i64) -> Result<u64, String>,
    ) -> Result<BTreeMap<String, u64>, String> {
        if self.values.len() > MAX_VALUES {
            return Err(format!("{} values, at most {MAX_VALUES}", self.values.len()));
        }
        let mut named = BTreeMap::new();
        for (name, n) in &self.values {
            check_identifier(name).map_err(|why| format!("value {name:?}: {why}"))?;
            let n = number("value", *n)?;
            if let Some((other, _)) = named.iter().find(|(_, v)| **v == n) {
                return Err(format!("values {other:?} and {name:?} are both {n}"));
            }
            named.insert(name.clone(), n);
        }
        Ok(named)
    }

    /// The default: 0, if nothing is said and 0 may be decided; otherwise it has to be said.
    fn take_default(
        &self,
        field: &mut Field,
        number: &impl Fn(&str, i64) -> Result<u64, String>,
    ) -> Result<(), String> {
        if field.rights == FieldRights::Read {
            return Ok(());
        }
        field.default = self.default.map_or(Ok(0), |n| number("default", n))?;
        match self.default {
            _ if field.allows(field.default) => Ok(()),
            Some(n) => Err(format!("default {n} is not among what may be decided (min, max, values)")),
            None => Err("say a default: 0 is not among what may be decided (min, max, values)".into()),
        }
    }
}

fn check_name(name: &str) -> Result<(), String> {
    if name.len() > MAX_NAME {
        return Err(format!("has {} bytes, at most {MAX_NAME}", name.len()));
    }
    let good = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_lowercase())
            && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-".contains(&b))
    };
    if name.split('/').all(good) {
        return Ok(());
    }
    Err("must be words of a-z, 0-9, _ and -, each begun by a letter, with / between them, as \"ep/mode\""
        .into())
}

fn check_identifier(name: &str) -> Result<(), String> {
    if name.len() > MAX_NAME {
        return Err(format!("the name has {} bytes, at most {MAX_NAME}", name.len()));
    }
    let good = name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    if !good {
        return Err("the name must be a letter and then letters, digits and _, all in lower case".into());
    }
    if KEYWORDS.contains(&format!(" {name} ")) {
        return Err("the name is a word of C, C++ or Rust; choose another, headers are made from it".into());
    }
    Ok(())
}

/// See [`Schema::hash`].
fn hash(name: &str, size: u32, fields: &[Field]) -> ContentHash {
    let mut canonical = format!("ringfence schema 1\n{name}\n{size}\n");
    for f in fields {
        // Names hold no white space, so parts and lines stay apart.
        canonical += &format!(
            "{} {} {} {} {:?} {:?} {:?} {:?} {:?} {}\n",
            f.name, f.offset, f.width, f.count, f.rights, f.rank, f.min, f.max, f.values, f.default
        );
    }
    ContentHash::of(canonical.as_bytes())
}
