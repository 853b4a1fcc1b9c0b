//! Names of tests and fuzz targets in backticks.
//!
//! [`DOCUMENT`] names the test that covers each case. A word of lower-case letters, digits and
//! underscores, with at least one underscore, is such a name: a function in a Rust file of the
//! tree, or a fuzz target (`fuzz/fuzz_targets/`).

use std::collections::BTreeSet;
use std::path::Path;

use crate::Finding;
use crate::document::Document;
use crate::tree::{Tree, TreeError};

/// The document whose names are checked. Others also name fields, options and system calls.
pub(crate) const DOCUMENT: &str = "docs/hostile-peers.md";

/// Collects the names of functions and of fuzz targets.
///
/// # Errors
///
/// A Rust file cannot be read.
pub(crate) fn collect(tree: &Tree) -> Result<BTreeSet<String>, TreeError> {
    let mut names = BTreeSet::new();
    for file in tree.files_with_extension("rs") {
        let is_target = file.starts_with("fuzz/fuzz_targets");
        if let Some(stem) = file.file_stem().filter(|_| is_target) {
            names.insert(stem.to_string_lossy().into_owned());
        }
        names.extend(functions(&tree.text(file)?).map(str::to_owned));
    }
    Ok(names)
}

/// The names behind `fn` in `text`.
fn functions(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .filter_map(|line| {
            let (before, name) = line.split_once("fn ")?;
            let is_keyword = before.is_empty() || before.ends_with([' ', '(']);
            let end = name.find(|c| !is_name_char(c)).unwrap_or(name.len());
            is_keyword.then_some(&name[..end])
        })
}

/// Checks the names in [`DOCUMENT`] against `known`.
pub(crate) fn check(document: &Document, known: &BTreeSet<String>) -> Vec<Finding> {
    if document.file != Path::new(DOCUMENT) {
        return Vec::new();
    }
    document
        .code
        .iter()
        .filter(|(code, _)| is_name(code) && !known.contains(code))
        .map(|(code, line)| Finding {
            file: document.file.clone(),
            line: *line,
            what: format!("`{code}` is not a function or a fuzz target of the tree"),
        })
        .collect()
}

fn is_name(code: &str) -> bool {
    code.contains('_') && code.chars().all(is_name_char)
}

const fn is_name_char(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_without_a_function_are_found() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("fuzz/fuzz_targets")).unwrap();
        std::fs::write(root.path().join("fuzz/fuzz_targets/a_target.rs"), "").unwrap();
        let code = "    pub(crate) fn a_method(&self) {\n// fn in_a_comment()\nfn a_test() {\n";
        std::fs::write(root.path().join("code.rs"), code).unwrap();
        let known = collect(&Tree::read(root.path()).unwrap()).unwrap();
        let text = "`a_test` `a_method`\n`a_target`, `plain`, `NAMED_HERE`, `a_file.rs`\n\
                    `in_a_comment`\n`gone_test`\n";
        let found = check(&Document::parse(Path::new(DOCUMENT), text), &known);
        let lines: Vec<usize> = found.iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [3, 4], "{found:?}");
        let other = Document::parse(Path::new("docs/other.md"), text);
        assert_eq!(check(&other, &known), []);
    }
}
