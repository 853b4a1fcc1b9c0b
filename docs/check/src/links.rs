//! Relative links of the documents.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use crate::Finding;
use crate::document::Document;
use crate::tree::{Tree, follow};

/// Checks that every relative link leads to a file or folder, and its anchor to a heading.
pub(crate) fn check(document: &Document, documents: &[Document], tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (link, line) in &document.links {
        if let Some(what) = wrong(document, link, documents, tree) {
            findings.push(Finding {
                file: document.file.clone(),
                line: *line,
                what,
            });
        }
    }
    findings
}

/// Checks that a document below `docs/` can be found: another one links to it. A folder's README
/// is found by itself.
pub(crate) fn check_reachable(documents: &[Document]) -> Vec<Finding> {
    let linked: HashSet<PathBuf> = documents
        .iter()
        .flat_map(|document| {
            let folder = document.file.parent().unwrap_or(Path::new(""));
            let targets = document.links.iter().filter_map(move |(link, _)| {
                let path = link.split('#').next()?;
                follow(folder, path)
            });
            targets.filter(|target| *target != document.file)
        })
        .collect();
    documents
        .iter()
        .filter(|document| {
            document.file.starts_with("docs") && !document.file.ends_with("README.md")
        })
        .filter(|document| !linked.contains(&document.file))
        .map(|document| Finding {
            file: document.file.clone(),
            line: 1,
            what: "no other document links to this one".to_owned(),
        })
        .collect()
}

fn wrong(document: &Document, link: &str, documents: &[Document], tree: &Tree) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = link
        .split_once('#')
        .map_or((link, None), |(p, a)| (p, Some(a)));
    let folder = document.file.parent().unwrap_or(Path::new(""));
    let target = if path.is_empty() {
        document.file.clone()
    } else {
        match follow(folder, path) {
            Some(target) if tree.has(&target) => target,
            _ => return Some(format!("the link {link} leads to no file")),
        }
    };
    let anchor = anchor?;
    let known = documents
        .iter()
        .find(|other| other.file == target)
        .is_some_and(|other| other.anchors.iter().any(|known| known == anchor));
    (!known).then(|| {
        format!(
            "the link {link} leads to no heading of {}",
            target.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_files_folders_and_headings() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("docs")).unwrap();
        std::fs::write(root.path().join("docs/b.md"), "").unwrap();
        let tree = Tree::read(root.path()).unwrap();
        let documents = [
            Document::parse(Path::new("docs/a.md"), "# Here\n"),
            Document::parse(Path::new("docs/b.md"), "## There\n"),
        ];
        let wrong = |link| wrong(&documents[0], link, &documents, &tree);
        for good in [
            "b.md",
            "../docs/",
            "..",
            "b.md#there",
            "#here",
            "https://a.b/c.md#d",
        ] {
            assert_eq!(wrong(good), None, "{good}");
        }
        for bad in [
            "a.rs",
            "../../docs",
            "/etc/passwd",
            "b.md#here",
            "#there",
            "../docs#here",
        ] {
            assert!(wrong(bad).is_some(), "{bad}");
        }
    }

    #[test]
    fn a_document_of_docs_is_linked_from_another_one() {
        let documents = [
            Document::parse(Path::new("docs/README.md"), "[b](b.md#c)\n"),
            Document::parse(Path::new("docs/b.md"), ""),
            Document::parse(Path::new("docs/c.md"), "[myself](c.md)\n"),
            Document::parse(Path::new("OTHER.md"), ""),
        ];
        let found = check_reachable(&documents);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].file, Path::new("docs/c.md"));
    }
}
