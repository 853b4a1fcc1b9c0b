//! Checks the documents of the project; `make lint` runs it at the top of the tree.
//!
//! - A relative link leads to a file or folder of the tree, and its anchor to a heading; a
//!   document below `docs/` is linked from another one ([`links`]).
//! - A path in backticks, in a document or in a comment of a Rust file, names a file or folder of
//!   the tree ([`paths`]).
//! - A name of a test in backticks in `docs/hostile-peers.md` is a function of the tree
//!   ([`test_names`]).
//! - A name of a thread in the code of a crate is in the section of `ARCHITECTURE.md` about
//!   threads, and the other way round ([`threads`]).
//! - A revision that a document names is in the history, and is not too old ([`revisions`]). Not
//!   checked where there is no complete history, such as in an archive.
//! - The table of QEMU's versions in `docs/versions.md` counts the rows of `docs/matrix.md`
//!   ([`versions`]).
//! - A module of a crate uses only those below it, where the crate's root states an order
//!   ([`layers`]).
//! - A line of a document, or of a comment of a Rust file, has at most 100 characters ([`width`]).
//!
//! Links to other hosts are not followed.

mod document;
mod layers;
mod links;
mod paths;
mod revisions;
mod test_names;
mod threads;
mod tree;
mod versions;
mod width;

use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::document::Document;
use crate::revisions::{History, HistoryError};
use crate::tree::{Tree, TreeError};
use error_reporter::Report;

/// One thing to correct.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    /// The file, relative to the top of the tree.
    file: PathBuf,
    /// The line, from 1.
    line: usize,
    /// What is wrong with it.
    what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file.display(), self.line, self.what)
    }
}

/// The check could not be made.
#[derive(Debug, thiserror::Error)]
enum CheckError {
    #[error(transparent)]
    Tree(#[from] TreeError),
    #[error(transparent)]
    History(#[from] HistoryError),
}

/// Checks every document and every Rust file below `root`.
fn check(root: &Path) -> Result<Vec<Finding>, CheckError> {
    let tree = Tree::read(root)?;
    let mut documents = Vec::new();
    let mut findings = Vec::new();
    for file in tree.files_with_extension("md") {
        documents.push(Document::parse(file, &tree.text(file)?));
    }
    let names = test_names::collect(&tree)?;
    let code = threads::collect(&tree)?;
    for document in &documents {
        findings.extend(links::check(document, &documents, &tree));
        findings.extend(paths::check_document(document, &tree));
        findings.extend(test_names::check(document, &names));
        findings.extend(threads::check(document, &code));
        findings.extend(width::check(document));
    }
    match History::of(root) {
        Some(history) => findings.extend(revisions::check(&documents, &history)?),
        None => notice("no complete history by git here: revisions are NOT checked"),
    }
    findings.extend(links::check_reachable(&documents));
    findings.extend(versions::check(&tree)?);
    findings.extend(layers::check(&tree)?);
    for file in tree.files_with_extension("rs") {
        let text = tree.text(file)?;
        findings.extend(paths::check_comments(file, &text, &tree));
        findings.extend(width::check_comments(file, &text));
    }
    findings.sort();
    Ok(findings)
}

/// Tells a person.
fn notice(text: &str) {
    // If nobody can be told, the findings count.
    let _ = writeln!(io::stderr(), "hikkoshi-docs: {text}");
}

fn main() -> ExitCode {
    let result = check(Path::new("."));
    let mut out = io::stderr().lock();
    let written = match &result {
        Ok(findings) => findings
            .iter()
            .try_for_each(|finding| writeln!(out, "{finding}")),
        Err(e) => writeln!(out, "hikkoshi-docs: {}", Report::new(e)),
    };
    match (written, result) {
        (Ok(()), Ok(findings)) if findings.is_empty() => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn findings_name_file_and_line_in_order() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("docs")).unwrap();
        fs::create_dir_all(root.path().join("target")).unwrap();
        fs::write(root.path().join("target/other.md"), "[gone](gone.md)").unwrap();
        fs::write(root.path().join("code.rs"), "//! See `docs/gone.md`.\n").unwrap();
        let readme = "# A title\n\n[there](docs/there.md#a-part), [gone](docs/gone.md)\n";
        fs::write(root.path().join("README.md"), readme).unwrap();
        fs::write(
            root.path().join("docs/there.md"),
            "# Another part\n\n`code.rs`\n",
        )
        .unwrap();
        let found: Vec<String> = check(root.path())
            .unwrap()
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            found,
            [
                "README.md:3: the link docs/gone.md leads to no file",
                "README.md:3: the link docs/there.md#a-part leads to no heading of docs/there.md",
                "code.rs:1: `docs/gone.md` is not in the tree",
            ]
        );
    }

    #[test]
    fn a_folder_that_does_not_exist_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        assert!(check(&root.path().join("gone")).is_err());
    }
}
