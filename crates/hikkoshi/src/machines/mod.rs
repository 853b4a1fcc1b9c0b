//! The files of the QEMUs that are started for guests from a template, in the folder `machines` of
//! the run folder: for the machine NAME its QMP socket `NAME.qmp`, its output `NAME.log` and its
//! mark `NAME.waiting`.

mod booted;
mod command_line;
mod listening_process;
mod logs;
mod waiting_mark;

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use hikkoshi_linux::is_served;

use crate::journal::JournalFile;

pub(crate) use booted::BootedMachine;
pub(crate) use command_line::program_of;
pub(crate) use listening_process::ListeningProcess;
pub(crate) use logs::{limit_logs, tail};
pub(crate) use waiting_mark::{LeftQemu, WaitingMark, is_marked, marked};

/// The end of the name of a QMP socket.
const QMP: &str = "qmp";

/// The end of the name of QEMU's output.
const LOG: &str = "log";

/// The folder in the run folder.
pub(crate) fn folder(run: &Path) -> PathBuf {
    run.join("machines")
}

/// Makes this folder, if necessary.
pub(crate) fn make_folder(run: &Path) -> io::Result<()> {
    JournalFile::make_folder(run)?;
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder(run))
}

/// The QMP socket of the guest's machine.
pub(crate) fn socket(run: &Path, name: &str) -> PathBuf {
    folder(run).join(format!("{name}.{QMP}"))
}

/// The names of the machines in this run folder whose QEMU runs, without those that wait for a
/// guest, sorted.
pub(crate) fn running(run: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(folder(run)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut names = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let Some(name) = path.file_stem().and_then(|name| name.to_str()) else {
            continue;
        };
        if is_socket(&path) && !is_marked(run, name) && is_served(&path)? {
            names.push(name.to_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Whether this may be the QMP socket of a machine.
pub(crate) fn is_socket(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == QMP)
}

/// Whether this path without symbolic links is that of the QMP socket of a machine in this run
/// folder.
pub(crate) fn is_machine(run: &Path, path: &Path) -> bool {
    let folder = fs::canonicalize(folder(run));
    is_socket(path) && folder.is_ok_and(|folder| path.parent() == Some(&folder))
}

/// The files of one machine, in the run folder.
#[derive(Debug)]
pub(crate) struct MachineFiles {
    name: String,
    folder: PathBuf,
    /// The QMP socket.
    pub(crate) qmp: PathBuf,
    /// QEMU's output.
    pub(crate) log: PathBuf,
}

impl MachineFiles {
    /// A machine of the same name must not run.
    pub(crate) fn new(run: &Path, name: &str) -> io::Result<Self> {
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
    fn machines_that_run_are_listed() {
        let run = tempfile::tempdir().unwrap();
        assert!(running(run.path()).unwrap().is_empty());
        make_folder(run.path()).unwrap();
        let serve =
            |name| std::os::unix::net::UnixListener::bind(socket(run.path(), name)).unwrap();
        let _listeners = [serve("b"), serve("a"), serve("waits")];
        drop(serve("ended"));
        fs::write(folder(run.path()).join("waits.waiting"), "").unwrap();
        assert_eq!(running(run.path()).unwrap(), ["a", "b"]);
    }

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
