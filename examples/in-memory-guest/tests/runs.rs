//! The example moves its guest by each mode, and every page arrives.

#![allow(missing_docs)]

use std::process::Command;

#[test]
fn every_page_arrives() {
    let output = Command::new(env!("CARGO_BIN_EXE_hikkoshi-in-memory-guest"))
        .output()
        .unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{table}{errors}");
    // Mode, rounds, pre-copied, urgent, background, downtime, its unit, pages checked, wrong.
    let rows: Vec<Vec<&str>> = table
        .lines()
        .skip(1)
        .map(|row| row.split_whitespace().collect())
        .collect();
    let modes: Vec<&str> = rows.iter().map(|row| row[0]).collect();
    assert_eq!(modes, ["precopy", "postcopy", "hybrid"], "{table}");
    let pages = |row: usize, column: usize| -> u64 { rows[row][column].parse().unwrap() };
    for row in 0..rows.len() {
        assert_eq!((pages(row, 7), pages(row, 8)), (8192, 0), "{table}");
    }
    // The guest has written at least two thirds of its pages before the move begins.
    let without_precopy = |row| modes[row] == "postcopy";
    for row in 0..rows.len() {
        let precopied = pages(row, 2);
        match without_precopy(row) {
            true => assert_eq!(precopied, 0, "{table}"),
            false => assert!(precopied > 5400, "{table}"),
        }
    }
    assert!(
        pages(0, 3) + pages(0, 4) == 0 && pages(1, 3) + pages(1, 4) > 5400,
        "{table}"
    );
}
