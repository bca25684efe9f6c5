//! Tables: what an experiment found, in rows. They are written as CSV and printed in columns.

use std::fmt;
use std::fmt::Write;

/// Rows under a header.
///
/// ```
/// let mut table = lockwright_lab::Table::new("goodput", &["lock", "ops/s"]);
/// table.row(["cas".into(), "15500".into()]);
/// assert_eq!(table.csv(), "lock,ops/s\ncas,15500\n");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Its name: part of the file's.
    pub name: String,
    /// What the columns hold.
    pub header: Vec<String>,
    /// The rows, each as long as the header.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new(name: &str, header: &[&str]) -> Self {
        Self {
            name: name.to_owned(),
            header: header.iter().map(ToString::to_string).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// If it is not as long as the header.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        assert_eq!(N, self.header.len(), "a row is as long as its header");
        self.rows.push(cells.into());
    }

    /// The table as CSV (RFC 4180, with plain newlines).
    pub fn csv(&self) -> String {
        let line =
            |cells: &Vec<String>| cells.iter().map(|cell| quoted(cell)).collect::<Vec<_>>().join(",") + "\n";
        std::iter::once(&self.header).chain(&self.rows).map(line).collect()
    }
}

fn quoted(cell: &str) -> String {
    if cell.contains([',', '"', '\n']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell.to_owned()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = || std::iter::once(&self.header).chain(&self.rows);
        let width = |column: usize| lines().map(|cells| cells[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.header.len()).map(width).collect();
        for cells in lines() {
            let mut line = String::new();
            for (column, cell) in cells.iter().enumerate() {
                // Figures to the right, the first column, which names the row, to the left.
                match column {
                    0 => write!(line, "{cell:<width$}", width = widths[column])?,
                    _ => write!(line, "  {cell:>width$}", width = widths[column])?,
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}
