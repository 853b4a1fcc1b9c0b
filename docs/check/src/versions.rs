//! The table of QEMU's versions in [`DOCUMENT`]: how many rows of [`MATRIX`] there are for each
//! pair of versions. So it says what the tests have found, and nothing else. For versions that only
//! the test's list has, the page says that they are not in it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::Finding;
use crate::tree::{Tree, TreeError};

pub(crate) const DOCUMENT: &str = "docs/versions.md";
const MATRIX: &str = "docs/matrix.md";
/// The list of the rows, which names versions as `V10_0`.
const ROWS: &str = "tests/src/matrix/rows.rs";
/// How the page begins to name the versions in [`ROWS`] that [`MATRIX`] does not have.
const NOT_RUN: &str = "Not in this table: the rows with ";

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
    let found = count(&tree.text(Path::new(MATRIX))?);
    let expected = table(&found);
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
    let mut what = Vec::new();
    if rows != expected {
        what.push(format!(
            "these rows do not count those of {MATRIX}, which are:\n{}",
            expected.join("\n")
        ));
    }
    if tree.has(Path::new(ROWS)) {
        what.extend(not_run(&text, &tree.text(Path::new(ROWS))?, &found));
    }
    let finding = |what| Finding {
        file: DOCUMENT.into(),
        line: header + 1,
        what,
    };
    Ok(what.into_iter().map(finding).collect())
}

/// What is wrong with the sentence about versions of which no row was run.
fn not_run(page: &str, rows: &str, found: &BTreeMap<(Version, Version), Rows>) -> Option<String> {
    let words = rows.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
    let listed: BTreeSet<Version> = words
        .filter_map(|word| {
            let (major, minor) = word.strip_prefix('V')?.split_once('_')?;
            Some((major.parse().ok()?, minor.parse().ok()?))
        })
        .collect();
    let run: BTreeSet<Version> = found.keys().flat_map(|(from, to)| [*from, *to]).collect();
    let missing: Vec<_> = listed
        .difference(&run)
        .map(|(major, minor)| format!("{major}.{minor}"))
        .collect();
    let is_said = match missing.is_empty() {
        true => !page.contains(NOT_RUN),
        false => page.contains(&format!("{NOT_RUN}{}. ", missing.join(", "))),
    };
    (!is_said).then(|| {
        format!(
            "versions in {ROWS} without a row in {MATRIX} are named by \"{NOT_RUN}\": {missing:?}"
        )
    })
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
        // A version that is only in the list of the rows.
        std::fs::create_dir_all(root.path().join("tests/src/matrix")).unwrap();
        std::fs::write(root.path().join(ROWS), "use V::{V7_2, V10_0, V11_1};").unwrap();
        let found = findings(right);
        assert_eq!(found.len(), 1);
        assert!(found[0].what.ends_with("[\"11.1\"]"), "{}", found[0].what);
        let said = format!("{right}\n{NOT_RUN}11.1. Others.\n");
        assert_eq!(findings(&said), []);
        // It was run since.
        std::fs::write(root.path().join(ROWS), "use V::{V7_2, V10_0};").unwrap();
        assert_eq!(findings(&said).len(), 1);
    }
}
