//! The order of the modules of a crate.
//!
//! The section [`SECTION`] of a crate's root has a block of text with the crate's modules. A module
//! uses only those in lines below its own: not those above, and not those beside it. So a reader
//! needs to know only what is below. Tests may use everything.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::Finding;
use crate::tree::{Tree, TreeError};

/// The heading in the comment of a crate's root.
const SECTION: &str = "//! # Layers";

/// Checks every crate whose root has the section.
///
/// # Errors
///
/// A Rust file cannot be read.
pub(crate) fn check(tree: &Tree) -> Result<Vec<Finding>, TreeError> {
    let mut findings = Vec::new();
    for root in tree.files_with_extension("rs") {
        if !(root.ends_with("src/lib.rs") || root.ends_with("src/main.rs")) {
            continue;
        }
        let Some(layers) = layers(&tree.text(root)?) else {
            continue;
        };
        let source = root.parent().unwrap_or(Path::new(""));
        let mut modules = BTreeSet::new();
        for file in tree.files_with_extension("rs") {
            let Ok(inside) = file.strip_prefix(source) else {
                continue;
            };
            if file != root && !is_of_tests(inside) {
                let module = module(inside);
                findings.extend(uses_upward(file, &tree.text(file)?, &module, &layers));
                modules.insert(module);
            }
        }
        findings.extend(differences(root, &layers, &modules));
    }
    Ok(findings)
}

/// The modules of the section, each with its line, from the top. `None`: there is no section.
fn layers(root: &str) -> Option<BTreeMap<String, usize>> {
    let mut lines = root.lines().skip_while(|line| *line != SECTION).skip(1);
    lines.find(|line| line.starts_with("//! ```"))?;
    let block = lines.take_while(|line| !line.starts_with("//! ```"));
    let mut layers = BTreeMap::new();
    for (number, line) in block.enumerate() {
        let words = line.trim_start_matches("//!").split_whitespace();
        layers.extend(words.map(|word| (word.to_owned(), number)));
    }
    Some(layers)
}

/// The crate's module that a file belongs to.
fn module(inside: &Path) -> String {
    let first = inside.components().next();
    let first = first.map(|part| PathBuf::from(part.as_os_str()));
    let stem = first.as_deref().and_then(Path::file_stem);
    stem.unwrap_or_default().to_string_lossy().into_owned()
}

fn is_of_tests(file: &Path) -> bool {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    stem == "tests" || stem.ends_with("_tests") || file.iter().any(|part| part == "tests")
}

/// What `module` uses that is not below it.
fn uses_upward(
    file: &Path,
    text: &str,
    module: &str,
    layers: &BTreeMap<String, usize>,
) -> Vec<Finding> {
    let Some(own) = layers.get(module) else {
        return Vec::new(); // reported as a difference
    };
    let code = text.split("\n#[cfg(test)]\nmod tests").next();
    let mut findings = Vec::new();
    for (number, line) in code.unwrap_or_default().lines().enumerate() {
        let line = line.split("//").next().unwrap_or_default();
        for used in line.split("crate::").skip(1) {
            let end = used.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
            let used = &used[..end.unwrap_or(used.len())];
            if used != module && layers.get(used).is_some_and(|other| other <= own) {
                findings.push(Finding {
                    file: file.to_path_buf(),
                    line: number + 1,
                    what: format!("`{module}` uses `{used}`, which is not below it"),
                });
            }
        }
    }
    findings
}

/// Modules that are only in the section, or only in the folder.
fn differences(
    root: &Path,
    layers: &BTreeMap<String, usize>,
    modules: &BTreeSet<String>,
) -> Vec<Finding> {
    let finding = |what| Finding {
        file: root.to_path_buf(),
        line: 1,
        what,
    };
    let missing = modules
        .iter()
        .filter(|module| !layers.contains_key(*module));
    let missing = missing.map(|module| finding(format!("`{module}` is in no line of {SECTION}")));
    let gone = layers.keys().filter(|layer| !modules.contains(*layer));
    let gone = gone.map(|layer| finding(format!("`{layer}` is no module")));
    missing.chain(gone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_is_below() {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = root.path().join("crates/one/src").join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let order =
            "//! # Layers\n//!\n//! ```text\n//! top\n//! left right\n//! low gone\n//! ```\n";
        write("lib.rs", &format!("{order}mod top;\n"));
        write("top.rs", "use crate::left;\nuse crate::low::Thing;\n");
        write(
            "left/mod.rs",
            "use crate::right; // crate::top\nuse std::io;\n",
        );
        write(
            "right.rs",
            "use crate::low;\n\n#[cfg(test)]\nmod tests {\n    use crate::top;\n}\n",
        );
        write("low.rs", "fn a() -> crate::left::Thing {}\n");
        write("low_tests.rs", "use crate::top;\n");
        write("new.rs", "use crate::top;\n");
        let mut found = check(&Tree::read(root.path()).unwrap()).unwrap();
        found.sort();
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                "crates/one/src/left/mod.rs:1: `left` uses `right`, which is not below it",
                "crates/one/src/lib.rs:1: `gone` is no module",
                "crates/one/src/lib.rs:1: `new` is in no line of //! # Layers",
                "crates/one/src/low.rs:1: `low` uses `left`, which is not below it",
            ]
        );
    }
}
