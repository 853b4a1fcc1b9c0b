//! Names of threads.
//!
//! A section of each document in [`LISTS`] lists the threads of the crates. A name that a thread
//! gets in the code of a crate stands in backticks there, with `N` for each value, or begins with
//! one that ends with `*`. Each name in one column of the tables there is in that code.

use std::path::{Component, Path, PathBuf};

use crate::Finding;
use crate::document::Document;
use crate::tree::{Tree, TreeError};

/// A section that lists the threads.
struct List {
    document: &'static str,
    /// The section's heading.
    section: &'static str,
    /// The column of its tables that has names of threads, from 1.
    column: usize,
}

const LISTS: [List; 2] = [
    List {
        document: "ARCHITECTURE.md",
        section: "## Threads",
        column: 1,
    },
    List {
        document: "docs/security.md",
        section: "## What limits a hostile peer",
        column: 2,
    },
];

/// What stands before the name of a thread.
const NAMED: [&str; 3] = [".name(\"", ".name(format!(\"", ".thread_name(\""];

/// A Rust file of a crate, without its tests.
#[derive(Debug)]
pub(crate) struct Code {
    file: PathBuf,
    text: String,
}

/// Reads the code of the crates.
///
/// # Errors
///
/// A Rust file cannot be read.
pub(crate) fn collect(tree: &Tree) -> Result<Vec<Code>, TreeError> {
    let mut all = Vec::new();
    for file in tree.files_with_extension("rs").filter(|file| is_code(file)) {
        let text = tree.text(file)?;
        let code = text.split("\nmod tests {").next().unwrap_or_default();
        all.push(Code {
            file: file.to_path_buf(),
            text: code.to_owned(),
        });
    }
    Ok(all)
}

/// Whether this file is in the `src` folder of a crate, and not one of tests.
fn is_code(file: &Path) -> bool {
    let has = |name: &str| {
        let mut parts = file.components();
        parts.any(|part| part == Component::Normal(name.as_ref()))
    };
    file.starts_with("crates") && has("src") && !has("tests") && !file.ends_with("tests.rs")
}

/// Compares a document of [`LISTS`] with the code. Finds nothing in other documents.
pub(crate) fn check(document: &Document, code: &[Code]) -> Vec<Finding> {
    let mut lists = LISTS.iter();
    let Some(list) = lists.find(|list| document.file == Path::new(list.document)) else {
        return Vec::new();
    };
    let listed = Listed::of(document, list);
    let title = list.section.trim_start_matches("## ");
    let mut findings = Vec::new();
    for Code { file, text } in code {
        for (name, line) in threads(text) {
            if !listed.has(&name) {
                findings.push(Finding {
                    file: file.clone(),
                    line,
                    what: format!(
                        "the thread `{name}` is not in the section {title} of {}",
                        list.document
                    ),
                });
            }
        }
    }
    for (name, line) in listed.in_tables {
        // What follows a number may be written elsewhere.
        let begin = match name.split_once("-N") {
            Some((begin, _)) => format!("\"{begin}-{{"),
            None => format!("\"{name}\""),
        };
        if !code.iter().any(|code| code.text.contains(&begin)) {
            findings.push(Finding {
                file: document.file.clone(),
                line,
                what: format!("no crate names a thread `{name}`"),
            });
        }
    }
    findings
}

/// The names that threads get in `text`, with their lines.
fn threads(text: &str) -> impl Iterator<Item = (String, usize)> {
    text.lines().zip(1..).flat_map(|(line, number)| {
        let names = NAMED.iter().filter_map(move |named| {
            let (_, rest) = line.split_once(named)?;
            rest.split_once('"').map(|(name, _)| with_numbers(name))
        });
        names.map(move |name| (name, number))
    })
}

/// The name with `N` in place of what stands in braces.
fn with_numbers(name: &str) -> String {
    let mut parts = name.split('{');
    let mut result = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        result.push('N');
        result.push_str(part.split_once('}').map_or("", |(_, rest)| rest));
    }
    result
}

/// What the section lists, with lines.
#[derive(Debug)]
struct Listed<'a> {
    /// All that stands in backticks.
    names: Vec<(&'a str, usize)>,
    /// What of that stands in the column of a table.
    in_tables: Vec<(&'a str, usize)>,
}

impl<'a> Listed<'a> {
    fn has(&self, name: &str) -> bool {
        self.names
            .iter()
            .any(|(listed, _)| match listed.strip_suffix('*') {
                Some(begin) => name.starts_with(begin),
                None => *listed == name,
            })
    }

    fn of(document: &'a Document, list: &List) -> Self {
        let mut in_section = false;
        let mut lines = Vec::new();
        for ((line, in_table), number) in document.lines.iter().zip(1..) {
            if line.starts_with("## ") {
                in_section = line == list.section;
            }
            if in_section {
                lines.push((number, line.as_str(), *in_table));
            }
        }
        let is_listed = |number: usize| lines.iter().any(|(listed, ..)| *listed == number);
        let code = document.code.iter();
        let names = code.filter(|(_, number)| is_listed(*number));
        let tables = lines.iter().filter(|(.., in_table)| *in_table);
        let in_tables = tables.flat_map(|(number, row, _)| {
            let cell = row.split('|').nth(list.column).unwrap_or_default();
            // Every second piece stands in backticks.
            let names = cell.split('`').skip(1).step_by(2);
            names.map(move |name| (name, *number))
        });
        Self {
            names: names
                .map(|(name, number)| (name.as_str(), *number))
                .collect(),
            in_tables: in_tables.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> Vec<Code> {
        vec![Code {
            file: "crates/a/src/lib.rs".into(),
            text: text.to_owned(),
        }]
    }

    fn found(document: &str, code: &[Code]) -> Vec<String> {
        found_in("ARCHITECTURE.md", document, code)
    }

    fn found_in(file: &str, document: &str, code: &[Code]) -> Vec<String> {
        let document = Document::parse(Path::new(file), document);
        let found = check(&document, code);
        found.iter().map(ToString::to_string).collect()
    }

    const LISTED: &str = "# A\n\n`not-here`\n\n## Threads\n\n| side | does |\n| --- | --- |\n\
                          | `src-N`, `src-N-in` | sends |\n\nAlso `other`.\n\n## More\n\n`nor-here`\n";

    #[test]
    fn a_thread_that_is_not_listed_is_found() {
        let code = code(
            "x.name(\"other\".into());\nx.name(format!(\"src-{number}\"));\n\
             x.name(\"not-here\".into())\nx.thread_name(\"nor-here\")\n",
        );
        assert_eq!(
            found(LISTED, &code),
            [
                "crates/a/src/lib.rs:3: the thread `not-here` is not in the section Threads of \
                 ARCHITECTURE.md",
                "crates/a/src/lib.rs:4: the thread `nor-here` is not in the section Threads of \
                 ARCHITECTURE.md",
            ]
        );
        let other = Document::parse(Path::new("docs/other.md"), LISTED);
        assert_eq!(check(&other, &code), []);
    }

    #[test]
    fn a_listed_thread_that_no_crate_has_is_found() {
        assert_eq!(
            found(LISTED, &code("let name = format!(\"src_{number}\");\n")),
            [
                "ARCHITECTURE.md:9: no crate names a thread `src-N`",
                "ARCHITECTURE.md:9: no crate names a thread `src-N-in`",
            ]
        );
        assert_eq!(
            found(LISTED, &code("name: format!(\"src-{n}\"),\n")),
            [""; 0]
        );
    }

    #[test]
    fn what_is_said_about_the_security_of_threads_is_about_those_that_exist() {
        let document = "## What limits a hostile peer\n\n| side | confined |\n| --- | --- |\n\
                        | `hikkoshi daemon` | `src-gone`, `src-N` |\n\nOthers: `dmn-*`.\n";
        let code = code(
            "x.name(format!(\"src-{n}\"))\nx.name(\"dmn-accept\".into())\n\
             x.name(\"src-new\".into())\n",
        );
        assert_eq!(
            found_in("docs/security.md", document, &code),
            [
                "crates/a/src/lib.rs:3: the thread `src-new` is not in the section What limits a \
                 hostile peer of docs/security.md",
                "docs/security.md:5: no crate names a thread `src-gone`",
            ]
        );
    }

    #[test]
    fn tests_of_the_crates_are_not_their_code() {
        let root = tempfile::tempdir().unwrap();
        for (file, text) in [
            (
                "crates/a/src/lib.rs",
                "one\n#[cfg(test)]\nmod tests {\ntwo\n}\n",
            ),
            ("crates/a/src/b/tests.rs", "three\n"),
            ("crates/a/tests/c.rs", "four\n"),
            ("guest/a/src/lib.rs", "five\n"),
        ] {
            let path = root.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let code = collect(&Tree::read(root.path()).unwrap()).unwrap();
        let texts: Vec<_> = code.iter().map(|code| code.text.as_str()).collect();
        assert_eq!(texts, ["one\n#[cfg(test)]"]);
    }
}
