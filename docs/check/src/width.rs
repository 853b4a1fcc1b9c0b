//! The width of the documents, and of comments in Rust files.

use std::path::Path;

use crate::Finding;
use crate::document::Document;

/// The most characters that a line may have.
const COLUMNS: usize = 100;

/// Checks that no line is too wide. The row of a table cannot be broken, and neither can a line
/// of one word, such as an address.
pub(crate) fn check(document: &Document) -> Vec<Finding> {
    document
        .lines
        .iter()
        .zip(1..)
        .filter(|((text, in_table), _)| !in_table && text.trim().contains(' '))
        .filter_map(|((text, _), line)| too_wide(&document.file, text, line))
        .collect()
}

/// Checks that no comment in `text`, the content of the Rust file `file`, is too wide: rustfmt does
/// not wrap them. Code in a comment and rows of tables are not checked.
pub(crate) fn check_comments(file: &Path, text: &str) -> Vec<Finding> {
    let mut in_code = false;
    let mut findings = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let Some(comment) = line.trim_start().strip_prefix("//") else {
            in_code = false;
            continue;
        };
        let comment = comment.trim_start_matches(['/', '!']).trim();
        if comment.starts_with("```") {
            in_code = !in_code;
        } else if !in_code && !comment.starts_with('|') && comment.contains(' ') {
            findings.extend(too_wide(file, line, number));
        }
    }
    findings
}

fn too_wide(file: &Path, text: &str, line: usize) -> Option<Finding> {
    let columns = text.chars().count();
    (columns > COLUMNS).then(|| Finding {
        file: file.to_path_buf(),
        line,
        what: format!("the line has {columns} columns, the limit is {COLUMNS}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_text_are_bounded_and_rows_of_tables_are_not() {
        let fits = format!("{} {}", "é".repeat(49), "b".repeat(50));
        let wide = format!("{fits}c");
        let text = format!(
            "{fits}\n{wide}\n\n{}\n\n| a |\n| - |\n| {wide} |\n",
            "d".repeat(200)
        );
        let found = check(&Document::parse(Path::new("a.md"), &text));
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(
            (found[0].line, found[0].what.contains("101 columns")),
            (2, true)
        );
    }
    #[test]
    fn comments_are_bounded_and_code_and_tables_in_them_are_not() {
        let wide = "w ".repeat(60);
        let text = format!(
            "//! {wide}\n//! | {wide} |\n//! ```text\n//! {wide}\n//! ```\n//! {}\n\nlet a = 1; \
             // {wide}\n    // {wide}\n",
            "w".repeat(120)
        );
        let found = check_comments(Path::new("a.rs"), &text);
        let lines: Vec<_> = found.iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [1, 9]);
    }
}
