//! A running program whose output is read line by line.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::LabError;

/// How often it is looked whether a program has exited.
const POLL: Duration = Duration::from_millis(1);

/// Where a program's standard error goes.
#[derive(Debug)]
pub enum StandardError {
    /// It is read: [`RunningProgram::stderr`].
    Read,
    /// Somewhere else, such as a terminal.
    To(Stdio),
}

/// A running program. Its standard output is read. Killed on drop.
#[derive(Debug)]
pub struct RunningProgram {
    child: Child,
    stdout: Output,
    stderr: Output,
}

impl RunningProgram {
    /// Starts the program with the standard input that `command` has.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(mut command: Command, stderr: StandardError) -> Result<Self, LabError> {
        let stderr = match stderr {
            StandardError::Read => Stdio::piped(),
            StandardError::To(other) => other,
        };
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .map_err(|source| LabError::Start {
                program: command.get_program().to_string_lossy().into_owned(),
                source,
            })?;
        Ok(Self {
            stdout: Output::read(child.stdout.take()),
            stderr: Output::read(child.stderr.take()),
            child,
        })
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its standard input, if the command had a pipe for it, once.
    pub fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// Its standard output.
    #[must_use]
    pub const fn stdout(&self) -> &Output {
        &self.stdout
    }

    /// Its standard error. Empty if it goes somewhere else.
    #[must_use]
    pub const fn stderr(&self) -> &Output {
        &self.stderr
    }

    /// Stops reading its standard error, and fills the pipe: a write to it blocks from now on,
    /// until [`unblock`](Output::unblock) is called.
    ///
    /// # Errors
    /// When it has exited.
    pub fn block_stderr(&self) -> io::Result<()> {
        let pipe = format!("/proc/{}/fd/2", self.child.id());
        self.stderr.block(Path::new(&pipe))
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// When it has exited and was waited for.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        let pid = Pid::from_raw(self.child.id().cast_signed());
        let pid = pid.ok_or(io::ErrorKind::NotFound)?;
        Ok(kill_process(pid, signal)?)
    }

    /// Kills the program with SIGKILL, and waits for its exit.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Its status, if it has exited.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Waits for its exit; `None` when it still runs after `limit`.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub fn wait(&mut self, limit: Duration) -> io::Result<Option<ExitStatus>> {
        let deadline = Instant::now() + limit;
        loop {
            let status = self.child.try_wait()?;
            if status.is_some() || Instant::now() >= deadline {
                return Ok(status);
            }
            std::thread::sleep(POLL);
        }
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What a program has written so far.
#[derive(Debug, Default)]
pub struct Output(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    more: Condvar,
}

/// What is known of an output.
#[derive(Debug, Default)]
struct State {
    text: String,
    over: bool,
    /// It is not read.
    is_blocked: bool,
    /// The thread that reads waits until it may.
    has_stopped: bool,
}

/// What fills a pipe: a control character, which is a part of no output.
const FILLER: char = '\u{16}';

impl Output {
    /// Reads until the end in a thread. `None`: there is nothing to read.
    fn read(from: Option<impl Read + Send + 'static>) -> Self {
        let output = Self::default();
        let Some(from) = from else {
            output.0.lock().over = true;
            return output;
        };
        let filled = Arc::clone(&output.0);
        std::thread::spawn(move || {
            let mut from = BufReader::new(from);
            let mut line = Vec::new();
            loop {
                line.clear();
                let over = matches!(from.read_until(b'\n', &mut line), Ok(0) | Err(_));
                let mut state = filled.lock();
                while state.is_blocked {
                    state.has_stopped = true;
                    filled.more.notify_all();
                    state = filled.wait(state);
                }
                state.has_stopped = false;
                let line = String::from_utf8_lossy(&line);
                let written = line.trim_start_matches(FILLER);
                if written.len() == line.len() || written != "\n" {
                    state.text.push_str(written);
                }
                state.over = over;
                filled.more.notify_all();
                if over {
                    return;
                }
            }
        });
        output
    }

    /// The text so far.
    #[must_use]
    pub fn text(&self) -> String {
        self.0.lock().text.clone()
    }

    /// The last `count` lines so far.
    #[must_use]
    pub fn tail(&self, count: usize) -> String {
        let text = self.text();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(count)..].join("\n")
    }

    /// Waits until `done` returns a value for the text so far. `None`: the output has ended without
    /// one, or `limit` is over.
    pub fn wait<T>(&self, limit: Duration, done: impl Fn(&str) -> Option<T>) -> Option<T> {
        let deadline = Instant::now() + limit;
        let mut state = self.0.lock();
        loop {
            let found = done(&state.text);
            let left = deadline.saturating_duration_since(Instant::now());
            if found.is_some() || state.over || left.is_zero() {
                return found;
            }
            let woken = self.0.more.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits for a whole line for which `wanted` returns a value. `None`: the output has ended
    /// without one, or `limit` is over.
    pub fn wait_line<T>(&self, limit: Duration, wanted: impl Fn(&str) -> Option<T>) -> Option<T> {
        self.wait(limit, |text| text.lines().find_map(&wanted))
    }

    /// Waits for the end of the output.
    pub fn wait_end(&self, limit: Duration) {
        self.wait(limit, |_| None::<()>);
    }

    /// Stops reading, and fills the pipe, whose end for writing is `pipe`.
    fn block(&self, pipe: &Path) -> io::Result<()> {
        let mut options = File::options();
        let not_blocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        options.write(true).custom_flags(not_blocking);
        let mut pipe = options.open(pipe)?;
        self.0.lock().is_blocked = true;
        let mut fill = |filler: &str| {
            loop {
                match pipe.write_all(filler.as_bytes()) {
                    Ok(()) => {}
                    Err(full) if full.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                    Err(error) => return Err(error),
                }
            }
        };
        // Writes of this length are not split (pipe(7), `PIPE_BUF`).
        let line = format!("{}\n", FILLER.to_string().repeat(4095));
        fill(&line)?;
        // The thread has read a line by now, which has made room.
        let mut state = self.0.lock();
        while !state.has_stopped {
            state = self.0.wait(state);
        }
        drop(state);
        fill(&line)?;
        fill(&FILLER.to_string())
    }

    /// Reads again, after [`RunningProgram::block_stderr`].
    pub fn unblock(&self) {
        self.0.lock().is_blocked = false;
        self.0.more.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let woken = self.more.wait(state);
        woken.unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> RunningProgram {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).stdin(Stdio::null());
        RunningProgram::start(command, StandardError::Read).unwrap()
    }

    #[test]
    fn a_line_is_waited_for() {
        let mut program = shell("echo one; echo two words; echo other >&2; exec sleep 60");
        let found = program
            .stdout()
            .wait_line(LONG, |line| line.strip_prefix("two ").map(str::to_owned));
        assert_eq!(found.unwrap(), "words");
        let other = |line: &str| (line == "other").then_some(());
        assert!(program.stderr().wait_line(LONG, other).is_some());
        assert_eq!(program.wait(Duration::ZERO).unwrap(), None);
        program.signal(Signal::TERM).unwrap();
        assert!(!program.wait(LONG).unwrap().unwrap().success());
    }

    #[test]
    fn a_program_that_ends_is_waited_for_no_longer() {
        let mut program = shell("echo one; echo two; exit 3");
        assert_eq!(
            program
                .stdout()
                .wait_line(LONG, |line| line.strip_prefix("three").map(|_| ())),
            None
        );
        assert_eq!(program.wait(LONG).unwrap().unwrap().code(), Some(3));
        assert_eq!(program.stdout().tail(1), "two");
        assert_eq!(program.stdout().text(), "one\ntwo\n");
    }
}
