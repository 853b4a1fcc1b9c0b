//! The tables with the real VMX instructions: runs the bare-metal hypervisor of `bochs/` in Bochs
//! and checks its verdict.
//!
//! All output of the hypervisor is printed, even if the test passes.

#![cfg(not(loom))]
// Helpers outside the test function: an `expect` that fails is a test failure too.
#![allow(clippy::expect_used)]

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// The file for Bochs's standard error.
const ERRORS: &str = "errors.log";

/// A run takes less than 20 seconds of CPU time, and even a slow and busy machine needs less than
/// this limit. After it, the guest or Bochs hangs.
const LIMIT: Duration = Duration::from_secs(1200);

#[test]
fn the_tables_work_with_real_vmx_instructions() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("bochs");
    let built = run(&folder).arg("build").output().expect("starting run.sh");
    assert!(
        built.status.success(),
        "cannot build the hypervisor, or Bochs is not installed:\n{}",
        String::from_utf8_lossy(&built.stderr)
    );

    let files = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("bochs");
    let mut emulator = Emulator::start(&folder, &files);
    let output_lines = emulator.listen();
    if let Err(reason) = verdict(&output_lines) {
        emulator.stop();
        panic!(
            "{reason}\n\n{}\n\n{}",
            end_of(&files.join(ERRORS)),
            end_of(&files.join("bochs.log"))
        );
    }
}

/// Returns the command that builds and starts the hypervisor. Its target directory is below this
/// test's own.
fn run(folder: &Path) -> Command {
    let mut command = Command::new(folder.join("run.sh"));
    if let Some(target) = Path::new(env!("CARGO_TARGET_TMPDIR")).parent() {
        command.env("CARGO_TARGET_DIR", target);
    }
    command.stdin(Stdio::null());
    command
}

/// Checks that the hypervisor reports success and that all the checks it counts are in its output.
fn verdict(output_lines: &[String]) -> Result<(), String> {
    let failed: Vec<&str> = output_lines
        .iter()
        .map(String::as_str)
        .filter(|line| line.starts_with("FAIL"))
        .collect();
    if !failed.is_empty() {
        return Err(format!("failed checks:\n{}", failed.join("\n")));
    }
    let last = output_lines
        .iter()
        .find(|line| line.starts_with("verdict: "))
        .ok_or("the hypervisor printed no verdict: it stopped, hung or did not start")?;
    let held = output_lines
        .iter()
        .filter(|line| line.starts_with("ok "))
        .count();
    if *last != format!("verdict: passed, {held} checks") || held == 0 {
        return Err(format!(
            "the verdict is \"{last}\" after {held} passed checks"
        ));
    }
    Ok(())
}

/// A Bochs process that runs the hypervisor.
struct Emulator {
    process: Child,
    lines: Receiver<String>,
}

impl Emulator {
    fn start(folder: &Path, files: &Path) -> Emulator {
        std::fs::create_dir_all(files).expect("creating the directory for Bochs's files");
        // A file, not a pipe: a pipe would have to be read.
        let errors =
            File::create(files.join(ERRORS)).expect("creating the file for standard error");
        let mut process = run(folder)
            .env("OUT", files)
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .expect("starting run.sh");
        let output = process.stdout.take().expect("standard output is piped");
        let (send, lines) = channel();
        std::thread::Builder::new()
            .name("bochs output".into())
            .spawn(move || {
                for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                    let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                    if send.send(line).is_err() {
                        return;
                    }
                }
            })
            .expect("starting a thread");
        Emulator { process, lines }
    }

    /// Prints and returns all output until Bochs ends or the time limit is reached.
    fn listen(&mut self) -> Vec<String> {
        let end = Instant::now() + LIMIT;
        let mut output_lines = Vec::new();
        loop {
            match self
                .lines
                .recv_timeout(end.saturating_duration_since(Instant::now()))
            {
                Ok(line) => {
                    // Not `println`, whose output is captured while the test passes.
                    let _ = writeln!(std::io::stdout(), "bochs: {line}");
                    output_lines.push(line);
                }
                Err(RecvTimeoutError::Disconnected) => return output_lines,
                Err(RecvTimeoutError::Timeout) => {
                    self.stop();
                    output_lines.push(format!(
                        "FAIL did not end within {} seconds",
                        LIMIT.as_secs()
                    ));
                    return output_lines;
                }
            }
        }
    }

    fn stop(&mut self) {
        // run.sh has replaced itself by Bochs (exec). It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Returns the last lines of a file, with its name.
fn end_of(file: &Path) -> String {
    const LINES: usize = 60;
    let text = match std::fs::read(file) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) => format!("(cannot be read: {error})"),
    };
    let lines: Vec<&str> = text.lines().collect();
    let end = lines
        .get(lines.len().saturating_sub(LINES)..)
        .unwrap_or_default();
    format!("last lines of {}:\n{}", file.display(), end.join("\n"))
}
