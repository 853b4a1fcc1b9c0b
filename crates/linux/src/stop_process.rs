//! Stops another process, so that it does not act on a signal that it gets afterwards.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Signal, pidfd_send_signal};

use crate::process::{Process, status_field};

/// How often to look whether the process has stopped.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// `SIGTERM`, as a bit of a signal mask in proc_pid_status(5): signal 1 is the lowest bit.
const TERM: u64 = 1 << (15 - 1);

impl Process {
    /// Stops all threads of the process (`SIGSTOP`), and waits until its main thread has stopped.
    /// It handles no signal from then on: those that it gets stay pending, but `SIGKILL` ends it.
    ///
    /// # Errors
    ///
    /// `ESRCH` when it has exited, `EPERM` without the right to signal it (`CAP_KILL`).
    /// `ETIMEDOUT` when it has not stopped within `timeout`, because it waits in the kernel: it
    /// stops later then.
    pub fn stop(&self, timeout: Duration) -> io::Result<()> {
        pidfd_send_signal(self, Signal::STOP)?;
        let deadline = Instant::now() + timeout;
        while !self.is_stopped() {
            if !self.is_alive() {
                return Err(Errno::SRCH.into());
            }
            if Instant::now() > deadline {
                return Err(Errno::TIMEDOUT.into());
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Lets a stopped process continue (`SIGCONT`).
    ///
    /// # Errors
    ///
    /// As `pidfd_send_signal(2)`; a process that has exited is not an error.
    pub fn continue_stopped(&self) -> io::Result<()> {
        match pidfd_send_signal(self, Signal::CONT) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether its main thread is stopped.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        // proc_pid_status(5): `T (stopped)`. `t` is a thread that is traced.
        self.status("State")
            .is_some_and(|state| state.starts_with('T'))
    }

    /// Whether it was asked to end (`SIGTERM`), and has not handled that: it is stopped.
    #[must_use]
    pub fn is_asked_to_end(&self) -> bool {
        let pending = self.status("ShdPnd");
        pending
            .and_then(|mask| u64::from_str_radix(&mask, 16).ok())
            .is_some_and(|mask| mask & TERM != 0)
    }

    fn status(&self, field: &str) -> Option<String> {
        let value = status_field(format!("/proc/{}/status", self.pid()), field);
        // If it is alive now, its number was not reused when the file was read.
        value.filter(|_| self.is_alive())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};

    const LONG: Duration = Duration::from_secs(60);

    /// A shell that reports when it gets `SIGTERM` ends by `SIGKILL`, without a word.
    #[test]
    fn a_stopped_process_does_not_handle_a_signal() {
        let script = "trap 'echo handled; exit 0' TERM; echo ready; while :; do sleep 0.01; done";
        let mut child = Command::new("sh")
            .args(["-c", script])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = child.stdout.take().unwrap();
        let mut ready = [0; 6];
        std::io::Read::read_exact(&mut output, &mut ready).unwrap();
        let process = Process::open(child.id()).unwrap();
        assert!(!process.is_stopped());
        process.stop(LONG).unwrap();
        assert!(process.is_stopped() && !process.is_asked_to_end());
        // It continues, and can be stopped again.
        process.continue_stopped().unwrap();
        while process.is_stopped() {
            thread::yield_now();
        }
        process.stop(LONG).unwrap();
        pidfd_send_signal(&process, Signal::TERM).unwrap();
        assert!(process.is_asked_to_end());
        process.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut output, &mut rest).unwrap();
        assert_eq!(rest, "", "it has handled the signal");
        assert!(!process.is_stopped() && !process.is_asked_to_end());
        process.continue_stopped().unwrap();
        let error = process.stop(LONG).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
    }
}
