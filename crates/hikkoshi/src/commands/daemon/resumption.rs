//! Resumes migrations whose receiver has ended: of this daemon, or of one before.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::thread;
use std::time::{Instant, SystemTime};

use error_reporter::Report;
use hikkoshi_link::Address;
use hikkoshi_link::tls::DestinationCredentials;

use super::guest_journals::{GuestJournal, Journals};
use super::receiver_processes::ReceiverProcesses;
use crate::journal::{self, DestinationEntry, JournalFile};
use crate::output::streams;

/// When the file was written last. If that is not known, it may be of any guest.
fn written(path: &Path) -> SystemTime {
    let modified = fs::symlink_metadata(path).and_then(|file| file.modified());
    modified.unwrap_or_else(|_| SystemTime::now())
}

impl ReceiverProcesses {
    /// The journals of guests that daemons with this run folder receive.
    pub(super) fn journals(&self) -> io::Result<Journals> {
        let found = journal::search::<DestinationEntry>(&self.run, None)?;
        for (path, error) in &found.others {
            if self.state().unreadable.insert(path.clone()) {
                streams::notice(&format!(
                    "a journal cannot be read: {}. Its migration is not resumed (the version of \
                     hikkoshi that has begun it can do that), and what its source may need to \
                     reach its guest is kept",
                    Report::new(error)
                ));
            }
        }
        let known = found.readable.into_iter().filter_map(|(path, entry)| {
            let Address::Unix(socket) = &entry.address else {
                return None;
            };
            let security = entry.security.as_ref();
            Some(GuestJournal {
                guest: self.receivers.guest_at(socket)?,
                path,
                stage: entry.engine.stage,
                route: security.and_then(DestinationCredentials::route),
            })
        });
        Ok(Journals {
            known: known.collect(),
            unreadable: found.others.iter().map(|(path, _)| written(path)).collect(),
        })
    }

    /// Resumes migrations that no process receives.
    pub(super) fn resume_orphans(&self, journals: &Journals) {
        self.state().pauses.retain(journals);
        for journal in &journals.known {
            if self.state().running.contains_key(&journal.guest) {
                continue;
            }
            let file = match JournalFile::try_lock(&journal.path) {
                // Its receiver has finished the migration since the journals were listed.
                Ok(Some(file)) if !file.is_there() => continue,
                Ok(Some(file)) => file,
                // Another process works with it: a receiver of an earlier daemon.
                Ok(None) => {
                    self.state().pauses.forget(&journal.path);
                    continue;
                }
                Err(error) => {
                    let error = Report::new(&error);
                    tracing::warn!(%error, "looking for a migration to resume");
                    continue;
                }
            };
            let due = self.state().pauses.is_over(&journal.path, Instant::now());
            if due {
                self.resume(journal, &file);
            }
        }
    }

    /// Starts a receiver, which gets the lock of its journal: another one may not finish the
    /// migration in between, whose result this one would overwrite.
    fn resume(&self, journal: &GuestJournal, file: &JournalFile) {
        let name = &journal.guest;
        // It may have been removed.
        if let Some(route) = journal.route
            && let Err(error) = self.receivers.add_route(route, name)
            && error.kind() != io::ErrorKind::AlreadyExists
        {
            let error = Report::new(&error);
            streams::notice(&format!(
                "guest {name}: its source cannot reach it: {error}"
            ));
        }
        let mut resume = OsString::from("--resume=");
        resume.push(&journal.path);
        let mut command = self.command(name);
        command.arg(resume).stdout(Stdio::null());
        let started = file.lock_to_pass_on().and_then(|lock| {
            command.stdin(lock);
            command.spawn()
        });
        match started {
            Ok(child) => {
                streams::notice(&format!("guest {name}: resuming its migration"));
                let process = self.note(name, &child);
                let (this, watched) = (self.clone(), name.clone());
                let spawned = thread::Builder::new()
                    .name("dmn-receiver".into())
                    .spawn(move || this.wait(&watched, child));
                if let Err(error) = spawned {
                    tracing::warn!(error = %Report::new(&error), "watching a receiver");
                    // Another attempt follows.
                    if let Some(process) = process {
                        let _ = process.kill();
                    }
                    self.state().running.remove(name);
                }
            }
            Err(error) => {
                let error = Report::new(&error);
                streams::notice(&format!("guest {name}: resuming its migration: {error}"));
            }
        }
    }

    /// A receiver has ended, with this status if it is known. Removes what belongs to it, unless
    /// its migration is not finished.
    pub(super) fn clean_up(&self, name: &str, ended: Option<ExitStatus>) {
        let journals = match self.journals() {
            Ok(journals) => journals,
            Err(error) => {
                // A later look for leftovers removes it.
                tracing::warn!(error = %Report::new(&error), "looking for a migration to resume");
                return;
            }
        };
        match journals.journal_of(name) {
            None if is_final(ended) || !self.may_have_journal(&journals, name) => {
                self.receivers.remove(name);
                // A receiver that ends by itself has ended the QEMU that it has started.
                self.end_abandoned_machine(name);
            }
            None => {}
            Some(journal) if is_final(ended) => self.state().pauses.stop(&journal.path),
            Some(_) => {}
        }
    }
}

/// Whether an operator decides what becomes of a journal whose receiver has ended so: there was
/// nothing to resume (1, 2), or the guest is lost (4).
///
/// After any other end another receiver may finish the migration: the links were lost for long
/// (3), or the source before it knew that all pages are here (0); the receiver was killed, or has
/// panicked (101), or its end is not known.
fn is_final(ended: Option<ExitStatus>) -> bool {
    matches!(ended.and_then(|status| status.code()), Some(1 | 2 | 4))
}

#[cfg(test)]
mod tests {
    use super::super::open_files::OpenFiles;
    use super::*;
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::process::ExitStatusExt;
    use std::path::PathBuf;
    use std::process::Command;
    use std::time::Duration;

    #[test]
    fn a_receiver_that_has_failed_is_resumed() {
        let exited = |code: i32| Some(ExitStatus::from_raw(code << 8));
        for code in [1, 2, 4] {
            assert!(is_final(exited(code)), "{code}");
        }
        for code in [0, 3, 5, 101, 255] {
            assert!(!is_final(exited(code)), "{code}");
        }
        let killed = Some(ExitStatus::from_raw(9));
        assert!(!is_final(killed) && !is_final(None));
    }

    #[test]
    fn a_migration_that_another_process_has_resumed_is_resumed_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path();
        let file = JournalFile::lock(&run.join("destination-1-1.json")).unwrap();
        std::fs::write(file.path(), "{}").unwrap();
        let path = file.path().to_str().unwrap();
        let receivers = super::super::receivers::Receivers::open(run).unwrap();
        let advertised = Address::Unix(run.join("front"));
        let children =
            ReceiverProcesses::new(run, receivers, advertised, 1, OpenFiles::unchanged());
        let is_due = |seconds| {
            let at = Instant::now() + Duration::from_secs(seconds);
            children.state().pauses.is_over(file.path(), at)
        };
        let mut seconds = 0;
        for _ in 0..10 {
            seconds += 60;
            assert!(is_due(seconds));
        }
        assert!(!is_due(0));
        // Its lock is held here.
        children.resume_orphans(&Journals::at(&[path]));
        assert!(is_due(0));
        // An operator has to decide; that a process looks at it changes nothing.
        children.state().pauses.stop(file.path());
        children.resume_orphans(&Journals::at(&[path]));
        assert!(!is_due(1_000_000));
    }

    /// The receiver has ended between the list of the journals and their locks.
    #[test]
    fn a_migration_that_was_finished_meanwhile_is_not_resumed() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path();
        let receivers = super::super::receivers::Receivers::open(run).unwrap();
        std::fs::write(receivers.result("guest"), "received").unwrap();
        let advertised = Address::Unix(run.join("front"));
        let children =
            ReceiverProcesses::new(run, receivers, advertised, 1, OpenFiles::unchanged());
        let path = run.join("destination-1-1.json");
        children.resume_orphans(&Journals::at(&[path.to_str().unwrap()]));
        assert!(!children.state().running.contains_key("guest"));
        let now = Instant::now();
        assert!(children.state().pauses.is_over(&path, now), "no attempt");
        let result = std::fs::read_to_string(children.receivers.result("guest"));
        assert_eq!(result.unwrap(), "received");
        assert!(!path.with_extension("lock").exists());
    }

    /// Another process cannot get the lock while a receiver starts, and finish the migration.
    #[test]
    fn a_receiver_is_started_with_the_lock_of_its_journal() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path();
        let path = run.join("destination-1-1.json");
        fs::write(&path, "{}").unwrap();
        let receivers = super::super::receivers::Receivers::open(run).unwrap();
        let advertised = Address::Unix(run.join("front"));
        let mut children =
            ReceiverProcesses::new(run, receivers, advertised, 1, OpenFiles::unchanged());
        children.program = sleeper(run);
        children.resume_orphans(&Journals::at(&[path.to_str().unwrap()]));
        // This process has closed its own.
        assert!(journal::is_held(&path).unwrap());
        assert!(JournalFile::try_lock(&path).unwrap().is_none());
        let receiver = children.state().running["guest"].process.clone().unwrap();
        let of = |path: &Path| fs::metadata(path).map(|file| (file.dev(), file.ino()));
        let input = PathBuf::from(format!("/proc/{}/fd/0", receiver.pid()));
        assert_eq!(
            of(&input).unwrap(),
            of(&path.with_extension("lock")).unwrap()
        );
        receiver.kill().unwrap();
        let begun = Instant::now();
        while journal::is_held(&path).unwrap() {
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "it is still held"
            );
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// A program that does nothing for long, whatever its arguments are. Another process writes it,
    /// because the threads of this one fork: a program cannot run while a fork has it open.
    fn sleeper(folder: &Path) -> PathBuf {
        let path = folder.join("receiver");
        let write = "printf '#!/bin/sh\\nexec sleep 600\\n' >\"$0\" && chmod +x \"$0\"";
        let written = Command::new("sh").args(["-c", write]).arg(&path).status();
        assert!(written.unwrap().success());
        path
    }
}
