//! The output of another program: of limited length, within a limited time.

use std::io::{self, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use hikkoshi_engine::CancelFlag;
use thiserror::Error;

/// How often to check whether it is cancelled.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The most bytes that are kept of what a program reports.
const MAX_ERRORS: u64 = 4096;

/// What a program has written, and how it ended.
#[derive(Debug)]
pub(super) struct BoundedOutput {
    pub(super) status: ExitStatus,
    pub(super) stdout: Vec<u8>,
    /// The beginning of what it has reported.
    pub(super) stderr: String,
}

/// Why there is no output.
#[derive(Debug, Error)]
pub(super) enum OutputError {
    #[error("running '{program}'")]
    Start {
        program: String,
        #[source]
        cause: io::Error,
    },
    #[error("reading its output")]
    Read(#[from] io::Error),
    #[error("its output is longer than {0} bytes")]
    TooLong(u64),
    #[error("it has not ended within {} s", .0.as_secs())]
    TimedOut(Duration),
    #[error("cancelled")]
    Cancelled,
}

/// A program that is ended when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs `command`, which reads nothing, and reads at most `most` bytes of its output.
pub(super) fn bounded_output(
    mut command: Command,
    most: u64,
    timeout: Duration,
    cancel: &CancelFlag,
) -> Result<BoundedOutput, OutputError> {
    let piped = command.stdin(Stdio::null()).stdout(Stdio::piped());
    let spawned = piped.stderr(Stdio::piped()).spawn();
    let child = spawned.map_err(|cause| OutputError::Start {
        program: command.get_program().display().to_string(),
        cause,
    })?;
    let mut running = Running(child);
    let output = start_reading("cmd-output", running.0.stdout.take(), most + 1)?;
    let errors = start_reading("cmd-errors", running.0.stderr.take(), MAX_ERRORS)?;
    let limits = Limits {
        deadline: Instant::now() + timeout,
        timeout,
        cancel,
    };
    let stdout = limits.wait(&output)?;
    if stdout.len() as u64 > most {
        return Err(OutputError::TooLong(most));
    }
    let status = loop {
        match running.0.try_wait()? {
            Some(status) => break status,
            None => limits.check()?,
        }
        thread::sleep(POLL_INTERVAL);
    };
    // Another process, such as a shared connection of ssh, may keep it open.
    let stderr = errors.recv_timeout(Duration::from_secs(1));
    let stderr = stderr.ok().and_then(Result::ok).unwrap_or_default();
    Ok(BoundedOutput {
        status,
        stdout,
        stderr: String::from_utf8_lossy(&stderr).trim().to_owned(),
    })
}

/// How long is waited.
struct Limits<'a> {
    deadline: Instant,
    timeout: Duration,
    cancel: &'a CancelFlag,
}

impl Limits<'_> {
    fn check(&self) -> Result<(), OutputError> {
        if self.cancel.is_cancelled() {
            return Err(OutputError::Cancelled);
        }
        match Instant::now() < self.deadline {
            true => Ok(()),
            false => Err(OutputError::TimedOut(self.timeout)),
        }
    }

    fn wait(&self, output: &Receiver<io::Result<Vec<u8>>>) -> Result<Vec<u8>, OutputError> {
        loop {
            match output.recv_timeout(POLL_INTERVAL) {
                Ok(read) => return Ok(read?),
                Err(RecvTimeoutError::Timeout) => self.check()?,
                Err(RecvTimeoutError::Disconnected) => return Ok(Vec::new()),
            }
        }
    }
}

/// Reads the first `most` bytes on a thread of its own, and then the rest, which is dropped: a
/// program that writes on is not killed by that.
fn start_reading(
    name: &str,
    input: Option<impl Read + Send + 'static>,
    most: u64,
) -> io::Result<Receiver<io::Result<Vec<u8>>>> {
    let (sender, receiver) = channel();
    let read = move || {
        let Some(mut input) = input else { return };
        let mut bytes = Vec::new();
        let read = input.by_ref().take(most).read_to_end(&mut bytes);
        // Nobody may wait for it any more.
        let _ = sender.send(read.map(|_| bytes));
        let _ = io::copy(&mut input, &mut io::sink());
    };
    thread::Builder::new().name(name.into()).spawn(read)?;
    Ok(receiver)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(120);

    fn run(script: &str, most: u64, timeout: Duration) -> Result<BoundedOutput, OutputError> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        bounded_output(command, most, timeout, &CancelFlag::new())
    }

    #[test]
    fn what_a_program_writes_is_read() {
        let output = run("printf abc; echo why >&2; exit 3", 3, LONG).unwrap();
        assert_eq!((&*output.stdout, &*output.stderr), (&b"abc"[..], "why"));
        assert_eq!(output.status.code(), Some(3));
        assert!(run("true", 3, LONG).unwrap().stdout.is_empty());
    }

    #[test]
    fn a_program_without_end_is_ended() {
        // Slowly: `yes` and its reader keep two processors busy, and a kernel that shares them
        // badly (Linux 6.18, while guests run under KVM there) let nothing else run for minutes.
        let endless = "while echo a line of forty characters, no more; do sleep 0.01; done";
        for script in [endless.to_owned(), format!("{{ {endless}; }} >&2")] {
            let error = run(&script, 1000, Duration::from_millis(300)).unwrap_err();
            let is_ended = matches!(error, OutputError::TooLong(1000) | OutputError::TimedOut(_));
            assert!(is_ended, "{error}");
        }
        let error = run("printf abcd", 3, LONG).unwrap_err();
        assert!(matches!(error, OutputError::TooLong(3)), "{error}");
        let cancel = CancelFlag::new();
        cancel.cancel();
        let mut command = Command::new("sleep");
        command.arg("1000");
        let error = bounded_output(command, 1, LONG, &cancel).unwrap_err();
        assert!(matches!(error, OutputError::Cancelled), "{error}");
        let missing = Command::new("/nowhere/ssh");
        let error = bounded_output(missing, 1, LONG, &CancelFlag::new()).unwrap_err();
        assert!(error.to_string().contains("/nowhere/ssh"), "{error}");
    }
}
