//! The files of the project.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

/// Folders, at the top of the tree or of a workspace in it, with what is built or measured.
const NOT_OURS: [&str; 4] = [".git", "build", "results", "target"];

/// Every file and folder below the top of the tree, without what is built.
#[derive(Debug)]
pub(crate) struct Tree {
    root: PathBuf,
    /// Relative to `root`.
    files: BTreeSet<PathBuf>,
    folders: BTreeSet<PathBuf>,
}

/// A file or folder could not be read.
#[derive(Debug, thiserror::Error)]
#[error("reading {}", path.display())]
pub(crate) struct TreeError {
    path: PathBuf,
    source: io::Error,
}

impl Tree {
    /// Lists the tree below `root`.
    ///
    /// # Errors
    ///
    /// A folder cannot be read.
    pub(crate) fn read(root: &Path) -> Result<Self, TreeError> {
        let mut tree = Self {
            root: root.to_path_buf(),
            files: BTreeSet::new(),
            folders: BTreeSet::new(),
        };
        tree.add(Path::new(""))?;
        Ok(tree)
    }

    fn add(&mut self, folder: &Path) -> Result<(), TreeError> {
        let path = self.root.join(folder);
        let fails = |source| TreeError {
            path: path.clone(),
            source,
        };
        for entry in fs::read_dir(&path).map_err(fails)? {
            let entry = entry.map_err(fails)?;
            let name = folder.join(entry.file_name());
            if entry.file_type().map_err(fails)?.is_dir() {
                if !NOT_OURS.iter().any(|other| entry.file_name() == *other) {
                    self.add(&name)?;
                    self.folders.insert(name);
                }
            } else {
                self.files.insert(name);
            }
        }
        Ok(())
    }

    /// The files with this extension, in the order of their names.
    pub(crate) fn files_with_extension(&self, extension: &str) -> impl Iterator<Item = &Path> {
        self.files
            .iter()
            .map(PathBuf::as_path)
            .filter(move |file| file.extension().is_some_and(|found| found == extension))
    }

    /// The content of a file.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is not UTF-8.
    pub(crate) fn text(&self, file: &Path) -> Result<String, TreeError> {
        let path = self.root.join(file);
        fs::read_to_string(&path).map_err(|source| TreeError { path, source })
    }

    /// Whether `path`, relative to the top, is a file or a folder.
    pub(crate) fn has(&self, path: &Path) -> bool {
        path.as_os_str().is_empty() || self.files.contains(path) || self.folders.contains(path)
    }

    /// Whether the path of a file or folder is `tail`, or ends with it.
    pub(crate) fn has_ending(&self, tail: &Path) -> bool {
        self.files
            .iter()
            .chain(&self.folders)
            .any(|path| path.ends_with(tail))
    }
}

/// Follows the relative path `to` from the folder `from`; `None` if it leaves the tree.
pub(crate) fn follow(from: &Path, to: &str) -> Option<PathBuf> {
    let mut path = from.to_path_buf();
    for component in Path::new(to).components() {
        match component {
            Component::Normal(name) => path.push(name),
            Component::CurDir => {}
            Component::ParentDir => {
                if !path.pop() {
                    return None;
                }
            }
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_followed_within_the_tree_only() {
        let docs = Path::new("docs");
        assert_eq!(follow(docs, "a.md"), Some("docs/a.md".into()));
        assert_eq!(follow(docs, "../README.md"), Some("README.md".into()));
        assert_eq!(follow(docs, "./b/../c/"), Some("docs/c".into()));
        assert_eq!(follow(docs, "../../other"), None);
        assert_eq!(follow(docs, "/etc/passwd"), None);
    }
}
