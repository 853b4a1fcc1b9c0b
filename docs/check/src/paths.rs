//! Paths in backticks.
//!
//! A path may leave out the folders above it, as in `paths.rs` for this file. Only what looks like
//! a path of this project is checked: it ends with `/` or with one of [`EXTENSIONS`], and is
//! relative. `{a,b}` stands for either; a path with another special character is not checked.

use std::path::Path;

use crate::Finding;
use crate::document::Document;
use crate::tree::{Tree, follow};

/// How files of the project end that documents and comments name.
const EXTENSIONS: [&str; 6] = [".bt", ".lock", ".md", ".rs", ".sh", ".toml"];

/// Where files are built: `build/drills.md` is there only after `make drills`.
const BUILT: [&str; 2] = ["build/", "target/"];

/// Checks the paths of a document.
pub(crate) fn check_document(document: &Document, tree: &Tree) -> Vec<Finding> {
    let code = document
        .code
        .iter()
        .map(|(code, line)| (code.as_str(), *line));
    check(&document.file, code, tree)
}

/// Checks the paths in the comments of a Rust file.
pub(crate) fn check_comments(file: &Path, text: &str, tree: &Tree) -> Vec<Finding> {
    let code = text.lines().zip(1..).flat_map(|(line, number)| {
        // Whole lines only: `//` behind code may be part of a string.
        let comment = line.trim_start().strip_prefix("//").unwrap_or("");
        // Every second piece stands in backticks. A piece that goes over two lines is not a path.
        comment
            .split('`')
            .skip(1)
            .step_by(2)
            .map(move |code| (code, number))
    });
    check(file, code, tree)
}

fn check<'a>(
    file: &Path,
    code: impl Iterator<Item = (&'a str, usize)>,
    tree: &Tree,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (code, line) in code.filter(|(code, _)| is_path(code)) {
        if !alternatives(code)
            .iter()
            .all(|path| exists(file, path, tree))
        {
            let what = format!("`{code}` is not in the tree");
            findings.push(Finding {
                file: file.to_path_buf(),
                line,
                what,
            });
        }
    }
    findings
}

/// Whether `path`, as named in `file`, is in the tree.
fn exists(file: &Path, path: &str, tree: &Tree) -> bool {
    if path.starts_with("../") {
        let folder = file.parent().unwrap_or(Path::new(""));
        return follow(folder, path).is_some_and(|path| tree.has(&path));
    }
    tree.has_ending(Path::new(path))
}

fn is_path(code: &str) -> bool {
    let plain = code
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || "._-/{,}".contains(c));
    let ours = code.ends_with('/')
        || EXTENSIONS
            .iter()
            .any(|end| code.len() > end.len() && code.ends_with(end));
    plain && ours && !code.starts_with('/') && !BUILT.iter().any(|built| code.starts_with(built))
}

/// The paths that a path with braces stands for.
fn alternatives(path: &str) -> Vec<String> {
    let parts = path.split_once('{').and_then(|(before, rest)| {
        let (choice, after) = rest.split_once('}')?;
        Some((before, choice, after))
    });
    let Some((before, choice, after)) = parts else {
        return vec![path.to_owned()];
    };
    choice
        .split(',')
        .flat_map(|one| alternatives(&format!("{before}{one}{after}")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_relative_paths_of_known_kinds_are_checked() {
        for path in ["a.rs", "docs/a.md", "setup/", "a/{b,c}.rs", ".ci/fuzz.sh"] {
            assert!(is_path(path), "{path}");
        }
        for other in [
            "/etc/a.md",
            "a/b",
            "a.rs:12 b",
            "*.rs",
            ".rs",
            "build/a.md",
            "/",
            "N/M",
        ] {
            assert!(!is_path(other), "{other}");
        }
    }

    #[test]
    fn braces_stand_for_each_of_their_parts() {
        assert_eq!(alternatives("a/{b,c}/{d,e}.rs").len(), 4);
        assert_eq!(alternatives("a/{b,c}.rs"), ["a/b.rs", "a/c.rs"]);
        assert_eq!(alternatives("a.rs"), ["a.rs"]);
        assert_eq!(alternatives("a{b"), ["a{b"]);
    }

    #[test]
    fn comments_are_checked_and_code_is_not() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("folder")).unwrap();
        std::fs::write(root.path().join("folder/here.rs"), "").unwrap();
        let tree = Tree::read(root.path()).unwrap();
        let text = "let a = \"`gone.rs`\";\n//! `here.rs`, `folder/here.rs`, `folder/`\nb(); // `gone.rs`\n\n    // `other/here.rs`\n";
        let found = check_comments(Path::new("a.rs"), text, &tree);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].line, 5);
    }

    #[test]
    fn a_path_may_begin_above_its_file() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("folder")).unwrap();
        std::fs::write(root.path().join("above.rs"), "").unwrap();
        let tree = Tree::read(root.path()).unwrap();
        assert!(exists(Path::new("folder/a.md"), "../above.rs", &tree));
        assert!(!exists(
            Path::new("folder/a.md"),
            "../folder/above.rs",
            &tree
        ));
        assert!(!exists(Path::new("a.md"), "../above.rs", &tree));
    }
}
