//! The guard process as `migrate` sees it.

use std::io::{self, Read, Write};
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use super::messages::{MAX_MESSAGE, OVER, READY};
use hikkoshi_qemu::HOLD;

use crate::commands::own_executable;
use crate::output::line_format;

/// How long the guard may take to answer and to end. It does nothing else, so that this only
/// matters on a host without a free processor. The guest may be stopped meanwhile, and runs
/// again when the time is over.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How often to check whether the guard has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// A guard process; dropping it ends the process.
#[derive(Debug)]
pub(crate) struct GuardProcess {
    child: Child,
    /// The guard waits for the end of it.
    pipe: Option<ChildStdin>,
    answers: ChildStdout,
    /// How long it may take to answer, and to end.
    timeout: Duration,
}

impl GuardProcess {
    /// Starts a guard that undoes the migration in `journal` if this process is killed. It holds
    /// the files that are open here as `files` for as long as there is a journal.
    ///
    /// # Errors
    /// When it cannot be started or does not answer.
    pub(crate) fn start(journal: &Path, files: &[RawFd]) -> io::Result<Self> {
        let mut command = own_executable::command();
        command.arg("guard").arg("--journal").arg(journal);
        for file in files {
            command.arg(HOLD);
            command.arg(format!("/proc/{}/fd/{file}", std::process::id()));
        }
        if line_format::is_json() {
            command.arg("--json");
        }
        Self::spawn(&mut command, TIMEOUT)
    }

    /// Starts the process and waits until it is ready.
    fn spawn(command: &mut Command, timeout: Duration) -> io::Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A separate group, so that Ctrl-C on the terminal does not signal it.
            .process_group(0)
            .spawn()?;
        let (pipe, answers) = (child.stdin.take(), child.stdout.take());
        let answers = answers.ok_or(io::ErrorKind::BrokenPipe)?;
        let mut guard = Self {
            child,
            pipe,
            answers,
            timeout,
        };
        if let Err(error) = guard.expect(READY) {
            // There is nothing to undo yet.
            let _ = guard.child.kill();
            return Err(error);
        }
        Ok(guard)
    }

    /// Whether it has closed its end: it is ending, or continues to hold files.
    fn has_detached(&mut self) -> bool {
        let mut poll = [PollFd::new(&self.answers, PollFlags::IN)];
        let now = Timespec::default();
        matches!(rustix::event::poll(&mut poll, Some(&now)), Ok(1..))
            && matches!(self.answers.read(&mut [0]), Ok(0))
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

    /// Its next line, or the part of it that was written before it ended.
    fn answer(&mut self) -> io::Result<String> {
        let deadline = Instant::now() + self.timeout;
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
                            self.timeout.as_secs_f32()
                        ),
                    ));
                }
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            // One byte at a time: what follows the line is another answer.
            let mut byte = [0];
            match self.answers.read(&mut byte) {
                Ok(0) => break,
                Ok(_) if byte == *b"\n" => break,
                Ok(_) if line.len() == MAX_MESSAGE => return Err(io::ErrorKind::InvalidData.into()),
                Ok(_) => line.extend(byte),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(String::from_utf8_lossy(&line).into_owned())
    }
}

impl Drop for GuardProcess {
    /// Reports a normal end: `migrate` has undone everything itself, or nothing may be undone, and
    /// has reported where the guest is.
    fn drop(&mut self) {
        if let Some(mut pipe) = self.pipe.take().filter(|_| !std::thread::panicking()) {
            // The guard may have ended.
            let _ = pipe.write_all(OVER.as_bytes());
        }
        let deadline = Instant::now() + self.timeout;
        while matches!(self.child.try_wait(), Ok(None)) {
            if self.has_detached() {
                return;
            }
            if Instant::now() > deadline {
                tracing::warn!("the guard process does not end: killing it");
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;
    use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid};
    use std::os::fd::AsFd;

    /// A guard that is a shell script.
    fn guard(script: &str, timeout: Duration) -> io::Result<GuardProcess> {
        GuardProcess::spawn(Command::new("sh").args(["-c", script]), timeout)
    }

    #[test]
    fn a_guard_that_is_ready_is_ended_normally() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let script = format!("echo ready; cat > {}", file.path().display());
        let guard = guard(&script, Duration::from_secs(60)).unwrap();
        let text = || std::fs::read_to_string(file.path()).unwrap();
        assert_eq!(text(), "");
        // Dropping it reports the end and waits for it.
        drop(guard);
        assert_eq!(text(), "over");
    }

    #[test]
    fn a_guard_that_is_not_ready_is_an_error() {
        let timeout = Duration::from_secs(60);
        let error = guard("echo reading", timeout).unwrap_err();
        let expected = "the guard process answered 'reading' instead of 'ready'";
        assert_eq!(error.to_string(), expected);
        let error = guard("true", timeout).unwrap_err();
        let expected = "the guard process answered '' instead of 'ready'";
        assert_eq!(error.to_string(), expected);
        let error = guard("cat /dev/zero", timeout).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    /// A stopped process, for example, blocks neither the start nor the end.
    #[test]
    fn a_guard_that_does_not_answer_is_killed() {
        let soon = Duration::from_millis(300);
        let error = guard("exec sleep 1000", soon).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(
            error.to_string(),
            "the guard process has not answered within 0.3 s"
        );
        let long = Duration::from_secs(60);
        let mut guard = guard("echo ready; exec sleep 1000", long).unwrap();
        guard.timeout = soon;
        let pid = Pid::from_child(&guard.child);
        let held = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        drop(guard);
        // By the pidfd: the number may belong to another process now.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let left = waitid(WaitId::PidFd(held.as_fd()), options);
        assert_eq!(left.unwrap_err(), Errno::CHILD, "killed and reaped");
    }
}
