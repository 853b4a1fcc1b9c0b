//! The control folder: a socket and a key for each migration that runs.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use hikkoshi_linux::{Others, UnsafeRights, check_rights, connect_unix};

/// A folder that only its owner can enter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlFolder(PathBuf);

/// The folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ControlFolderError {
    /// It cannot be made or read.
    #[error("the control folder {}", folder.display())]
    Io {
        /// The folder.
        folder: PathBuf,
        /// The reason.
        #[source]
        cause: io::Error,
    },
    /// Other users could enter it.
    #[error("the control folder {}: {rights}", folder.display())]
    Unsafe {
        /// The folder.
        folder: PathBuf,
        /// Its owner and its permissions.
        rights: UnsafeRights,
    },
}

impl ControlFolder {
    /// The control folder in this run folder (`/run/hikkoshi`). It is not in the status folder,
    /// which others may have reason to read.
    pub fn in_run_folder(folder: &Path) -> Self {
        Self(folder.join("control"))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The socket of the migration with this name.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.sock"))
    }

    /// The file with its key.
    pub(crate) fn key(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.key"))
    }

    /// Makes the folder, unless it exists.
    ///
    /// # Errors
    /// If that fails, or other users have rights to it.
    pub(crate) fn create(&self) -> Result<(), ControlFolderError> {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder
            .create(&self.0)
            .map_err(|cause| self.failed(cause))?;
        self.check()
    }

    /// Checks that only this user and root can enter the folder.
    ///
    /// # Errors
    /// If others can, or it does not exist.
    pub(crate) fn check(&self) -> Result<(), ControlFolderError> {
        let metadata = fs::metadata(&self.0).map_err(|cause| self.failed(cause))?;
        if !metadata.is_dir() {
            return Err(self.failed(io::ErrorKind::NotADirectory.into()));
        }
        check_rights(&metadata, Others::HaveNoRights).map_err(|rights| ControlFolderError::Unsafe {
            folder: self.0.clone(),
            rights,
        })
    }

    /// Removes sockets that no engine serves any more, and their keys: it was killed.
    pub(crate) fn remove_stale(&self) {
        let Ok(files) = fs::read_dir(&self.0) else {
            return;
        };
        for path in files.filter_map(|file| Some(file.ok()?.path())) {
            if path
                .extension()
                .is_some_and(|extension| extension == "sock")
                && connect_unix(&path)
                    .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
            {
                let _ = fs::remove_file(path.with_extension("key"));
                let _ = fs::remove_file(path);
            }
        }
    }

    fn failed(&self, cause: io::Error) -> ControlFolderError {
        ControlFolderError::Io {
            folder: self.0.clone(),
            cause,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_folder_that_others_can_enter_is_refused() {
        let run = tempfile::tempdir().unwrap();
        let folder = ControlFolder::in_run_folder(run.path());
        folder.create().unwrap();
        let mode = fs::metadata(folder.path()).unwrap().mode() & 0o777;
        assert_eq!(mode, 0o700);
        for mode in [0o710, 0o701, 0o740, 0o755] {
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();
            let error = folder.create().unwrap_err().to_string();
            assert!(error.contains(&format!("mode {mode:o}")), "{error}");
        }
    }

    #[test]
    fn what_a_killed_engine_has_left_is_removed() {
        let run = tempfile::tempdir().unwrap();
        let folder = ControlFolder::in_run_folder(run.path());
        folder.create().unwrap();
        drop(UnixListener::bind(folder.socket("killed")).unwrap());
        let _served = UnixListener::bind(folder.socket("served")).unwrap();
        for name in ["killed", "served"] {
            fs::write(folder.key(name), "").unwrap();
        }
        folder.remove_stale();
        for (name, exists) in [("killed", false), ("served", true)] {
            assert_eq!(folder.socket(name).exists(), exists, "{name}");
            assert_eq!(folder.key(name).exists(), exists, "{name}");
        }
    }
}
