//! [`import`]: the configuration of NCCL's example tuner (`nccl_tuner.conf`) as a policy.
//!
//! [`Import`] is an object with the rows in a read-only table and a program that looks them up; [`Warning`] is what that tuner
//! silently misreads. The rules are those of plugins/tuner/example/plugin.c of NCCL 2.30.7, on a glibc with 64-bit
//! `long`:
//!
//! - a file is read in portions of at most 255 bytes (`lines`); a portion with `#` or a newline in column one is skipped;
//! - fields are split at commas, empty ones vanish, blanks and tabs around them go; a portion with fewer than eight
//!   fields is skipped, and what follows the tenth is ignored;
//! - unknown names are allreduce, ring and simple; numbers are those of `strtoull` and `atoi` (`row`);
//! - of the rows that match a call, the first whose pair NCCL offers is taken (`code`).
//!
//! What is *not* kept: that tuner asks for one channel where a row says -1 and where no row matches, against its own
//! documentation. [`Options::bug_compatible`] keeps that too. Never kept are channels below -1 (NCCL would divide by
//! zero; they count as -1) and above 64 (they count as 64), and what that tuner does beside its configuration: three constants of
//! NCCL's model that it sets at init, and the chunk size that it raises for NVLSTree.

mod btf;
mod code;
mod elf;
mod lines;
mod row;
mod table;
mod warn;

pub use table::MAX_ROWS;
pub use warn::Warning;

use crate::hooks::Hook;
use code::NoMatch;
use ringfence_translator::verify::Verifier;
use ringfence_translator::{Object, Stats, Verified};
use row::{ANY, MAX_CHANNELS, Row};
use std::fmt;
use table::{KEEP, Table};
use warn::Sink;

/// Largest configuration in bytes.
pub const MAX_BYTES: usize = 16 << 20;
/// Rows for which every pair is looked at when rows are sought that an earlier one hides.
const MAX_COMPARED: usize = 4096;

/// How to import.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Name of the configuration, for lines in the object.
    pub file: String,
    /// Ask for one channel where a row says -1 and where no row matches, as NCCL's example tuner does.
    pub bug_compatible: bool,
}

/// An imported configuration.
#[derive(Clone, Debug)]
pub struct Import {
    /// The ELF object. It was verified.
    pub object: Vec<u8>,
    /// Rows that it holds.
    pub rows: usize,
    /// What does not do what it seems to say, in the order of the file.
    pub warnings: Vec<Warning>,
    /// Warnings beyond the first thousand.
    pub more_warnings: usize,
    /// What the verifier says about the program.
    pub stats: Stats,
    /// Rows that a call looks at, at most.
    pub longest_list: usize,
    /// Bytes of the table.
    pub table_bytes: usize,
}

/// Why a file cannot be imported.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ImportError {
    /// Larger than [`MAX_BYTES`].
    TooLarge,
    /// More than [`MAX_ROWS`] rows; the line of the first one too many.
    TooManyRows(u32),
    /// No line is a row. The warnings say why not.
    NoRows(Vec<Warning>),
    /// The policy did not come out right: a fault of this program.
    Internal(String),
}

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ImportError::TooLarge => write!(f, "larger than {} MiB", MAX_BYTES >> 20),
            ImportError::TooManyRows(line) => {
                write!(
                    f,
                    "line {line}: more than {MAX_ROWS} rows; split the collectives into several policies of a chain"
                )
            }
            ImportError::NoRows(_) => f.write_str("no line is a row (8 to 10 fields, split by commas)"),
            ImportError::Internal(why) => write!(f, "the policy did not come out right: {why}"),
        }
    }
}

impl std::error::Error for ImportError {}

/// Turns a configuration into a policy, which is verified.
///
/// # Errors
/// See [`ImportError`]; whatever the bytes, there is no panic, and the work is bounded.
pub fn import(bytes: &[u8], options: &Options) -> Result<Import, ImportError> {
    if bytes.len() > MAX_BYTES {
        return Err(ImportError::TooLarge);
    }
    let mut sink = Sink::default();
    let rows = read(bytes, &mut sink)?;
    if rows.is_empty() {
        return Err(ImportError::NoRows(sink.kept));
    }
    about_file(bytes, &rows, options, &mut sink);
    let table = Table::new(&rows, |row| channels(row, options.bug_compatible));
    let no_match = if options.bug_compatible { NoMatch::OneChannel } else { NoMatch::Keep };
    let code = code::compile(&table, no_match).map_err(ImportError::Internal)?;
    let object = elf::object(&table, &code, &options.file).map_err(ImportError::Internal)?;
    let stats = verify(&object)?;
    let mut warnings = sink.kept;
    warnings.sort_by_key(|warning| warning.line);
    Ok(Import {
        object,
        rows: rows.len(),
        warnings,
        more_warnings: sink.dropped,
        stats,
        longest_list: table.longest,
        table_bytes: table.bytes.len(),
    })
}

fn read(bytes: &[u8], sink: &mut Sink) -> Result<Vec<Row>, ImportError> {
    let mut rows = Vec::new();
    for piece in lines::pieces(bytes) {
        if piece.line == 1 && !piece.tail && bytes.starts_with(b"\xef\xbb\xbf") {
            let text = "the file begins with a byte order mark, which becomes part of its first field";
            sink.warn(1, "byte-order-mark", text, "save the file without it");
        }
        let Some(row) = Row::read(&piece, sink) else { continue };
        if rows.len() == MAX_ROWS {
            return Err(ImportError::TooManyRows(row.line));
        }
        rows.push(row);
    }
    Ok(rows)
}

/// What a row asks for, in the one byte that the table has for it.
fn channels(row: &Row, bug_compatible: bool) -> u8 {
    match row.channels {
        n if n < 0 && bug_compatible => 1,
        n if n < 0 => KEEP,
        n => n.min(MAX_CHANNELS) as u8,
    }
}

/// Warnings about rows together.
fn about_file(bytes: &[u8], rows: &[Row], options: &Options, sink: &mut Sink) {
    let kept = rows.iter().filter(|row| row.channels == ANY).count();
    for (i, row) in rows.iter().enumerate().take(MAX_COMPARED) {
        let Some(earlier) = rows.iter().take(i).find(|earlier| earlier.covers(row)) else { continue };
        let text = format!(
            "this row of {} is never taken: line {} comes first and matches all of it",
            row.title(),
            earlier.line
        );
        sink.warn(row.line, "hidden", text, "put the more special row first, or remove it");
    }
    if bytes.contains(&0)
        && std::str::from_utf8(bytes).is_ok()
        && bytes.iter().filter(|b| **b == 0).count() * 3 > bytes.len()
    {
        sink.warn(
            0,
            "utf-16",
            "the file looks like UTF-16, of which next to nothing is read",
            "save it as UTF-8",
        );
    }
    if options.bug_compatible {
        let text =
            format!("one channel is forced by {kept} rows with channels -1, and wherever no row matches");
        sink.warn(0, "one-channel", text, "import without --bug-compatible to leave channels to NCCL there");
    } else if kept > 0 {
        let text = format!(
            "{kept} rows have channels -1, which NCCL's example tuner documents as \"keep\" but turns into one channel, as it does \
             where no row matches; this policy keeps NCCL's number"
        );
        sink.warn(0, "keeps-channels", text, "use --bug-compatible for what that tuner does");
    }
}

/// What the product says about the object.
fn verify(object: &[u8]) -> Result<Stats, ImportError> {
    let internal = |text: String| ImportError::Internal(text);
    let object = Object::parse(object).map_err(|e| internal(e.to_string()))?;
    let program = object.program(elf::PROGRAM).map_err(|e| internal(e.to_string()))?;
    let verified = Verifier::new(Hook::Tuner.env()).verify(program).map_err(|e| internal(e.to_string()))?;
    Ok(Verified::stats(&verified))
}

#[cfg(test)]
mod tests;
