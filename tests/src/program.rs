//! The program under test, as a process.

use crate::{LONG, Terminal};
use hikkoshi_lab::never_retried;
use rustix::process::Signal;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The release build of `hikkoshi`: `$HIKKOSHI_BIN`, or the one in this build's target folder.
///
/// # Panics
/// When there is none.
pub fn hikkoshi() -> PathBuf {
    if let Some(path) = std::env::var_os("HIKKOSHI_BIN") {
        return path.into();
    }
    // …/target/debug/deps/test → …/target/release/hikkoshi
    let test = std::env::current_exe().unwrap();
    let target = test.ancestors().nth(3).unwrap();
    let path = target.join("release/hikkoshi");
    assert!(
        path.exists(),
        "{} is not there; run `cargo build --release --package hikkoshi` first, or set HIKKOSHI_BIN",
        path.display()
    );
    path
}

/// How a program exited, and its output.
#[derive(Clone, Debug)]
pub struct Exit {
    /// The exit code; `None` if it was killed.
    pub code: Option<i32>,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Exit {
    /// The command that the program suggested on standard error, starting with `begins`, as a shell
    /// runs it: nothing added, nothing left out. `folder` is where a link to the program is
    /// created.
    ///
    /// # Panics
    /// When it suggested none.
    pub fn suggested_command(&self, begins: &str, folder: &Path) -> Command {
        let line = self
            .stderr
            .lines()
            .find_map(|line| Some(&line[line.find(begins)?..]));
        let line = line.unwrap_or_else(|| panic!("no {begins:?} in {self:?}"));
        let bin = folder.join("bin");
        std::fs::create_dir_all(&bin).unwrap();
        let link = bin.join("hikkoshi");
        if !link.exists() {
            std::os::unix::fs::symlink(hikkoshi(), link).unwrap();
        }
        let mut shell = Command::new("/bin/sh");
        // A different working directory and environment from those of the first command.
        shell.args(["-c", line]).current_dir("/").env("PATH", bin);
        shell
    }
}

/// A running program. Killed on drop.
#[derive(Debug)]
pub struct Program {
    name: String,
    child: Child,
    stdout: Arc<Stream>,
    stderr: Arc<Stream>,
}

/// One of its output streams.
#[derive(Debug, Default)]
struct Stream {
    state: Mutex<State>,
    more: Condvar,
}

/// What is known of it.
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

impl Stream {
    fn follow(from: impl Read + Send + 'static) -> Arc<Self> {
        let stream = Arc::new(Self::default());
        let filled = Arc::clone(&stream);
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
                    let woken = filled.more.wait(state);
                    state = woken.unwrap_or_else(PoisonError::into_inner);
                }
                state.has_stopped = false;
                let line = String::from_utf8_lossy(&line);
                let output = line.trim_start_matches(FILLER);
                if output.len() == line.len() || output != "\n" {
                    state.text.push_str(output);
                }
                state.over = over;
                filled.more.notify_all();
                if over {
                    return;
                }
            }
        });
        stream
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn text(&self) -> String {
        self.lock().text.clone()
    }

    /// Stops reading, and fills the pipe, whose end for writing is `pipe`.
    fn block(&self, pipe: &Path) {
        let mut options = File::options();
        let not_blocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        options.write(true).custom_flags(not_blocking);
        let mut pipe = options.open(pipe).unwrap();
        self.lock().is_blocked = true;
        let mut fill = |filler: &str| {
            let full = loop {
                if let Err(error) = pipe.write_all(filler.as_bytes()) {
                    break error;
                }
            };
            assert_eq!(full.kind(), io::ErrorKind::WouldBlock, "{full}");
        };
        // Writes of this length are not split (pipe(7), `PIPE_BUF`).
        let line = format!("{}\n", FILLER.to_string().repeat(4095));
        fill(&line);
        // The thread has read a line by now, which has made room.
        let mut state = self.lock();
        while !state.has_stopped {
            let woken = self.more.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        fill(&line);
        fill(&FILLER.to_string());
    }

    /// Reads again.
    fn unblock(&self) {
        self.lock().is_blocked = false;
        self.more.notify_all();
    }

    /// Waits until `done` returns a value for the text so far, or the stream has ended.
    fn wait<T>(&self, limit: Duration, done: impl Fn(&str, bool) -> Option<T>) -> Option<T> {
        let deadline = Instant::now() + limit;
        let mut state = self.lock();
        loop {
            let found = done(&state.text, state.over);
            let left = deadline.saturating_duration_since(Instant::now());
            if found.is_some() || state.over || left.is_zero() {
                return found;
            }
            state = self
                .more
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

impl Program {
    /// Starts the program; `name` is for messages.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start(name: &str, command: Command) -> Self {
        Self::start_with_input(name, command, "")
    }

    /// Starts the program with this standard input.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start_with_input(name: &str, command: Command, input: &str) -> Self {
        Self::start_with(name, command, input, None)
    }

    /// Starts the program, with a terminal as its standard error if one is given.
    pub(crate) fn start_with(
        name: &str,
        mut command: Command,
        input: &str,
        terminal: Option<&Terminal>,
    ) -> Self {
        command.stdin(Stdio::piped());
        let mut program = Self::start_as_it_is_at(name, command, terminal);
        // It fits into the pipe. A program that has already exited does not read it.
        let stdin = program.child.stdin.take();
        let _ = stdin.unwrap().write_all(input.as_bytes());
        program
    }

    /// Starts the program with the standard input that the command has.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start_as_it_is(name: &str, command: Command) -> Self {
        Self::start_as_it_is_at(name, command, None)
    }

    fn start_as_it_is_at(name: &str, mut command: Command, terminal: Option<&Terminal>) -> Self {
        let stderr = match terminal {
            Some(terminal) => {
                command.env("TERM", "xterm");
                terminal.user_side().into()
            }
            None => Stdio::piped(),
        };
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .unwrap_or_else(|error| panic!("starting {command:?}: {error}"));
        let stdout = Stream::follow(child.stdout.take().unwrap());
        let stderr = match child.stderr.take() {
            Some(pipe) => Stream::follow(pipe),
            // What is shown is at the terminal.
            None => Stream::follow(io::empty()),
        };
        Self {
            name: name.to_owned(),
            child,
            stdout,
            stderr,
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its standard error so far.
    pub fn stderr(&self) -> String {
        self.stderr.text()
    }

    /// Waits for a line with `part` in it on standard error, and returns the line.
    ///
    /// # Panics
    /// When it exits first, or after a long time.
    pub fn wait_stderr(&self, part: &str) -> String {
        self.wait_line(&self.stderr, part)
    }

    /// Waits for a line with `part` in it on standard output, and returns the line.
    ///
    /// # Panics
    /// When it exits first, or after a long time.
    pub fn wait_stdout(&self, part: &str) -> String {
        self.wait_line(&self.stdout, part)
    }

    fn wait_line(&self, stream: &Stream, part: &str) -> String {
        let line = stream.wait(LONG, |text, _| {
            text.lines().find(|l| l.contains(part)).map(str::to_owned)
        });
        line.unwrap_or_else(|| panic!("{} did not print {part:?}:\n{}", self.name, self.stderr()))
    }

    /// Number of lines with `part` in them on standard error so far.
    pub fn stderr_count(&self, part: &str) -> usize {
        self.stderr().lines().filter(|l| l.contains(part)).count()
    }

    /// Waits until standard error has this many lines with `part` in them.
    ///
    /// # Panics
    /// When it exits first, or after a long time.
    pub fn wait_stderr_count(&self, part: &str, times: usize) {
        let stderr = self.stderr.wait(LONG, |text, _| {
            let count = text.lines().filter(|l| l.contains(part)).count();
            (count >= times).then_some(())
        });
        assert!(
            stderr.is_some(),
            "{} did not print {part:?} {times} times:\n{}",
            self.name,
            self.stderr()
        );
    }

    /// Stops reading its standard error, and fills the pipe: a write to it blocks from now on,
    /// until the program has exited.
    ///
    /// # Panics
    /// When it has exited.
    pub fn block_stderr(&self) {
        let pipe = format!("/proc/{}/fd/2", self.child.id());
        self.stderr.block(Path::new(&pipe));
    }

    /// Sends a signal to the program.
    ///
    /// # Panics
    /// When it has exited and was waited for.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Sends SIGINT, as Ctrl-C does.
    pub fn interrupt(&self) {
        self.signal(Signal::INT);
    }

    /// Kills the program with SIGKILL.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Whether it has exited.
    ///
    /// # Panics
    /// When its status cannot be read.
    pub fn has_exited(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    fn note_crash(&self, status: ExitStatus) {
        if let Some(crash) = crash(status, &self.stderr()) {
            never_retried(format_args!("{} crashed: {crash}", self.name));
        }
    }

    /// Waits for its exit.
    ///
    /// # Panics
    /// When it does not exit in a long time.
    pub fn wait(&mut self) -> Exit {
        let deadline = Instant::now() + LONG;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(
                Instant::now() < deadline,
                "{} does not exit; its standard error:\n{}",
                self.name,
                self.stderr()
            );
            std::thread::sleep(Duration::from_millis(2));
        };
        // The output is still in the pipes. A guard process that it left behind may keep their
        // other ends open a little longer.
        for stream in [&self.stdout, &self.stderr] {
            stream.unblock();
            stream.wait(LONG, |_, over| over.then_some(()));
        }
        self.note_crash(status);
        Exit {
            code: status.code(),
            stdout: self.stdout.text(),
            stderr: self.stderr.text(),
        }
    }
}

/// How it crashed: by a signal that no test sends, or a thread has panicked.
fn crash(status: ExitStatus, stderr: &str) -> Option<String> {
    let sent = [Signal::KILL, Signal::TERM, Signal::INT, Signal::HUP].map(Signal::as_raw);
    match status.signal() {
        Some(signal) if !sent.contains(&signal) => Some(format!("signal {signal}")),
        _ => stderr
            .lines()
            .find(|line| line.contains("panicked at"))
            .map(str::to_owned),
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Ok(Some(status)) = self.child.try_wait() {
            self.note_crash(status);
        }
        self.kill();
        if std::thread::panicking() {
            crate::log(format!(
                "{}: standard output:\n{}standard error:\n{}",
                self.name,
                self.stdout.text(),
                self.stderr.text()
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_is_told_from_a_program_that_was_killed() {
        let crash_of = |script: &str| {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", script]);
            let mut program = Program::start("a script", command);
            let status = loop {
                if let Some(status) = program.child.try_wait().unwrap() {
                    break status;
                }
            };
            crash(status, &program.wait().stderr)
        };
        assert_eq!(crash_of("kill -SEGV $$").unwrap(), "signal 11");
        let panic = "thread 'main' panicked at src/main.rs:1:1:";
        assert_eq!(
            crash_of(&format!("echo \"{panic}\" >&2; exit 101")).unwrap(),
            panic
        );
        for ordinary in ["exit 3", "kill -KILL $$", "kill -TERM $$"] {
            assert_eq!(crash_of(ordinary), None, "{ordinary}");
        }
    }
}
