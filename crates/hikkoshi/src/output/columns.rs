//! Rows of text in columns, as many as the terminal has room for.

use std::fmt::Write as _;

use crate::output::colours::Colour;
use crate::output::streams::Lines;

/// Between two columns.
const GAP: &str = "  ";

/// A row: its colour, and a text for each column.
pub(crate) type Row = (Colour, Vec<String>);

/// A line for each row, of which the first one has the headings. Columns with the headings
/// `left_out` are left out of a terminal with too few `columns`, the first ones first; `None`: all
/// are there.
pub(crate) fn in_columns(rows: &[Row], left_out: &[&str], columns: Option<usize>) -> Vec<Lines> {
    let headings: &[String] = rows.first().map_or(&[], |(_, headings)| headings);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|(_, row)| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let mut widths: Vec<Option<usize>> = (0..headings.len()).map(|at| Some(width(at))).collect();
    for heading in left_out {
        let taken: usize = widths.iter().flatten().map(|width| width + GAP.len()).sum();
        // Nothing follows the last one.
        if columns.is_none_or(|columns| taken <= columns + GAP.len()) {
            break;
        }
        let at = headings.iter().position(|other| other == heading);
        if let Some(width) = at.and_then(|at| widths.get_mut(at)) {
            *width = None;
        }
    }
    let line = |(colour, row): &Row| {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            if let Some(width) = width {
                // Writing to a String cannot fail.
                let _ = write!(line, "{cell:<width$}{GAP}");
            }
        }
        let line = line.trim_end();
        let line = match columns {
            Some(columns) => line.chars().take(columns).collect(),
            None => line.to_owned(),
        };
        Lines::new(*colour, line)
    };
    rows.iter().map(line).collect()
}
