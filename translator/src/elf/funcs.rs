//! [`Functions`]: where the functions of an object start and end.

use super::error_at;
use super::image::{Image, Place, Role, Symbol, SymbolKind};
use crate::error::{Error, ErrorKind, Stage};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A function. Its range is not empty, inside its section, and of whole slots.
#[derive(Clone, Debug)]
pub(super) struct Function {
    pub(super) name: String,
    /// Index of its section.
    pub(super) section: usize,
    /// Bytes of the section.
    pub(super) bytes: Range<u64>,
    /// Visible outside of the object: neither local nor hidden.
    pub(super) global: bool,
}

/// All functions, by section and offset.
#[derive(Clone, Debug)]
pub(super) struct Functions {
    list: Vec<Function>,
}

/// Index into [`Functions`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct FuncId(usize);

impl Functions {
    /// Functions are the FUNC symbols of code sections. A section that has none (hand-written assembly) has
    /// its untyped global symbols instead. A symbol without a size reaches to the next one.
    pub(super) fn of(image: &Image) -> Result<Functions, Error> {
        let in_code =
            |s: &Symbol| matches!(s.place, Place::Section(i) if image.sections[i].role == Role::Code);
        let typed: BTreeSet<usize> = symbols(image, |s| s.kind == SymbolKind::Func && in_code(s))
            .map(|(section, _)| section)
            .collect();
        let is_func = |section: usize, s: &Symbol| match s.kind {
            SymbolKind::Func => true,
            SymbolKind::None => s.global && !typed.contains(&section),
            _ => false,
        };
        let mut starts: BTreeMap<(usize, u64), &Symbol> = BTreeMap::new();
        for (section, symbol) in symbols(image, in_code).filter(|(section, s)| is_func(*section, s)) {
            let known = starts.entry((section, symbol.value)).or_insert(symbol);
            if symbol.global && !known.global {
                *known = symbol;
            }
        }
        let mut list = Vec::with_capacity(starts.len());
        let mut next: Option<(usize, u64)> = None;
        for ((section, start), symbol) in starts.into_iter().rev() {
            let limit =
                next.filter(|(s, _)| *s == section).map_or(image.sections[section].size, |(_, at)| at);
            list.push(function(image, section, start, limit, symbol)?);
            next = Some((section, start));
        }
        list.reverse();
        Ok(Functions { list })
    }

    pub(super) fn get(&self, id: FuncId) -> &Function {
        &self.list[id.0]
    }

    /// The function that starts at that byte of that section.
    pub(super) fn starting_at(&self, section: usize, offset: u64) -> Option<FuncId> {
        let found = self.list.binary_search_by_key(&(section, offset), |f| (f.section, f.bytes.start));
        found.ok().map(FuncId)
    }
}

fn symbols(image: &Image, keep: impl Fn(&Symbol) -> bool) -> impl Iterator<Item = (usize, &Symbol)> {
    image.symbols.iter().filter_map(move |s| match s.place {
        Place::Section(section) if keep(s) => Some((section, s)),
        _ => None,
    })
}

fn function(
    image: &Image,
    section: usize,
    start: u64,
    limit: u64,
    symbol: &Symbol,
) -> Result<Function, Error> {
    let end = if symbol.size == 0 { Some(limit) } else { start.checked_add(symbol.size) };
    let end = end.filter(|end| *end > start && *end <= image.sections[section].size);
    match end {
        Some(end) if start.is_multiple_of(8) && end.is_multiple_of(8) => Ok(Function {
            name: image.symbol_name(symbol),
            section,
            bytes: start..end,
            global: symbol.exported,
        }),
        _ => {
            let text = format!(
                "function {} of {} bytes is empty, misaligned or longer than its section",
                image.symbol_name(symbol),
                symbol.size
            );
            Err(error_at(Stage::Elf, ErrorKind::Malformed, &image.sections[section].name, start, text))
        }
    }
}
