//! Figures are of this tree: a revision that a page or one of its plots names as measured is in the
//! project's history, and not too many commits of product code came after it.
//!
//! A decision keeps the figures that it was taken by.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{fs, io};

use crate::Finding;
use crate::document::Document;
use crate::tree::follow;

/// Product code: what figures are measured of.
const PRODUCT: [&str; 2] = ["crates", "ept"];

/// How many commits of product code may come after the revision of figures.
const MOST: u32 = 300;

/// The project's history, of which git is asked.
#[derive(Debug)]
pub(crate) struct History {
    root: PathBuf,
}

/// Git does not answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HistoryError {
    /// It was not run.
    #[error("running git rev-list in {}", root.display())]
    Run {
        /// The top of the tree.
        root: PathBuf,
        source: io::Error,
    },
    /// It wrote no number.
    #[error("git rev-list wrote {text:?} where a number of commits was expected")]
    NoNumber {
        /// What it wrote.
        text: String,
    },
}

impl History {
    /// The history of the tree at `root`. None if there is no complete one: an archive or a shallow
    /// clone.
    pub(crate) fn of(root: &Path) -> Option<Self> {
        let history = Self { root: root.into() };
        let shallow = history.git(&["rev-parse", "--is-shallow-repository"]);
        shallow
            .is_ok_and(|output| output.status.success() && output.stdout == b"false\n")
            .then_some(history)
    }

    fn git(&self, arguments: &[&str]) -> Result<Output, HistoryError> {
        let mut git = Command::new("git");
        git.arg("-C").arg(&self.root).args(arguments);
        git.output().map_err(|source| HistoryError::Run {
            root: self.root.clone(),
            source,
        })
    }

    /// How many commits of product code came after a revision, if it is in the history.
    fn commits_after(&self, revision: &str) -> Result<Option<u32>, HistoryError> {
        let known = self.git(&["merge-base", "--is-ancestor", revision, "HEAD"])?;
        if !known.status.success() {
            return Ok(None);
        }
        let range = format!("{revision}..HEAD");
        let count = ["rev-list", "--count", &range, "--"];
        let counted = self.git(&[&count[..], &PRODUCT[..]].concat())?;
        let text = String::from_utf8_lossy(&counted.stdout).trim().to_owned();
        let number = text.parse();
        number
            .map(Some)
            .map_err(|_| HistoryError::NoNumber { text })
    }
}

/// The revisions that a document names, and their lines (from 1): after the word *revision*, or
/// *revisions* and further ones after *and*, which may be at the end of the line before.
fn revisions(lines: &[(String, bool)]) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut expected = false;
    for (number, (line, _)) in (1..).zip(lines) {
        for word in line.split_whitespace() {
            let plain = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
            // What a bench writes in a tree with changes.
            let plain = plain.strip_suffix("-dirty").unwrap_or(plain);
            if matches!(plain, "revision" | "revisions") {
                expected = true;
            } else if expected && is_revision(plain) {
                found.push((number, plain));
            } else {
                expected &= plain == "and";
            }
        }
    }
    found
}

/// The words of the plots that a document shows, each with the line of its link. (Links that lead
/// nowhere are found elsewhere.)
fn plots(document: &Document, root: &Path) -> Vec<(usize, Vec<(String, bool)>)> {
    let folder = document.file.parent().unwrap_or(Path::new(""));
    let links = document.links.iter();
    links
        .filter(|(link, _)| {
            Path::new(link)
                .extension()
                .is_some_and(|kind| kind == "svg")
        })
        .filter_map(|(link, line)| {
            let svg = fs::read_to_string(root.join(follow(folder, link)?)).ok()?;
            let text = svg.replace(['<', '>'], " ");
            Some((*line, vec![(text, false)]))
        })
        .collect()
}

fn is_revision(word: &str) -> bool {
    let is_hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
    (7..=12).contains(&word.len()) && word.chars().all(is_hex)
}

/// Checks the revisions that the pages name.
///
/// # Errors
/// Git does not answer.
pub(crate) fn check(
    documents: &[Document],
    history: &History,
) -> Result<Vec<Finding>, HistoryError> {
    check_by(documents, history, MOST)
}

fn check_by(
    documents: &[Document],
    history: &History,
    most: u32,
) -> Result<Vec<Finding>, HistoryError> {
    let mut findings = Vec::new();
    for document in documents {
        let Document { file, lines, .. } = document;
        if file.starts_with("docs/decisions") {
            continue;
        }
        let plots = plots(document, &history.root);
        let of_plots = plots.iter().flat_map(|(line, text)| {
            let found = revisions(text);
            found.into_iter().map(|(_, revision)| (*line, revision))
        });
        for (line, revision) in revisions(lines).into_iter().chain(of_plots) {
            let what = match history.commits_after(revision)? {
                None => format!("revision {revision} is not in the project's history"),
                Some(after) if after <= most => continue,
                Some(after) => format!(
                    "{after} commits of product code came after revision {revision} (at most \
                     {most}): measure the figures again, or remove them"
                ),
            };
            findings.push(Finding {
                file: file.clone(),
                line,
                what,
            });
        }
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revisions_are_found_also_in_the_next_line() {
        let text = "quiet, revision b87c50ff, five\nrevisions `ac7ed98` and\n347fbf1-dirty,\n\
                    revision one, and 1234567\na revision\n";
        let document = Document::parse(Path::new("a.md"), text);
        assert_eq!(
            revisions(&document.lines),
            [(1, "b87c50ff"), (2, "ac7ed98"), (3, "347fbf1")]
        );
    }

    /// A history of `commits` commits of product code after the first one, whose revision is
    /// returned.
    fn history(root: &Path, commits: u32) -> (History, String) {
        let history = History { root: root.into() };
        let run = |arguments: &[&str]| {
            let output = history.git(arguments).unwrap();
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap().trim().to_owned()
        };
        run(&["init", "-q"]);
        run(&["config", "user.name", "test"]);
        run(&["config", "user.email", "test@example.org"]);
        fs::create_dir(root.join("crates")).unwrap();
        for commit in 0..=commits {
            fs::write(root.join("crates/code"), commit.to_string()).unwrap();
            run(&["add", "."]);
            run(&["commit", "-q", "-m", "test"]);
        }
        let first = run(&["rev-list", "--max-parents=0", "--abbrev-commit", "HEAD"]);
        (history, first)
    }

    #[test]
    fn old_and_unknown_revisions_are_found() {
        let root = tempfile::tempdir().unwrap();
        let (history, first) = history(root.path(), 3);
        let page = |name: &str, text: String| Document::parse(Path::new(name), &text);
        let old = format!("of revision {first}\n");
        let svg = format!("<text>today, revision {first}: 2 cores</text>");
        fs::create_dir(root.path().join("docs")).unwrap();
        fs::write(root.path().join("docs/plot.svg"), svg).unwrap();
        let documents = [
            page("docs/old.md", old.clone()),
            page("docs/plot.md", "![a plot](plot.svg)".into()),
            page("docs/decisions/0001.md", old),
            page("docs/unknown.md", "revision 0123456".into()),
            page("docs/new.md", "no figures".into()),
        ];
        let found: Vec<String> = check_by(&documents, &history, 2)
            .unwrap()
            .iter()
            .map(|finding| format!("{}: {}", finding.file.display(), finding.what))
            .collect();
        let [old, plot, unknown] = &found[..] else {
            panic!("{found:?}")
        };
        assert!(old.starts_with("docs/old.md: 3 commits"), "{old}");
        assert!(plot.starts_with("docs/plot.md: 3 commits"), "{plot}");
        assert!(unknown.starts_with("docs/unknown.md: revision 0123456 is not"));
    }

    #[test]
    fn a_tree_without_a_history_has_none() {
        let root = tempfile::tempdir().unwrap();
        assert!(History::of(root.path()).is_none());
    }
}
