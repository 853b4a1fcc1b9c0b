//! The mark of a machine that a daemon has started for a guest, and that the guest was not handed
//! over to.
//!
//! `machines/NAME.waiting` exists from before QEMU is started until the journal says that the
//! destination is *ready*, and again once it says that the destination has declined
//! (docs/protocol.md). A machine that is marked, and for which there is no journal, has never run
//! its guest and never will: it is ended when its receiver has ended, whatever state its QEMU is
//! in. A machine without a mark is not ended by anybody but its guest's owner.
//!
//! A machine whose receiver was killed may receive another guest (`receive --qmp`): that receiver
//! works with the mark as the first one does.
//!
//! The receiver holds the lock of the mark as long as it lives.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use error_reporter::Report;
use hikkoshi_handover::DestinationStage;
use hikkoshi_qemu::qmp::MonitorAddress;

use super::listening_process::ListeningProcess;
use crate::journal::{JournalFile, absolute};

/// The end of the name of a mark.
const WAITING: &str = "waiting";

/// The names of the machines that have a mark in this run folder: they wait for their guests, or
/// were left by a receiver that was killed.
pub(crate) fn marked(run: &Path) -> Vec<String> {
    let entries = fs::read_dir(super::folder(run)).into_iter().flatten();
    let paths = entries.flatten().map(|entry| entry.path());
    let marks = paths.filter(|path| path.extension().is_some_and(|end| end == WAITING));
    let names = marks.filter_map(|mark| Some(mark.file_stem()?.to_str()?.to_owned()));
    names.collect()
}

/// How long a QEMU that was started may take to open its QMP socket, and more.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The mark of one machine, which need not be set. No other process changes it.
#[derive(Debug)]
pub(crate) struct WaitingMark {
    file: JournalFile,
    qmp: PathBuf,
}

/// What has become of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeftQemu {
    /// Its QEMU was ended.
    Ended,
    /// It has no QEMU any more.
    Nothing,
    /// Its QEMU may still be starting: look again later.
    MayStart,
}

impl WaitingMark {
    /// Locks the mark of the machine with this name.
    ///
    /// # Errors
    /// When the folder of machines cannot be used, or another process holds the lock.
    pub(crate) fn lock(run: &Path, name: &str) -> io::Result<Self> {
        Ok(Self {
            file: JournalFile::lock(&path(run, name))?,
            qmp: super::socket(run, name),
        })
    }

    /// Locks the mark of the machine with this QMP socket, whatever path leads to it; `None`: it is
    /// not a machine of this run folder, and it is not marked in another one.
    ///
    /// # Errors
    /// When the folder of machines cannot be used, or another process holds the lock.
    pub(crate) fn lock_of(run: &Path, qmp: &Path) -> io::Result<Option<Self>> {
        let qmp = canonical(qmp);
        let path = qmp.with_extension(WAITING);
        let marked = || Ok::<_, io::Error>(super::is_socket(&qmp) && path.try_exists()?);
        if !(super::is_machine(run, &qmp) || marked()?) {
            return Ok(None);
        }
        let file = JournalFile::lock(&path)?;
        Ok(Some(Self { file, qmp }))
    }

    /// Locks the mark of the machine of a migration in a journal in `folder`. `None`: no machine of
    /// a template.
    ///
    /// # Errors
    /// When the folder of machines cannot be used, or another process holds the lock.
    pub(crate) fn of_journal(monitor: &MonitorAddress, folder: &Path) -> io::Result<Option<Self>> {
        match monitor {
            MonitorAddress::Socket(qmp) => Self::lock_of(folder, qmp),
            MonitorAddress::Domain { .. } => Ok(None),
        }
    }

    /// The mark, set or removed as the journal's stage requires it: another engine may have been
    /// killed between the two. `None` if the journal's QEMU does not run any more: another one,
    /// with another guest, may listen at its socket.
    ///
    /// # Errors
    /// When the mark is there and must not be.
    pub(crate) fn resumed(self, runs: bool, stage: DestinationStage) -> io::Result<Option<Self>> {
        if !runs {
            return Ok(None);
        }
        self.follow(stage)?;
        Ok(Some(self))
    }

    /// The machines that are marked and whose receivers have ended, with their names.
    ///
    /// # Errors
    /// When the folder of machines cannot be read.
    pub(crate) fn abandoned(run: &Path) -> io::Result<Vec<(String, Self)>> {
        let files = match fs::read_dir(super::folder(run)) {
            Ok(files) => files,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut found = Vec::new();
        for entry in files {
            let path = entry?.path();
            let is_mark = path.extension().is_some_and(|end| end == WAITING);
            let name = path.file_stem().and_then(|name| name.to_str());
            let Some(name) = name.filter(|_| is_mark) else {
                continue;
            };
            if let Some(file) = JournalFile::try_lock(&path)? {
                let qmp = super::socket(run, name);
                found.push((name.to_owned(), Self { file, qmp }));
            }
        }
        Ok(found)
    }

    /// Sets the mark: the guest was not handed over to this machine.
    pub(crate) fn set(&self) -> io::Result<()> {
        File::create(self.file.path()).map(drop)
    }

    /// Whether it is set.
    pub(crate) fn is_set(&self) -> bool {
        // If that is not known, nothing may be ended.
        self.file.path().try_exists().unwrap_or(false)
    }

    /// Removes the mark: from now on the guest may run here.
    pub(crate) fn clear(&self) -> io::Result<()> {
        remove(self.file.path())
    }

    /// Makes the mark what it has to be for a destination whose journal says `stage`.
    ///
    /// # Errors
    /// When it is still there and must not be.
    pub(crate) fn follow(&self, stage: DestinationStage) -> io::Result<()> {
        match stage {
            DestinationStage::Receiving | DestinationStage::Declined => {
                if let Err(error) = self.set() {
                    // The machine is left behind then, and does no harm.
                    let (error, path) = (Report::new(&error), self.file.path().display());
                    tracing::warn!(%error, %path, "marking a machine that will not run its guest");
                }
                Ok(())
            }
            DestinationStage::Ready | DestinationStage::Running | DestinationStage::Complete => {
                self.clear()
            }
        }
    }

    /// Ends the machine's QEMU, if the mark is set, and then removes the mark.
    ///
    /// # Errors
    /// When its process is not found or does not end.
    pub(crate) fn end_machine(&self) -> Result<LeftQemu, String> {
        if !self.is_set() {
            return Ok(LeftQemu::Nothing);
        }
        let text = |error: io::Error| Report::new(&error).to_string();
        let left = match ListeningProcess::at(&self.qmp).map_err(text)? {
            // It may not answer: it waits for a page that no engine can bring.
            ListeningProcess::Process(process) => {
                process.kill().map_err(text)?;
                LeftQemu::Ended
            }
            ListeningProcess::Changed => return Ok(LeftQemu::MayStart),
            ListeningProcess::None if self.may_start() => return Ok(LeftQemu::MayStart),
            ListeningProcess::None => LeftQemu::Nothing,
            ListeningProcess::Unknown => {
                return Err("the process behind its QMP socket is not known".to_owned());
            }
        };
        remove(&self.qmp)
            .and_then(|()| self.clear())
            .map_err(text)?;
        Ok(left)
    }

    /// Ends the machine, which has not run its guest and never will. Returns whether it has ended;
    /// if not, that is logged, and the mark stays.
    pub(crate) fn end_or_log(&self) -> bool {
        match self.end_machine() {
            Ok(LeftQemu::Ended | LeftQemu::Nothing) => true,
            Ok(LeftQemu::MayStart) => false,
            Err(why) => {
                tracing::warn!(why, "ending the QEMU that was started for the guest");
                false
            }
        }
    }

    /// Whether a QEMU that was started after the mark was set may not have opened its socket yet.
    fn may_start(&self) -> bool {
        let set = fs::metadata(self.file.path()).and_then(|file| file.modified());
        set.is_ok_and(|set| set.elapsed().is_ok_and(|age| age < START_TIMEOUT))
    }
}

/// Whether the machine with this name was started for a guest that was not handed over to it. If
/// that is not known, it was.
pub(crate) fn is_marked(run: &Path, name: &str) -> bool {
    path(run, name).try_exists().unwrap_or(true)
}

fn path(run: &Path, name: &str) -> PathBuf {
    super::folder(run).join(format!("{name}.{WAITING}"))
}

/// The path without symbolic links. The socket may not be there any more.
fn canonical(qmp: &Path) -> PathBuf {
    let qmp = absolute(qmp);
    fs::canonicalize(&qmp).unwrap_or_else(|_| match (qmp.parent(), qmp.file_name()) {
        (Some(folder), Some(name)) => match fs::canonicalize(folder) {
            Ok(folder) => folder.join(name),
            Err(_) => qmp,
        },
        _ => qmp,
    })
}

/// Removes a file, if it is there.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_found_by_any_path_of_its_socket() {
        let folder = tempfile::tempdir().unwrap();
        let (run, other) = (folder.path().join("run"), folder.path().join("other"));
        JournalFile::make_folder(&run.join("machines")).unwrap();
        JournalFile::make_folder(&other).unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&run, &link).unwrap();
        let marked = |run: &Path, qmp: &Path| WaitingMark::lock_of(run, qmp).unwrap().is_some();
        let qmp = run.join("machines/a.qmp");
        // The QEMU may have ended, or wait for its guest.
        for waits in [false, true] {
            if waits {
                drop(std::os::unix::net::UnixListener::bind(&qmp).unwrap());
            }
            for run in [&run, &link] {
                assert!(marked(run, &qmp) && marked(run, &link.join("machines/a.qmp")));
            }
            assert!(!marked(&other, &qmp) && !marked(&run, &other.join("a.qmp")));
        }
        let own = folder.path().join("own.qmp");
        std::os::unix::fs::symlink(&qmp, &own).unwrap();
        assert!(marked(&run, &own) && !marked(&other, &own));

        // The journal is elsewhere: the daemon of the machine's folder must not end it.
        let mark = WaitingMark::lock(&run, "a").unwrap();
        mark.set().unwrap();
        drop(mark);
        let mark = WaitingMark::lock_of(&other, &own).unwrap().unwrap();
        assert!(WaitingMark::abandoned(&run).unwrap().is_empty());
        mark.follow(DestinationStage::Ready).unwrap();
        drop(mark);
        assert!(WaitingMark::abandoned(&run).unwrap().is_empty());
    }
}
