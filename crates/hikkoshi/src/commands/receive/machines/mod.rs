//! The files of the QEMUs that `receive` starts, in the folder `machines` of the run folder: for
//! the machine NAME its QMP socket `NAME.qmp` and its output `NAME.log`.

mod command_line;
mod logs;

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use hikkoshi_linux::is_served;

use crate::journal::JournalFile;

pub(super) use logs::{limit_logs, tail};

/// The end of the name of a QMP socket.
const QMP: &str = "qmp";

/// The end of the name of QEMU's output.
const LOG: &str = "log";

/// The folder in the run folder.
pub(super) fn folder(run: &Path) -> PathBuf {
    run.join("machines")
}

/// Makes this folder, if necessary.
pub(super) fn make_folder(run: &Path) -> io::Result<()> {
    JournalFile::make_folder(run)?;
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder(run))
}

/// The QMP socket of the guest's machine.
pub(super) fn socket(run: &Path, name: &str) -> PathBuf {
    folder(run).join(format!("{name}.{QMP}"))
}

/// Whether this may be the QMP socket of a machine.
pub(super) fn is_socket(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == QMP)
}

/// Whether this path without symbolic links is that of the QMP socket of a machine in this run
/// folder.
pub(super) fn is_machine(run: &Path, path: &Path) -> bool {
    let folder = fs::canonicalize(folder(run));
    is_socket(path) && folder.is_ok_and(|folder| path.parent() == Some(&folder))
}

/// The files of one machine, in the run folder.
#[derive(Debug)]
pub(super) struct MachineFiles {
    name: String,
    folder: PathBuf,
    /// The QMP socket.
    pub(super) qmp: PathBuf,
    /// QEMU's output.
    pub(super) log: PathBuf,
}

impl MachineFiles {
    /// A machine of the same name must not run.
    pub(super) fn new(run: &Path, name: &str) -> io::Result<Self> {
        let folder = folder(run);
        let files = Self {
            name: name.to_owned(),
            qmp: socket(run, name),
            log: folder.join(format!("{name}.{LOG}")),
            folder,
        };
        if is_served(&files.qmp)? {
            return Err(io::Error::new(
                io::ErrorKind::AddrInUse,
                format!(
                    "a QEMU with this name runs already ({}); --name names another one",
                    files.qmp.display()
                ),
            ));
        }
        // One that has ended has left it.
        match fs::remove_file(&files.qmp) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(files),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_runs_keeps_its_name() {
        let run = tempfile::tempdir().unwrap();
        make_folder(run.path()).unwrap();
        let first = MachineFiles::new(run.path(), "a").unwrap();
        let listener = std::os::unix::net::UnixListener::bind(&first.qmp).unwrap();
        let error = MachineFiles::new(run.path(), "a").unwrap_err().to_string();
        assert!(error.contains("--name"), "{error}");
        drop(listener);
        MachineFiles::new(run.path(), "a").unwrap();
        assert!(!first.qmp.exists());
    }
}
