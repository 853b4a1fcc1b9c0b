//! Plots of what was measured, as SVG, and the tables beside them as Markdown.

mod axis;
mod chart;
mod figures;

use std::fs;
use std::path::Path;

use crate::error::BenchError;
use crate::machine::Machine;
use crate::record::Run;
use crate::{reach, table};

/// The tables' file.
const TABLES: &str = "measured.md";

/// Writes everything that the runs have numbers for into `folder`. What another selection of cases
/// made there stays.
///
/// # Errors
/// When a file cannot be written.
pub fn write(folder: &Path, machine: &Machine, runs: &[Run]) -> Result<(), BenchError> {
    let mut files: Vec<_> = figures::all(machine, runs)
        .into_iter()
        .map(|(name, chart)| (name, chart.svg()))
        .collect();
    files.push((TABLES.to_owned(), tables(machine, runs)));
    fs::create_dir_all(folder).map_err(|source| BenchError::File {
        doing: "creating",
        path: folder.to_owned(),
        source,
    })?;
    for (name, content) in files {
        let path = folder.join(name);
        fs::write(&path, content).map_err(|source| BenchError::File {
            doing: "writing",
            path,
            source,
        })?;
    }
    Ok(())
}

fn tables(machine: &Machine, runs: &[Run]) -> String {
    let mut text = format!("# Measured\n\nWritten by `make bench`. {machine}.\n");
    for sheet in std::iter::once(reach::sheet(runs)).chain(table::sheets(runs)) {
        text.push('\n');
        text.push_str(&sheet.markdown());
    }
    text
}
