//! The program under test, as a process.

use crate::{LONG, Terminal, eventually, hikkoshi};
use error_reporter::Report;
use hikkoshi_lab::{Output, RunningProgram, StandardError, never_retried};
use rustix::process::Signal;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

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
    program: RunningProgram,
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
        let stdin = program.program.take_stdin();
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
                StandardError::To(terminal.user_side().into())
            }
            None => StandardError::Read,
        };
        let program = RunningProgram::start(command, stderr);
        Self {
            name: name.to_owned(),
            program: program.unwrap_or_else(|error| panic!("{}", Report::new(error))),
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.program.pid()
    }

    /// Its standard error so far.
    pub fn stderr(&self) -> String {
        self.program.stderr().text()
    }

    /// Waits for a line with `part` in it on standard error, and returns the line.
    ///
    /// # Panics
    /// When it exits first, or after a long time.
    pub fn wait_stderr(&self, part: &str) -> String {
        self.wait_line(self.program.stderr(), part)
    }

    /// Waits for a line with `part` in it on standard output, and returns the line.
    ///
    /// # Panics
    /// When it exits first, or after a long time.
    pub fn wait_stdout(&self, part: &str) -> String {
        self.wait_line(self.program.stdout(), part)
    }

    fn wait_line(&self, output: &Output, part: &str) -> String {
        let line = output.wait_line(LONG, |line| line.contains(part).then(|| line.to_owned()));
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
        let stderr = self.program.stderr().wait(LONG, |text| {
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
        self.program.block_stderr().unwrap();
    }

    /// Sends a signal to the program.
    ///
    /// # Panics
    /// When it has exited and was waited for.
    pub fn signal(&self, signal: Signal) {
        self.program.signal(signal).unwrap();
    }

    /// Sends SIGINT, as Ctrl-C does.
    pub fn interrupt(&self) {
        self.signal(Signal::INT);
    }

    /// Kills the program with SIGKILL.
    pub fn kill(&mut self) {
        self.program.kill();
    }

    /// Whether it has exited.
    ///
    /// # Panics
    /// When its status cannot be read.
    pub fn has_exited(&mut self) -> bool {
        self.program.try_wait().unwrap().is_some()
    }

    /// Waits until a destination has exited, or has refused a source and waits for another one.
    pub(crate) fn wait_exited_or_refused(&mut self) {
        eventually("the destination to exit or to wait again", || {
            let said = self.stderr();
            match self.has_exited() || said.contains("refused a guest") {
                true => Ok(()),
                false => Err(said),
            }
        });
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
        let status = self.program.wait(LONG).unwrap().unwrap_or_else(|| {
            panic!(
                "{} does not exit; its standard error:\n{}",
                self.name,
                self.stderr()
            )
        });
        // The output is still in the pipes. A guard process that it left behind may keep their
        // other ends open a little longer.
        for output in [self.program.stdout(), self.program.stderr()] {
            output.unblock();
            output.wait_end(LONG);
        }
        self.note_crash(status);
        Exit {
            code: status.code(),
            stdout: self.program.stdout().text(),
            stderr: self.stderr(),
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
        if let Ok(Some(status)) = self.program.try_wait() {
            self.note_crash(status);
        }
        self.kill();
        if std::thread::panicking() {
            crate::log(format!(
                "{}: standard output:\n{}standard error:\n{}",
                self.name,
                self.program.stdout().text(),
                self.stderr()
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
            let status = program.program.wait(LONG).unwrap().unwrap();
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
