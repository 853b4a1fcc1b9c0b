//! The width of the documents.

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
        .map(|((text, _), line)| (text.chars().count(), line))
        .filter(|(columns, _)| *columns > COLUMNS)
        .map(|(columns, line)| {
            let what = format!("the line has {columns} columns, the limit is {COLUMNS}");
            Finding {
                file: document.file.clone(),
                line,
                what,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

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
}
