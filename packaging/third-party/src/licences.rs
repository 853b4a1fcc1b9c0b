//! The licence texts of crates: each text once, with the crates that it belongs to.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::graph::Linked;

/// How the names of files with a licence, or with what it requires to be passed on, begin.
const BEGINNINGS: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE"];

/// The texts of a crate cannot be read.
#[derive(Debug, Error)]
#[error("reading the licences of a crate in {folder}")]
pub(crate) struct LicenceError {
    folder: PathBuf,
    #[source]
    source: io::Error,
}

/// All of it, as one text.
pub(crate) fn text(crates: &[Linked]) -> Result<String, LicenceError> {
    let mut all = String::from(
        "hikkoshi is linked with these crates from crates.io. Their licences follow.\n\n",
    );
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for one in crates {
        let name = format!("{} {}", one.name, one.version);
        let own = texts_in(&one.folder).map_err(|source| LicenceError {
            folder: one.folder.clone(),
            source,
        })?;
        // Writing to a string does not fail.
        let _ = write!(all, "{name}: {}", one.licence);
        if own.is_empty() {
            all.push_str(" (the crate has no text of its own)");
        }
        all.push('\n');
        for text in own {
            texts.entry(text).or_default().push(name.clone());
        }
    }
    let line = "=".repeat(80);
    for (text, owners) in texts {
        let _ = write!(
            all,
            "\n{line}\n{}:\n\n{}\n",
            owners.join(", "),
            text.trim_end()
        );
    }
    Ok(all)
}

/// The texts in the folder of a crate, with line ends of Unix.
fn texts_in(folder: &Path) -> io::Result<Vec<String>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().to_ascii_uppercase();
        let wanted = BEGINNINGS.iter().any(|begin| name.starts_with(begin));
        if wanted && entry.file_type()?.is_file() {
            files.push(entry.path());
        }
    }
    files.sort();
    let read = |path| Ok(String::from_utf8_lossy(&fs::read(path)?).replace("\r\n", "\n"));
    files.into_iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test's failure is the message

    use super::*;

    #[test]
    fn a_text_of_several_crates_is_printed_once_with_their_names() {
        let root = tempfile::tempdir().unwrap();
        let one = |name: &str, files: &[(&str, &str)]| {
            let folder = root.path().join(name);
            fs::create_dir(&folder).unwrap();
            for (file, text) in files {
                fs::write(folder.join(file), text).unwrap();
            }
            Linked {
                name: name.to_owned(),
                version: "1.0.0".to_owned(),
                licence: "MIT".to_owned(),
                folder,
            }
        };
        let crates = [
            one("a", &[("LICENSE-MIT", "the text\r\n"), ("README.md", "no")]),
            one(
                "b",
                &[("license", "the text\n"), ("NOTICE.txt", "a notice")],
            ),
            one("c", &[]),
        ];
        let text = text(&crates).unwrap();
        assert_eq!(text.matches("the text").count(), 1, "{text}");
        assert!(text.contains("a 1.0.0, b 1.0.0:\n\nthe text\n"), "{text}");
        assert!(text.contains("b 1.0.0:\n\na notice\n"), "{text}");
        assert!(
            text.contains("c 1.0.0: MIT (the crate has no text"),
            "{text}"
        );
    }
}
