//! [`Schema`]: a hook as data: the context's size, and each [`Field`] with its place, right, rank label and what may
//! be decided. NCCL's hooks are schemas like any other ([`Schema::builtin`], from `host/schemas/*.toml`); a library that
//! asks policies for decisions of its own brings a file:
//!
//! ```toml
//! name = "ep/mode"        # the ELF section; "ep/mode/anything" names the same hook
//! about = "Which kernels an expert-parallel group uses."
//! size = 16               # bytes of the context, a multiple of 8
//! [[field]]
//! name = "n_tokens"
//! offset = 0
//! width = 4               # 1, 2, 4 or 8 bytes, little-endian, unsigned
//! rights = "read"         # an input; "decide": in and out
//! rank = "uniform"        # equal on all ranks; "local": ranks may differ
//! unit = "tokens"
//! [[field]]
//! name = "mode"
//! offset = 4
//! width = 4
//! rights = "decide"
//! rank = "uniform"
//! values = { low_latency = 0, high_throughput = 1 }
//! default = 1
//! ```
//!
//! A file is checked whole before anything is done with it ([`Schema::parse`]). A schema becomes a hook when it is
//! [interned](Schema::intern): one name has one layout for as long as the process lives, so that no policy that was
//! verified against one layout is ever shown a context of another.

use crate::policy::ContentHash;
use ringfence_translator::limits;
use ringfence_translator::verify::{CtxField, CtxLayout, Env, RankLabel, ReturnRule, Rights};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

mod builtin;
mod intern;
mod parse;

pub use intern::MAX_SCHEMAS;
pub use parse::{MAX_FIELDS, MAX_SCHEMA_BYTES};

/// What a policy may do with a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FieldRights {
    /// Input.
    Read,
    /// In and out: the decision so far, and what the policy makes of it.
    Decide,
}

/// One field of a context: an unsigned little-endian number, or an array of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name, an identifier in C and in Rust.
    pub name: String,
    /// Byte offset, a multiple of `width`.
    pub offset: u32,
    /// Bytes of an element: 1, 2, 4 or 8.
    pub width: u32,
    /// Elements: 1 unless the field is an array.
    pub count: u32,
    /// Input or decision.
    pub rights: FieldRights,
    /// Equal on all ranks of a group?
    pub rank: RankLabel,
    /// Unit, for people: `bytes`, `ns`, ... May be empty.
    pub unit: String,
    /// What it is, for people. May be empty.
    pub about: String,
    /// Least value that may be decided.
    pub min: Option<u64>,
    /// Greatest value that may be decided.
    pub max: Option<u64>,
    /// Names of numbers. Of a decided field also what may be decided, beside the range of `min` and `max`.
    pub values: BTreeMap<String, u64>,
    /// What a decided field holds before the first policy.
    pub default: u64,
}

impl Field {
    /// Bytes of the whole field.
    pub fn bytes(&self) -> u32 {
        self.width * self.count
    }

    /// The greatest number that an element can hold.
    pub fn greatest(&self) -> u64 {
        u64::MAX >> (64 - 8 * self.width.clamp(1, 8))
    }

    /// May a policy decide this number? Anything, if the schema says neither range nor values; else what lies in the
    /// range or is one of the values.
    pub fn allows(&self, number: u64) -> bool {
        let ranged = self.min.is_some() || self.max.is_some();
        if !ranged && self.values.is_empty() {
            return true;
        }
        let inside = self.min.is_none_or(|min| number >= min) && self.max.is_none_or(|max| number <= max);
        (ranged && inside) || self.values.values().any(|v| *v == number)
    }

    /// The name of a number of this field.
    pub fn value_name(&self, number: u64) -> Option<&str> {
        self.values.iter().find(|(_, v)| **v == number).map(|(name, _)| name.as_str())
    }

    /// Element `index` of the field in a context; `None` beyond the field or the bytes.
    pub fn get(&self, ctx: &[u8], index: u32) -> Option<u64> {
        let at = self.place(index)?;
        let bytes = ctx.get(at..at + self.width as usize)?;
        Some(bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b)))
    }

    /// Sets element `index` of the field in a context. False, and nothing is written, if there is no such element or the
    /// number does not fit.
    #[must_use]
    pub fn put(&self, ctx: &mut [u8], index: u32, number: u64) -> bool {
        let place = self.place(index).and_then(|at| ctx.get_mut(at..at + self.width as usize));
        match place {
            Some(bytes) if number <= self.greatest() => {
                bytes.copy_from_slice(&number.to_le_bytes()[..self.width as usize]);
                true
            }
            _ => false,
        }
    }

    fn place(&self, index: u32) -> Option<usize> {
        (index < self.count).then(|| (self.offset + index * self.width) as usize)
    }

    /// Does the context hold only numbers that may be decided here?
    fn is_sound(&self, ctx: &[u8]) -> bool {
        (0..self.count).all(|i| self.get(ctx, i).is_some_and(|n| self.allows(n)))
    }
}

/// A hook as data. Made by [`Schema::parse`] alone, so every schema is a checked one.
#[derive(Clone, Debug)]
pub struct Schema {
    name: String,
    about: String,
    size: u32,
    fields: Vec<Field>,
    file: String,
    hash: ContentHash,
}

impl Schema {
    /// The name: that of the ELF section, of `--hook`, and of [`Env::hook`].
    pub fn name(&self) -> &str {
        &self.name
    }
    /// What the hook decides, for people.
    pub fn about(&self) -> &str {
        &self.about
    }
    /// Bytes of the context.
    pub fn size(&self) -> u32 {
        self.size
    }
    /// The fields, by offset. Bytes between them are padding, which policies cannot reach.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }
    /// The fields that a policy decides, by offset; none in a hook that only observes.
    pub fn decided(&self) -> impl Iterator<Item = &Field> {
        self.fields.iter().filter(|f| f.rights == FieldRights::Decide)
    }
    /// The field of that name.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|f| f.name == name)
    }
    /// Where it was read from, for messages.
    pub fn file(&self) -> &str {
        &self.file
    }
    /// SHA-256 over all that decides: name, size, and the fields with their rights, labels, ranges, values and defaults.
    /// Units and descriptions do not count, nor does the order in which the file lists the fields.
    pub fn hash(&self) -> ContentHash {
        self.hash
    }

    /// Does an ELF section of that name mean this hook: `ep/mode`, or `ep/mode/anything`?
    pub fn names_section(&self, section: &str) -> bool {
        let rest = section.strip_prefix(self.name.as_str());
        rest.is_some_and(|r| r.is_empty() || r.strip_prefix('/').is_some_and(|tail| !tail.is_empty()))
    }

    /// What programs of this hook are verified against. `'static`, because [`Env`] and the facts that carry it hold the names.
    pub fn env(&'static self) -> Arc<Env> {
        let fields = self.fields.iter().map(|f| CtxField {
            name: &f.name,
            offset: f.offset,
            width: f.width,
            count: f.count,
            rights: match f.rights {
                FieldRights::Read => Rights::Read,
                FieldRights::Decide => Rights::ReadWrite,
            },
            label: f.rank,
        });
        Arc::new(Env {
            hook: &self.name,
            ctx: CtxLayout::Fields { size: self.size, fields: fields.collect() },
            helpers: Env::base_helpers(),
            ret: ReturnRule::Scalar,
            insn_budget: limits::DEFAULT_INSN_BUDGET,
            run_budget: limits::DEFAULT_RUN_BUDGET,
        })
    }

    /// A context of zeros with each decided field at its default.
    pub fn blank(&self) -> Vec<u8> {
        let mut ctx = vec![0; self.size as usize];
        for field in self.decided() {
            for i in 0..field.count {
                let fits = field.put(&mut ctx, i, field.default);
                debug_assert!(fits, "parse checks defaults");
            }
        }
        ctx
    }

    /// Holds what a policy left in `ctx` against what may be decided. A decided field, as a whole, that holds a number
    /// outside its range and values gets back what it held in `before`. Returns the first such field, to be counted;
    /// `None` if all is well. Never allocates. Where either slice is shorter than the context, nothing is decided at all:
    /// `ctx` is left alone, and the first decided field is returned.
    #[must_use = "a field that was put back is to be counted"]
    pub fn check_decision(&self, ctx: &mut [u8], before: &[u8]) -> Option<&Field> {
        let mut wrong = None;
        for field in self.decided() {
            let (start, end) = (field.offset as usize, (field.offset + field.bytes()) as usize);
            if field.is_sound(ctx) {
                continue;
            }
            wrong = wrong.or(Some(field));
            if let (Some(now), Some(old)) = (ctx.get_mut(start..end), before.get(start..end)) {
                now.copy_from_slice(old);
            }
        }
        wrong
    }
}

/// Schemas are equal if they decide alike and are called alike.
impl PartialEq for Schema {
    fn eq(&self, other: &Schema) -> bool {
        self.hash.bytes() == other.hash.bytes()
    }
}

impl Eq for Schema {}

impl Hash for Schema {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash.bytes().hash(state);
    }
}

/// By name, so that lists of hooks read well.
impl Ord for Schema {
    fn cmp(&self, other: &Schema) -> Ordering {
        (&self.name, self.hash.bytes()).cmp(&(&other.name, other.hash.bytes()))
    }
}

impl PartialOrd for Schema {
    fn partial_cmp(&self, other: &Schema) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Why a schema was refused. One line: the file, the place in it, what is wrong and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaError {
    file: String,
    message: String,
}

impl SchemaError {
    #[cold]
    pub(crate) fn new(file: &str, message: impl Into<String>) -> SchemaError {
        SchemaError { file: file.to_owned(), message: message.into() }
    }
    /// The file at fault, as it was named.
    pub fn file(&self) -> &str {
        &self.file
    }
    /// The place in the file, what is wrong and what to do.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for SchemaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file, self.message)
    }
}

impl std::error::Error for SchemaError {}

#[cfg(test)]
mod tests;
