//! The matrix of guests that are moved (docs/matrix.md).

#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_tests::matrix::{Row, rows, run};

/// A part of their description by which rows are selected, in upper or lower case.
const ROWS: &str = "HIKKOSHI_MATRIX_ROWS";
/// The file that the table is written to.
const TABLE: &str = "HIKKOSHI_MATRIX";

fn run_all(rows: Vec<Row>) {
    assert!(!rows.is_empty(), "no such row");
    let (table, failed) = match run(rows) {
        Ok(table) => (table, false),
        Err(table) => (table, true),
    };
    if let Some(path) = std::env::var_os(TABLE) {
        std::fs::write(path, &table).unwrap();
    }
    assert!(!failed, "a row has failed:\n{table}");
}

#[test]
fn a_sample_of_the_matrix() {
    run_all(rows().into_iter().filter(Row::is_sample).collect());
}

#[test]
#[ignore = "every row: `make matrix`"]
fn the_whole_matrix() {
    let selected = std::env::var(ROWS).unwrap_or_default().to_lowercase();
    let is_selected = |row: &Row| row.to_string().to_lowercase().contains(&selected);
    run_all(rows().into_iter().filter(is_selected).collect());
}
