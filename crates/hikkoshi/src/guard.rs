//! The guard: brings the guest back if this program is killed.
//!
//! Between the guest's stop at the source and *commit* there is a moment in
//! which a killed `hikkoshi migrate` would leave the guest stopped for good.
//! So a second process watches: it holds the reading end of a pipe whose
//! writing end only `migrate` has. When the pipe ends without a word, it lets
//! the guest run again and takes back what was taken from QEMU, by the last
//! record of what that was. Before commit is sent it is told so, and from its
//! answer on it will not touch the guest.
//!
//! ```text
//! migrate ◀── "ready" ── guard
//!         ── record ───▶             (what there would be to undo; often)
//!         ── "commit" ─▶             (or the pipe's end: undo)
//!         ◀── "released"
//! ```

use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hikkoshi_qemu::{QemuSource, UndoRecord};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::args::Guard as Args;
use crate::exit::{Exit, Status};

const READY: &str = "ready";
const COMMIT: &str = "commit";
const RELEASED: &str = "released";

/// How long the guard may take to answer. It does nothing else, so this is for
/// a machine that has no processor to spare; the guest may be stopped
/// meanwhile, and runs on when the time is over.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes in an answer, at most.
const LONGEST: usize = 64;

/// How often to look whether the guard has ended.
const LOOK: Duration = Duration::from_millis(2);

/// The writing end of the guard's pipe; `None` once it was closed.
#[derive(Debug, Clone)]
struct Orders(Arc<Mutex<Option<ChildStdin>>>);

impl Orders {
    /// Gives the guard a line; none once it was released.
    fn give(&self, line: &str) -> io::Result<()> {
        let mut pipe = self.0.lock().map_err(|_| io::ErrorKind::BrokenPipe)?;
        match pipe.as_mut() {
            Some(pipe) => pipe.write_all(format!("{line}\n").as_bytes()),
            None => Ok(()),
        }
    }

    fn close(&self) {
        if let Ok(mut pipe) = self.0.lock() {
            *pipe = None;
        }
    }
}

/// The guard as `migrate` sees it.
#[derive(Debug)]
pub struct Guard {
    child: Child,
    orders: Orders,
    answers: ChildStdout,
    /// How long it may take to answer, and to end.
    patience: Duration,
}

impl Guard {
    /// Starts a guard that undoes what is done to `guest` when this process
    /// ends.
    pub fn start(qmp: &Path, guest: &mut QemuSource) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("guard").arg("--qmp").arg(qmp);
        let guard = Self::spawn(&mut command, PATIENCE)?;
        let orders = guard.orders.clone();
        guest.on_undo_record(move |record| {
            // What was written is read even if this process dies right after.
            let told = serde_json::to_string(record)
                .map_err(io::Error::other)
                .and_then(|record| orders.give(&record));
            if let Err(error) = told {
                // Without a guard there will be no commit either.
                tracing::warn!(%error, "the guard process cannot be told what to undo");
            }
        });
        Ok(guard)
    }

    /// Starts the process and waits until it is ready.
    fn spawn(command: &mut Command, patience: Duration) -> io::Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A group of its own: Ctrl-C at the terminal is not for it.
            .process_group(0)
            .spawn()?;
        let (orders, answers) = (child.stdin.take(), child.stdout.take());
        let answers = answers.ok_or(io::ErrorKind::BrokenPipe)?;
        let mut guard = Self {
            child,
            orders: Orders(Arc::new(Mutex::new(orders))),
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

    /// From the return of this call on, the guard leaves the guest alone. When
    /// it fails nobody can tell whether the guard would.
    pub fn release(&mut self) -> io::Result<()> {
        self.orders.give(COMMIT)?;
        self.expect(RELEASED)?;
        self.orders.close();
        Ok(())
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
    /// be undone.
    fn drop(&mut self) {
        // A guard that is gone needs no order.
        let _ = self.orders.give(COMMIT);
        self.orders.close();
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
        Exit::new(Status::Paused, format!("guard: {doing}: {error}"))
    };
    // A parent that does not hear the answer is gone, which the next read
    // tells.
    let _ = writeln!(io::stdout(), "{READY}");
    let mut last = None;
    for order in io::stdin().lines() {
        match order {
            Ok(line) if line == COMMIT => {
                let _ = writeln!(io::stdout(), "{RELEASED}");
                return Ok(Status::Moved);
            }
            Ok(record) => last = Some(record),
            Err(error) => return Err(fail("reading what to undo", &error)),
        }
    }
    let Some(record) = last else {
        return Ok(Status::AtSource); // Nothing was done yet.
    };
    let record: UndoRecord =
        serde_json::from_str(&record).map_err(|error| fail("reading what to undo", &error))?;
    hikkoshi_qemu::undo(&args.qmp, &record).map_err(|error| {
        fail(
            "bringing the guest back after its migration was killed",
            &error,
        )
    })?;
    Ok(Status::AtSource)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A guard that is a shell script.
    fn guard(script: &str, patience: Duration) -> io::Result<Guard> {
        Guard::spawn(Command::new("sh").args(["-c", script]), patience)
    }

    #[test]
    fn a_guard_that_answers_is_heard() {
        let script = "echo ready; read order; test $order = commit && echo released";
        let mut guard = guard(script, Duration::from_secs(60)).unwrap();
        guard.release().unwrap();
        // Nothing more is said to it.
        guard.orders.give("a record").unwrap();
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
        let error = guard.release().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let pid = guard.child.id();
        drop(guard);
        assert!(!Path::new(&format!("/proc/{pid}")).exists(), "killed");
    }
}
