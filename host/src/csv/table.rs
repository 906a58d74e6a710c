//! [`Table`]: the rows as read-only data of the policy, with an index by size.
//!
//! Per collective the sizes are cut into segments at the bounds of its rows. A segment lists the rows that overlap it, in
//! the order of the file; equal lists are stored once. A segment is found by binary search, and every row of its list is
//! checked in full, so a coarser cut is just as right: where rows overlap so much that the lists would grow out
//! of proportion, the cut is halved until they do not.

use super::row::Row;
use std::collections::HashMap;

/// Bytes of a row in the table.
pub(super) const ROW: usize = 40;
/// Bytes of a segment.
pub(super) const SEGMENT: usize = 16;
/// Most rows of a configuration: the table of the worst one stays below 1 MiB, the most that a map's value may have.
pub const MAX_ROWS: usize = 8192;
/// Most rows in all lists together.
const MAX_LISTED: usize = 15_000;
/// Most segments of one collective.
const MAX_SEGMENTS: usize = 8192;
/// With fewer rows than this, looking at each is as quick as a search.
const MIN_SEARCHED: usize = 8;
/// Segments that begin from here on are one: the search compares signed.
pub(super) const LAST_START: u64 = i64::MAX as u64;
/// `channels` of a row: leave what is there.
pub(super) const KEEP: u8 = 0xff;

/// Where things are in a row.
pub(super) mod at {
    pub(crate) const MIN: i16 = 0;
    pub(crate) const MAX: i16 = 8;
    pub(crate) const NODES: i16 = 16;
    pub(crate) const RANKS: i16 = 20;
    pub(crate) const PIPE_OPS: i16 = 24;
    pub(crate) const REG_BUFF: i16 = 28;
    pub(crate) const PAIR: i16 = 32;
    pub(crate) const ALGO: i16 = 33;
    pub(crate) const PROTO: i16 = 34;
    pub(crate) const CHANNELS: i16 = 35;
    /// For people who dump the table, and for tests.
    #[cfg(test)]
    pub(crate) const LINE: i16 = 36;
    /// Where things are in a segment: the first size less one; bytes from the first row to the list; rows of the list.
    pub(crate) const START: i16 = 0;
    pub(crate) const FIRST: i16 = 8;
    pub(crate) const LEN: i16 = 12;
}

/// The segments of one collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Index {
    /// `ncclFunc_t`.
    pub(super) func: u8,
    /// Byte offset of the first segment in the table.
    pub(super) at: usize,
    /// Number of segments, a power of two.
    pub(super) len: usize,
    /// Rows of the collective, and the line of the first.
    pub(super) rows: usize,
    pub(super) line: u32,
}

/// The read-only data of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) bytes: Vec<u8>,
    /// Collectives with rows, the one with the most rows first.
    pub(super) indices: Vec<Index>,
    /// Byte offset of the first row; rows go on to the end.
    pub(super) rows_at: usize,
    /// Rows of the longest list, which is the last one: wherever another begins, there is room for this one.
    pub(super) longest: usize,
    /// Does a row ask for these?
    pub(super) uses_pipe_ops: bool,
    pub(super) uses_reg_buff: bool,
}

impl Table {
    /// Lays out at most [`MAX_ROWS`] rows. `channels` says what a row asks for in one byte.
    pub(super) fn new(rows: &[Row], channels: impl Fn(&Row) -> u8) -> Table {
        let mut parts: Vec<Segments> = (0..5).filter_map(|func| Segments::new(rows, func)).collect();
        parts.sort_by_key(|part| std::cmp::Reverse(part.rows.len()));
        let lists = Lists::place(&parts);
        let mut bytes = Vec::new();
        let indices = parts.iter().map(|part| part.write(&lists, &mut bytes)).collect();
        let rows_at = bytes.len();
        for row in lists.order.iter().copied().flatten().filter_map(|i| rows.get(usize::from(*i))) {
            write_row(row, channels(row), &mut bytes);
        }
        if bytes.is_empty() {
            // No row matches any size. A map's value cannot be empty.
            bytes.resize(ROW, 0);
        }
        Table {
            bytes,
            indices,
            rows_at,
            longest: lists.longest,
            uses_pipe_ops: rows.iter().any(|row| row.pipe_ops != -1),
            uses_reg_buff: rows.iter().any(|row| row.reg_buff != -1),
        }
    }
}

/// The cut of one collective's sizes.
struct Segments {
    func: u8,
    /// Its rows that some size matches, by number.
    rows: Vec<u16>,
    line: u32,
    /// Where segments begin; the first at 0.
    starts: Vec<u64>,
    /// The rows of each.
    lists: Vec<Vec<u16>>,
}

impl Segments {
    /// `None` if no row is for that collective.
    fn new(all: &[Row], func: u8) -> Option<Segments> {
        let mine = all.iter().enumerate().filter(|(_, row)| row.func == func && row.min <= row.max);
        let mine: Vec<(u16, &Row)> = mine.map(|(i, row)| (i as u16, row)).collect();
        let line = mine.first()?.1.line;
        let mut starts = vec![0];
        if mine.len() >= MIN_SEARCHED {
            let bounds = mine.iter().flat_map(|(_, row)| [Some(row.min), row.max.checked_add(1)]);
            starts.extend(bounds.flatten().filter(|at| *at < LAST_START));
        }
        starts.sort_unstable();
        starts.dedup();
        let most = mine.len() * MAX_LISTED / all.len().max(1);
        let most = most.min(8 * mine.len() + 64).max(mine.len());
        while starts.len() > MAX_SEGMENTS || listed(&mine, &starts) > most {
            starts = starts.into_iter().step_by(2).collect();
        }
        let mut lists = vec![Vec::new(); starts.len()];
        for (i, row) in &mine {
            let (first, last) = overlap(row, &starts);
            lists.iter_mut().take(last + 1).skip(first).for_each(|list| list.push(*i));
        }
        Some(Segments { func, rows: mine.into_iter().map(|(i, _)| i).collect(), line, starts, lists })
    }

    /// Appends the segments, filled up to a power of two with some that are never reached.
    fn write(&self, lists: &Lists<'_>, out: &mut Vec<u8>) -> Index {
        let (at, len) = (out.len(), self.starts.len().next_power_of_two());
        for (start, list) in self.starts.iter().zip(&self.lists) {
            let first = lists.places.get(list.as_slice()).copied().unwrap_or_default();
            out.extend(start.wrapping_sub(1).min(LAST_START).to_le_bytes());
            out.extend(((first * ROW) as u32).to_le_bytes());
            out.extend((list.len() as u32).to_le_bytes());
        }
        for _ in self.starts.len()..len {
            out.extend(LAST_START.to_le_bytes());
            out.extend([0; 8]);
        }
        Index { func: self.func, at, len, rows: self.rows.len(), line: self.line }
    }
}

/// The first and the last segment that the row overlaps.
fn overlap(row: &Row, starts: &[u64]) -> (usize, usize) {
    let segment = |size: u64| starts.partition_point(|start| *start <= size).saturating_sub(1);
    (segment(row.min), segment(row.max))
}

/// Rows in all lists of a cut.
fn listed(rows: &[(u16, &Row)], starts: &[u64]) -> usize {
    rows.iter().map(|(_, row)| overlap(row, starts)).map(|(first, last)| last - first + 1).sum()
}

/// All lists, each once, one behind the other.
struct Lists<'s> {
    order: Vec<&'s [u16]>,
    /// Rows before each.
    places: HashMap<&'s [u16], usize>,
    /// Rows of the last, which is the longest.
    longest: usize,
}

impl<'s> Lists<'s> {
    fn place(parts: &'s [Segments]) -> Lists<'s> {
        let mut order: Vec<&[u16]> = parts.iter().flat_map(|p| &p.lists).map(Vec::as_slice).collect();
        order.retain(|list| !list.is_empty());
        // By length, so that the longest comes last; the rest only so that equal ones meet.
        order.sort_unstable_by(|a, b| a.len().cmp(&b.len()).then_with(|| a.cmp(b)));
        order.dedup();
        let mut places = HashMap::new();
        let mut rows = 0;
        for list in &order {
            places.insert(*list, rows);
            rows += list.len();
        }
        let longest = order.last().map_or(0, |list| list.len());
        Lists { order, places, longest }
    }
}

fn write_row(row: &Row, channels: u8, out: &mut Vec<u8>) {
    out.extend(row.min.to_le_bytes());
    out.extend(row.max.to_le_bytes());
    for n in [row.nodes, row.ranks, row.pipe_ops, row.reg_buff] {
        out.extend(n.to_le_bytes());
    }
    out.extend([row.pair(), row.algo, row.proto, channels]);
    out.extend(row.line.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(i: usize, min: u64, max: u64) -> Row {
        let line = i as u32 + 1;
        let any = -1;
        Row {
            line,
            func: 4,
            algo: 1,
            proto: 2,
            min,
            max,
            channels: any,
            nodes: any,
            ranks: any,
            pipe_ops: any,
            reg_buff: any,
        }
    }

    fn table(rows: &[Row]) -> Table {
        Table::new(rows, |_| KEEP)
    }

    fn word(bytes: &[u8], at: usize) -> usize {
        u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
    }

    /// The lines of the rows that the index lists for a size, looked for as the program does.
    fn lines_for(table: &Table, size: u64) -> Vec<u32> {
        let index = table.indices[0];
        let segment = |i: usize| index.at + i * SEGMENT;
        let start =
            |i: usize| i64::from_le_bytes(table.bytes[segment(i)..segment(i) + 8].try_into().unwrap());
        let mut found = 0;
        let mut step = index.len / 2;
        while step > 0 {
            if start(found + step) < size.min(LAST_START) as i64 {
                found += step;
            }
            step /= 2;
        }
        let (first, len) = (word(&table.bytes, segment(found) + 8), word(&table.bytes, segment(found) + 12));
        let room = table.bytes.len() - table.rows_at;
        assert!(first + table.longest * ROW <= room && len <= table.longest, "what the program checks");
        let rows = (first..first + len * ROW).step_by(ROW);
        rows.map(|at| word(&table.bytes, table.rows_at + at + at::LINE as usize) as u32).collect()
    }

    #[test]
    fn a_size_finds_its_rows_in_the_order_of_the_file() {
        let mut rows: Vec<Row> = (0..40).map(|i| row(i, i as u64 * 100, i as u64 * 100 + 99)).collect();
        rows.push(row(40, 0, u64::MAX));
        rows.push(row(41, LAST_START + 5, u64::MAX));
        let table = table(&rows);
        assert_eq!(lines_for(&table, 0), [1, 41]);
        assert_eq!(lines_for(&table, 99), [1, 41]);
        assert_eq!(lines_for(&table, 100), [2, 41]);
        assert_eq!(lines_for(&table, 3999), [40, 41]);
        assert_eq!(lines_for(&table, 4000), [41, 42], "the last segment; the program checks each row");
        assert_eq!(lines_for(&table, u64::MAX), [41, 42]);
    }

    #[test]
    fn rows_that_all_overlap_are_cut_more_coarsely() {
        let rows: Vec<Row> = (0..MAX_ROWS).map(|i| row(i, i as u64, 1 << 40 | i as u64)).collect();
        let table = table(&rows);
        assert!(table.bytes.len() < 1 << 20, "{}", table.bytes.len());
        for size in [0, 1, 4000, 8191, 1 << 30, 1 << 40, 1 << 41, u64::MAX] {
            let lines = lines_for(&table, size);
            assert!(lines.is_sorted());
            let wanted = rows.iter().filter(|r| r.min <= size && size <= r.max).map(|r| r.line);
            assert!(wanted.into_iter().all(|line| lines.contains(&line)), "{size}");
        }
    }

    #[test]
    fn the_largest_table_fits_into_a_map_value() {
        for spread in [1, 2, 3, 5] {
            let rows = (0..MAX_ROWS).map(|i| Row {
                func: (i % spread) as u8,
                ..row(i, 2 * i as u64, 2 * i as u64 + if i % 7 == 0 { 1 << 30 } else { 0 })
            });
            let bytes = table(&rows.collect::<Vec<_>>()).bytes.len();
            assert!(bytes <= 1 << 20, "{spread}: {bytes}");
        }
        let rows = (0..MAX_ROWS).map(|i| Row {
            func: if i < 4096 { 0 } else { 1 + (i % 4) as u8 },
            ..row(i, 2 * i as u64, 2 * i as u64 + if i % 2 == 0 { 1 << 30 } else { 0 })
        });
        assert!(table(&rows.collect::<Vec<_>>()).bytes.len() <= 1 << 20);
    }
}
