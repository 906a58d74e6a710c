//! [`Table`]: columns that line up.

use std::fmt::{self, Write};

/// Rows of cells under headings. Numbers are set to the right.
#[derive(Debug)]
pub(super) struct Table {
    headings: Vec<&'static str>,
    rows: Vec<Vec<String>>,
    indent: usize,
}

impl Table {
    /// An empty table, each line of which begins with `indent` blanks.
    pub(super) fn new(indent: usize, headings: &[&'static str]) -> Table {
        Table { headings: headings.to_vec(), rows: Vec::new(), indent }
    }

    /// Adds a row of as many cells as there are headings.
    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    fn column(&self, i: usize) -> (usize, bool) {
        let cells = || self.rows.iter().filter_map(|row| row.get(i));
        let widest = cells().map(|c| c.chars().count()).max().unwrap_or(0);
        let heading = self.headings.get(i).map_or(0, |h| h.chars().count());
        let number = |c: &String| c == "-" || c.starts_with(|c: char| c.is_ascii_digit());
        (widest.max(heading), !self.rows.is_empty() && cells().all(number))
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns: Vec<_> = (0..self.headings.len()).map(|i| self.column(i)).collect();
        let headings = self.headings.iter().map(|h| (*h).to_owned()).collect();
        for row in std::iter::once(&headings).chain(&self.rows) {
            let mut line = " ".repeat(self.indent);
            for (cell, (width, right)) in row.iter().zip(&columns) {
                match right {
                    true => write!(line, "{cell:>width$}  ")?,
                    false => write!(line, "{cell:<width$}  ")?,
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_set_to_the_right() {
        let mut table = Table::new(1, &["name", "calls"]);
        table.row(["ring".into(), "7".into()]);
        table.row(["a".into(), "1234567".into()]);
        assert_eq!(table.to_string(), " name    calls\n ring        7\n a     1234567\n");
        assert_eq!(Table::new(0, &["x"]).to_string(), "x\n");
    }
}
