//! The guard: brings the guest back if this program is killed.
//!
//! Between the guest's stop at the source and *commit* there is a moment in
//! which a killed `hikkoshi migrate` would leave the guest stopped for good.
//! So a second process watches: it holds the reading end of a pipe whose
//! writing end only `migrate` has. When the pipe ends, it looks into the
//! journal (`journal/`). If the guest was the source's to the last, it lets it
//! run again and takes back what was taken from QEMU; that *commit* may be on
//! its way is written there before it is sent, and then the guest is left alone.
//! A migration that is over has no journal any more. What a program that was
//! killed could not say, where the guest is and how to go on, the guard says.
//!
//! ```text
//! migrate ◀── "ready" ── guard
//!         ── ("over") ─▶         said by whoever ends in order
//!         ── (end) ────▶         looks into the journal
//! ```

use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use hikkoshi_handover::SourceStage;
use hikkoshi_qemu::{UndoError, UndoOutcome};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::args::Guard as Args;
use crate::commands::own_executable;
use crate::commands::resume;
use crate::journal::{JournalFile, LockHolder, SourceEntry};
use crate::output::exit::{Exit, Status};
use crate::output::reason::{Holder, Reason};
use crate::output::streams;

const READY: &str = "ready";

const OVER: &str = "over";

/// How long the guard may take to answer. It does nothing else, so this is for
/// a machine that has no processor to spare; the guest may be stopped
/// meanwhile, and runs on when the time is over.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes in an answer, at most.
const LONGEST: usize = 64;

/// How often to look whether the guard has ended.
const LOOK: Duration = Duration::from_millis(2);

/// The guard as `migrate` sees it.
#[derive(Debug)]
pub struct Guard {
    child: Child,
    /// Its end is what the guard waits for.
    pipe: Option<ChildStdin>,
    answers: ChildStdout,
    /// How long it may take to answer, and to end.
    patience: Duration,
}

impl Guard {
    /// Starts a guard that undoes what `journal` tells of when this process
    /// ends.
    pub fn start(journal: &Path) -> io::Result<Self> {
        let mut command = own_executable::command();
        command.arg("guard").arg("--journal").arg(journal);
        if streams::is_json() {
            command.arg("--json");
        }
        Self::spawn(&mut command, PATIENCE)
    }

    /// Starts the process and waits until it is ready.
    fn spawn(command: &mut Command, patience: Duration) -> io::Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A group of its own: Ctrl-C at the terminal is not for it.
            .process_group(0)
            .spawn()?;
        let (pipe, answers) = (child.stdin.take(), child.stdout.take());
        let answers = answers.ok_or(io::ErrorKind::BrokenPipe)?;
        let mut guard = Self {
            child,
            pipe,
            answers,
            patience,
        };
        if let Err(error) = guard.expect(READY) {
            // It has nothing to undo, and need not be asked to end.
            let _ = guard.child.kill();
            return Err(error);
        }
        Ok(guard)
    }

    fn expect(&mut self, answer: &str) -> io::Result<()> {
        let line = self.answer()?;
        if line == answer {
            Ok(())
        } else {
            Err(io::Error::other(format!(
                "the guard process answered '{line}' instead of '{answer}'"
            )))
        }
    }

    /// Its next line, or what there is of it when it ends.
    fn answer(&mut self) -> io::Result<String> {
        let deadline = Instant::now() + self.patience;
        let mut line = Vec::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let wait = Timespec::try_from(left).map_err(io::Error::other)?;
            let mut poll = [PollFd::new(&self.answers, PollFlags::IN)];
            match rustix::event::poll(&mut poll, Some(&wait)) {
                Ok(0) => {
                    return Err(io::Error::new(
                        io::ErrorKind::TimedOut,
                        format!(
                            "the guard process has not answered within {} s",
                            self.patience.as_secs_f32()
                        ),
                    ));
                }
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            // Byte by byte: what is behind the line is another answer.
            let mut byte = [0];
            match self.answers.read(&mut byte) {
                Ok(0) => break,
                Ok(_) if byte == *b"\n" => break,
                Ok(_) if line.len() == LONGEST => return Err(io::ErrorKind::InvalidData.into()),
                Ok(_) => line.extend(byte),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(String::from_utf8_lossy(&line).into_owned())
    }
}

impl Drop for Guard {
    /// An orderly end: `migrate` has undone everything itself, or nothing may
    /// be undone, and has said where the guest is.
    fn drop(&mut self) {
        if let Some(mut pipe) = self.pipe.take().filter(|_| !std::thread::panicking()) {
            // A guard that is gone need not hear it.
            let _ = pipe.write_all(OVER.as_bytes());
        }
        let deadline = Instant::now() + self.patience;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                tracing::warn!("the guard process does not end: killing it");
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// The guard itself.
pub fn run(args: &Args) -> Result<Status, Exit> {
    let fail = |doing: &str, error: &dyn std::fmt::Display| {
        let what = format!("guard: {doing}: {error}");
        let again = resume::command::<SourceEntry>(&args.journal);
        Exit::new(Status::Paused, Reason::Interrupted, what)
            .with(format!(
                "the guest may be stopped at the source. Once that is mended, this lets it run \
                 again, or goes on if it was handed over: {again}"
            ))
            .resumed_by(again)
    };
    // A parent that does not hear the answer is gone, which the next read
    // tells.
    let _ = writeln!(io::stdout(), "{READY}");
    let killed = watch(&mut io::stdin()).map_err(|e| fail("watching over hikkoshi migrate", &e))?;
    let doing = "reading what to undo";
    // Before the lock is taken, which would make a file anew.
    if !args.journal.exists() {
        return Ok(Status::Moved);
    }
    let page = match JournalFile::lock(&args.journal) {
        Ok(page) => page,
        // Somebody goes on with it.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Status::Moved),
        Err(error) => return Err(fail(doing, &error)),
    };
    let Some(entry) = page.read::<SourceEntry>().map_err(|e| fail(doing, &e))? else {
        return Ok(Status::Moved);
    };
    if entry.engine.stage != SourceStage::Owned {
        if killed {
            return Err(handed_over(&args.journal));
        }
        return Ok(Status::Paused);
    }
    page.mark(LockHolder::Guard);
    let undone = bring_back(&page, &entry).map_err(|error| {
        fail(
            "bringing the guest back after its migration was interrupted",
            &error,
        )
    })?;
    let stopped = entry.qemu.undo.stopped == Some(true);
    let ended = |what: &str| {
        let what = format!("{KILLED}: {what}");
        Exit::new(Status::AtSource, Reason::Interrupted, what)
    };
    Err(match undone {
        UndoOutcome::QemuExited => ended(GONE).held_by(Holder::Nobody),
        UndoOutcome::Restored { state } if state == "running" => {
            ended("the guest runs on at the source")
        }
        UndoOutcome::Restored { state } if stopped => {
            let again = resume::command::<SourceEntry>(&args.journal);
            ended(&format!(
                "the guest is at the source, where QEMU says: {state}. To let it run on: {again}"
            ))
            .resumed_by(again)
        }
        UndoOutcome::Restored { state } => ended(&format!(
            "the guest is at the source, where QEMU says: {state}"
        )),
    })
}

const GONE: &str = "the source's QEMU has ended, and the guest with it";

/// Lets a guest run again whose migration was interrupted before it was handed over,
/// and takes back what was taken from QEMU. The journal is removed if that is all.
///
/// # Errors
/// See [`UndoError`]; the journal stays.
pub fn bring_back(page: &JournalFile, entry: &SourceEntry) -> Result<UndoOutcome, UndoError> {
    let undone = hikkoshi_qemu::undo(&entry.qemu.identity, &entry.qemu.undo)?;
    let stopped = entry.qemu.undo.stopped == Some(true);
    if !stopped || is_over(&undone) {
        page.remove();
    }
    Ok(undone)
}

/// Whether nothing is left to be done for the guest.
pub fn is_over(undone: &UndoOutcome) -> bool {
    match undone {
        UndoOutcome::QemuExited => true,
        UndoOutcome::Restored { state } => state == "running",
    }
}

const KILLED: &str = "'hikkoshi migrate' was interrupted";

fn handed_over(journal: &Path) -> Exit {
    let again = resume::command::<SourceEntry>(journal);
    let what = format!(
        "{KILLED}: the guest was handed over, or may have been: never continue it here by hand. \
         Nothing of it is lost. To go on, start 'hikkoshi receive --resume' at the destination, if \
         none waits there, and here: {again}"
    );
    Exit::new(Status::Paused, Reason::Interrupted, what).resumed_by(again)
}

/// Waits for the end of the other program; tells whether it was killed.
fn watch(pipe: &mut impl Read) -> io::Result<bool> {
    let mut said = Vec::new();
    let longest = u64::try_from(LONGEST).unwrap_or(u64::MAX);
    pipe.take(longest).read_to_end(&mut said)?;
    io::copy(pipe, &mut io::sink())?;
    Ok(said != OVER.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;
    use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid};
    use std::os::fd::AsFd;

    /// A guard that is a shell script.
    fn guard(script: &str, patience: Duration) -> io::Result<Guard> {
        Guard::spawn(Command::new("sh").args(["-c", script]), patience)
    }

    #[test]
    fn a_guard_that_answers_is_heard() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let script = format!("echo ready; cat > {}", file.path().display());
        let guard = guard(&script, Duration::from_secs(60)).unwrap();
        let text = || std::fs::read_to_string(file.path()).unwrap();
        assert_eq!(text(), "");
        // It is told, and waited for.
        drop(guard);
        assert_eq!(text(), "over");
    }

    #[test]
    fn an_orderly_end_is_told_from_another() {
        assert!(!watch(&mut &b"over"[..]).unwrap());
        for other in ["", "ov", "overdone"] {
            assert!(watch(&mut other.as_bytes()).unwrap(), "{other}");
        }
        assert!(watch(&mut [0; 1000].as_slice()).unwrap());
    }

    #[test]
    fn a_guard_that_says_something_else_or_ends_is_none() {
        let patience = Duration::from_secs(60);
        let error = guard("echo reading", patience).unwrap_err();
        let expected = "the guard process answered 'reading' instead of 'ready'";
        assert_eq!(error.to_string(), expected);
        let error = guard("true", patience).unwrap_err();
        let expected = "the guard process answered '' instead of 'ready'";
        assert_eq!(error.to_string(), expected);
        let error = guard("cat /dev/zero", patience).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    /// It is stopped, say: nobody waits for it for ever, neither for its
    /// answer nor for its end.
    #[test]
    fn a_silent_guard_is_not_waited_for() {
        let soon = Duration::from_millis(300);
        let error = guard("exec sleep 1000", soon).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(
            error.to_string(),
            "the guard process has not answered within 0.3 s"
        );
        let long = Duration::from_secs(60);
        let mut guard = guard("echo ready; exec sleep 1000", long).unwrap();
        guard.patience = soon;
        let pid = Pid::from_child(&guard.child);
        let held = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        drop(guard);
        // By the pidfd: the number may mean another process by now.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let left = waitid(WaitId::PidFd(held.as_fd()), options);
        assert_eq!(left.unwrap_err(), Errno::CHILD, "killed and reaped");
    }
}
