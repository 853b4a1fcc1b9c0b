//! Plots as SVG, and the tables as Markdown.

mod axis;
mod chart;
mod dots;
mod figures;
mod nano;
mod timeline;

pub(crate) use axis::Scale;
pub(crate) use chart::{Chart, Panel, Points, Style};
pub(crate) use figures::panel;

use std::path::Path;

use super::goals::goals_table;
use super::tables::tables;
use super::write_file;
use crate::error::BenchError;
use crate::host_info::HostInfo;
use crate::record::Run;

/// The file of the tables.
const TABLES: &str = "measured.md";

/// Writes every plot that the runs have numbers for, and the tables, into `folder`. Files of
/// earlier selections of cases stay.
///
/// # Errors
/// When a plot cannot be drawn, or a file not be written.
pub(crate) fn write_plots(folder: &Path, host: &HostInfo, runs: &[Run]) -> Result<(), BenchError> {
    let mut files = timeline::timelines(&host.in_two_lines(), runs)?;
    for (name, chart) in figures::all(host, runs) {
        files.push((name, chart.svg()?));
    }
    files.push((TABLES.to_owned(), tables_markdown(host, runs)));
    let mut files = files.iter();
    files.try_for_each(|(name, content)| write_file(&folder.join(name), content))
}

fn tables_markdown(host: &HostInfo, runs: &[Run]) -> String {
    // One fact per line, to keep the lines of the document short.
    let host = host.to_string().replace(", ", ",\n");
    let mut text = format!("# Measured\n\nWritten by `make bench`.\n{host}.\n");
    for table in std::iter::once(goals_table(runs)).chain(tables(runs)) {
        text.push('\n');
        text.push_str(&table.markdown());
    }
    text
}
