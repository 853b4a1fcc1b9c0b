//! The table of QEMU's versions in [`DOCUMENT`]: how many rows of [`MATRIX`] there are for each
//! pair of versions. So it says what the tests have found, and nothing else.

use std::collections::BTreeMap;
use std::path::Path;

use crate::Finding;
use crate::tree::{Tree, TreeError};

pub(crate) const DOCUMENT: &str = "docs/versions.md";
const MATRIX: &str = "docs/matrix.md";

/// The line above the table's rows, so that other tables are left alone.
const HEADER: &str = "| source | destination | moved | refused | not tested |";

/// The rows of [`MATRIX`] of a pair of versions.
#[derive(Debug, Default, PartialEq, Eq)]
struct Rows {
    moved: usize,
    refused: usize,
    not_tested: usize,
}

/// Checks the table, if there is one.
///
/// # Errors
///
/// A document cannot be read.
pub(crate) fn check(tree: &Tree) -> Result<Vec<Finding>, TreeError> {
    if ![DOCUMENT, MATRIX]
        .iter()
        .all(|file| tree.has(Path::new(file)))
    {
        return Ok(Vec::new());
    }
    let expected = table(&count(&tree.text(Path::new(MATRIX))?));
    let text = tree.text(Path::new(DOCUMENT))?;
    let Some(header) = text.lines().position(|line| line == HEADER) else {
        return Ok(Vec::new());
    };
    // Behind the header is the line that aligns the columns.
    let rows: Vec<&str> = text
        .lines()
        .skip(header + 2)
        .take_while(|line| line.starts_with('|'))
        .collect();
    if rows == expected {
        return Ok(Vec::new());
    }
    let what = format!(
        "these rows do not count those of {MATRIX}, which are:\n{}",
        expected.join("\n")
    );
    Ok(vec![Finding {
        file: DOCUMENT.into(),
        line: header + 1,
        what,
    }])
}

/// Counts the rows by the versions of source and destination, which begin their cells.
fn count(matrix: &str) -> BTreeMap<(Version, Version), Rows> {
    let mut found: BTreeMap<_, Rows> = BTreeMap::new();
    for line in matrix.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let &[_, _, source, destination, result, ..] = cells.as_slice() else {
            continue;
        };
        let (Some(source), Some(destination)) = (version(source), version(destination)) else {
            continue;
        };
        let rows = found.entry((source, destination)).or_default();
        match result {
            "moved" => rows.moved += 1,
            "refused" => rows.refused += 1,
            _ => rows.not_tested += 1,
        }
    }
    found
}

/// Numbers, so that 7.2 comes before 10.0.
type Version = (u32, u32);

/// The version that a cell begins with: `10.0, pc-q35-7.2, memfd shared`.
fn version(cell: &str) -> Option<Version> {
    let (version, _) = cell.split_once(',')?;
    let (major, minor) = version.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn table(rows: &BTreeMap<(Version, Version), Rows>) -> Vec<String> {
    rows.iter()
        .map(|(((major, minor), (to_major, to_minor)), rows)| {
            let Rows {
                moved,
                refused,
                not_tested,
            } = rows;
            format!(
                "| {major}.{minor} | {to_major}.{to_minor} | {moved} | {refused} | {not_tested} |"
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_counts_the_rows_of_the_matrix() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("docs")).unwrap();
        let matrix = "| guest | source | destination | result |\n|---|---|---|---|\n\
            | a | 10.0, q35 | 10.0, q35 | moved | 1 |\n\
            | b | 7.2, q35 | 10.0, q35 | moved | 1 |\n\
            | c | 7.2, q35 | 10.0, q35 | refused | |\n\
            | d | 7.2, q35 | 10.0, q35 | not tested: why | |\n";
        std::fs::write(root.path().join(MATRIX), matrix).unwrap();
        let findings = |rows: &str| {
            let text = format!("Text.\n\n{HEADER}\n| --- |\n{rows}\nMore.\n");
            std::fs::write(root.path().join(DOCUMENT), text).unwrap();
            check(&Tree::read(root.path()).unwrap()).unwrap()
        };
        let right = "| 7.2 | 10.0 | 1 | 1 | 1 |\n| 10.0 | 10.0 | 1 | 0 | 0 |\n";
        assert_eq!(findings(right), []);
        let wrong = findings("| 7.2 | 10.0 | 2 | 1 | 1 |\n| 10.0 | 10.0 | 1 | 0 | 0 |\n");
        assert_eq!(wrong.len(), 1);
        assert_eq!(wrong[0].line, 3);
        assert!(
            wrong[0].what.ends_with(right.trim_end()),
            "{}",
            wrong[0].what
        );
    }
}
