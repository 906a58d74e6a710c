//! [`table`]: `docs/nccl-behaviour.md`, the record as people read it.

use std::fmt::Write as _;
use std::path::PathBuf;

use crate::native::repository;
use crate::record::{Facts, Record};
use crate::scenario::Scenario;
use crate::versions::Version;

/// Where the table is committed.
#[must_use]
pub fn path() -> PathBuf {
    repository().join("docs/nccl-behaviour.md")
}

/// What stands before the tables: how to read them, and what is worth knowing of them, by hand.
const HEAD: &str = include_str!("report.md");

/// The whole document.
#[must_use]
pub fn table(record: &Record, scenarios: &[Scenario]) -> String {
    let mut versions: Vec<Version> = record.0.keys().filter_map(|version| version.parse().ok()).collect();
    versions.sort_unstable();
    let mut text = HEAD.to_owned();
    for scenario in scenarios {
        let facts: Vec<(Version, &Facts)> = versions
            .iter()
            .filter_map(|version| Some((*version, record.0.get(&version.to_string())?.get(scenario.name)?)))
            .filter(|(_, facts)| !facts.is_empty())
            .collect();
        if !facts.is_empty() {
            let _ = write!(text, "\n## {}\n{}\n\n{}", scenario.name, scenario.about, rows(&facts));
        }
    }
    text
}

/// First what all versions do, then, with a column for each, what differs.
fn rows(facts: &[(Version, &Facts)]) -> String {
    let mut keys: Vec<&String> = facts.iter().flat_map(|(_, facts)| facts.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    let values = |key: &String| facts.iter().map(|(_, facts)| facts.get(key)).collect::<Vec<_>>();
    let alike = |key: &&String| values(key).windows(2).all(|pair| pair[0] == pair[1]);
    let (same, different): (Vec<&String>, Vec<_>) = keys.into_iter().partition(alike);
    let versions: Vec<String> = facts.iter().map(|(version, _)| version.to_string()).collect();
    let row = |key: &String, values: &[Option<&String>]| {
        let cells: Vec<String> = values.iter().copied().map(cell).collect();
        format!("| {} | {} |\n", cell(Some(key)), cells.join(" | "))
    };
    let mut text = String::new();
    if !same.is_empty() {
        text += &format!("| | {} |\n|---|---|\n", all_of(&versions));
        text.extend(same.iter().map(|key| row(key, &values(key)[..1])));
    }
    if !same.is_empty() && !different.is_empty() {
        text.push('\n');
    }
    if !different.is_empty() {
        text += &format!("| | {} |\n|---|{}\n", versions.join(" | "), "---|".repeat(versions.len()));
        text.extend(different.iter().map(|key| row(key, &values(key))));
    }
    text
}

fn all_of(versions: &[String]) -> String {
    match versions {
        [only] => only.clone(),
        [first, .., last] => format!("{first} to {last}"),
        [] => String::new(),
    }
}

/// Text that does not end a table's cell.
fn cell(text: Option<&String>) -> String {
    text.map_or("-", String::as_str).replace('|', "\\|").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios;

    #[test]
    fn the_committed_table_is_that_of_the_committed_record() {
        let record = Record::read(&crate::record::path()).unwrap();
        let committed = std::fs::read_to_string(path()).unwrap();
        assert_eq!(table(&record, &scenarios::all()), committed, "`make nccl-table` makes it anew");
    }

    #[test]
    fn the_record_knows_no_scenario_that_is_gone() {
        let record = Record::read(&crate::record::path()).unwrap();
        let known: Vec<_> = scenarios::all().iter().map(|scenario| scenario.name).collect();
        for (version, of) in &record.0 {
            for name in of.keys() {
                assert!(known.contains(&name.as_str()), "{version} {name}");
            }
        }
    }
}
