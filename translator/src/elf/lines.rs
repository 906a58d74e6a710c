//! [`Lines`]: what `.BTF.ext` says of instructions: source lines, and which of them ask for CO-RE relocation.

use super::btf::{self, Btf, malformed};
use super::funcs::Function;
use super::image::{Image, Role};
use super::{c_str, printable, u32_at};
use crate::error::Error;
use crate::isa::Pc;
use crate::program::SourceLine;
use std::collections::{BTreeMap, HashMap};

/// Name of the section.
const SECTION: &str = ".BTF.ext";

/// One record of line info.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record {
    /// Byte offset in the code section.
    at: u32,
    file: u32,
    text: u32,
    line: u32,
}

/// See the module's text.
#[derive(Clone, Debug, Default)]
pub(super) struct Lines {
    /// By code section, each ordered by offset.
    records: BTreeMap<usize, Vec<Record>>,
    /// Byte offsets of instructions with CO-RE relocations, by code section, ordered.
    core: BTreeMap<usize, Vec<u32>>,
    /// The string table of BTF.
    strings: Vec<u8>,
}

impl Lines {
    /// Reads `.BTF.ext`, if the object has one.
    pub(super) fn of(image: &Image, btf: Option<&Btf<'_>>) -> Result<Lines, Error> {
        let (Some(btf), Some(section)) = (btf, image.section_named(SECTION)) else {
            return Ok(Lines::default());
        };
        let ext = btf::header(image.data(section), SECTION, 24)?;
        let area = |at: usize| {
            let (offset, len) = (u32_at(ext.bytes, at), u32_at(ext.bytes, at + 4));
            let part = offset.zip(len).map(|(offset, len)| ext.area(offset, len));
            part.unwrap_or(Some(&[]))
                .ok_or_else(|| malformed(SECTION, at as u64, "table outside the section"))
        };
        // Compilers before CO-RE write a header of 24 bytes, without the second table.
        let (lines, core) = (area(16)?, area(24)?);
        let by_name = code_sections(image);
        let mut out = Lines { strings: btf.strings().to_vec(), ..Lines::default() };
        each_record(lines, btf, &by_name, |section, record| {
            let [at, file, text, line] = record;
            out.records.entry(section).or_default().push(Record { at, file, text, line: line >> 10 });
        })?;
        each_record(core, btf, &by_name, |section, [at, ..]| out.core.entry(section).or_default().push(at))?;
        out.records.values_mut().for_each(|records| records.sort_by_key(|r| r.at));
        out.core.values_mut().for_each(|offsets| offsets.sort_unstable());
        Ok(out)
    }

    /// Byte offset of the first instruction of `function` that wants CO-RE relocation.
    pub(super) fn core_relocation(&self, function: &Function) -> Option<u64> {
        let offsets = self.core.get(&function.section)?;
        let first = offsets.partition_point(|at| u64::from(*at) < function.bytes.start);
        offsets.get(first).map(|at| u64::from(*at)).filter(|at| *at < function.bytes.end)
    }

    /// Appends the lines of `function`, which starts at `start` of the program. Records without a line number
    /// (code that the compiler made up) and repeated ones are left out. `budget` counts down the bytes of text.
    pub(super) fn append(
        &self,
        function: &Function,
        start: Pc,
        budget: &mut usize,
        out: &mut Vec<(Pc, SourceLine)>,
    ) {
        let records = self.records.get(&function.section).map_or(&[][..], Vec::as_slice);
        let first = records.partition_point(|r| u64::from(r.at) < function.bytes.start);
        let mut last = None;
        for record in records[first..].iter().take_while(|r| u64::from(r.at) < function.bytes.end) {
            let what = (record.file, record.text, record.line);
            if record.line == 0 || last == Some(what) {
                continue;
            }
            let string = |offset| c_str(&self.strings, offset as usize).map(printable).unwrap_or_default();
            let (file, text) = (string(record.file), string(record.text).trim().to_owned());
            let Some(left) = budget.checked_sub(file.len() + text.len()) else { return };
            *budget = left;
            last = Some(what);
            let slot = (u64::from(record.at) - function.bytes.start) / 8;
            out.push((start.plus(slot as u32), SourceLine { file, line: record.line, text }));
        }
    }
}

fn code_sections(image: &Image) -> HashMap<&str, usize> {
    let code = image.sections.iter().enumerate().filter(|(_, s)| s.role == Role::Code);
    code.rev().map(|(index, section)| (section.name.as_str(), index)).collect()
}

/// Calls `visit` with each record of a table that concerns a known code section. A table is a record size,
/// then for each section its name, a count and that many records, of which the first four words are passed.
fn each_record(
    table: &[u8],
    btf: &Btf<'_>,
    sections: &HashMap<&str, usize>,
    mut visit: impl FnMut(usize, [u32; 4]),
) -> Result<(), Error> {
    let bad = || malformed(SECTION, 0, "a table of records ends early or has records of a wrong size");
    if table.is_empty() {
        return Ok(());
    }
    let size = u32_at(table, 0).filter(|size| *size >= 16 && size % 4 == 0).ok_or_else(bad)? as usize;
    let mut rest = &table[4..];
    while !rest.is_empty() {
        let (name, count) = u32_at(rest, 0).zip(u32_at(rest, 4)).ok_or_else(bad)?;
        let len = size.checked_mul(count as usize).ok_or_else(bad)?;
        let (records, after) = rest[8..].split_at_checked(len).ok_or_else(bad)?;
        rest = after;
        let Some(&section) = sections.get(btf.string(name).as_str()) else { continue };
        for record in records.chunks_exact(size) {
            let word = |i: usize| u32_at(record, i * 4).unwrap_or_default();
            if !word(0).is_multiple_of(8) {
                return Err(malformed(
                    SECTION,
                    0,
                    format!("a record for byte {}, inside an instruction", word(0)),
                ));
            }
            visit(section, [word(0), word(1), word(2), word(3)]);
        }
    }
    Ok(())
}
