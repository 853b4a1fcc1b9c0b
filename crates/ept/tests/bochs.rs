//! The tables under the real instruction set: starts the bare-metal hypervisor of `bochs/` in Bochs
//! and reads its verdict.
//!
//! Every line that the hypervisor says is printed, also when the test passes.

#![cfg(not(loom))]
// Helpers outside the test function: their failure is the message too.
#![allow(clippy::expect_used)]

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Where Bochs's standard error goes.
const ERRORS: &str = "errors.log";

/// A run takes less than 20 seconds of processor time. A slow machine with much else to do gives it
/// that within this; after it, the guest or Bochs hangs.
const LIMIT: Duration = Duration::from_secs(1200);

#[test]
fn the_tables_hold_under_the_real_instruction_set() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("bochs");
    let built = run(&folder).arg("build").output().expect("run.sh starts");
    assert!(
        built.status.success(),
        "the hypervisor could not be built, or Bochs is not set up:\n{}",
        String::from_utf8_lossy(&built.stderr)
    );

    let files = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("bochs");
    let mut emulator = Emulator::start(&folder, &files);
    let said = emulator.listen();
    if let Err(reason) = verdict(&said) {
        emulator.stop();
        panic!(
            "{reason}\n\n{}\n\n{}",
            end_of(&files.join(ERRORS)),
            end_of(&files.join("bochs.log"))
        );
    }
}

/// The script that builds and starts the hypervisor; it builds beside this test's own target.
fn run(folder: &Path) -> Command {
    let mut command = Command::new(folder.join("run.sh"));
    if let Some(target) = Path::new(env!("CARGO_TARGET_TMPDIR")).parent() {
        command.env("CARGO_TARGET_DIR", target);
    }
    command.stdin(Stdio::null());
    command
}

/// Whether the hypervisor says that all went well, and has said each check that it counts.
fn verdict(said: &[String]) -> Result<(), String> {
    let failed: Vec<&str> = said
        .iter()
        .map(String::as_str)
        .filter(|line| line.starts_with("FAIL"))
        .collect();
    if !failed.is_empty() {
        return Err(format!("checks that did not hold:\n{}", failed.join("\n")));
    }
    let last = said
        .iter()
        .find(|line| line.starts_with("verdict: "))
        .ok_or("the hypervisor said no verdict: it stopped, hung or never started")?;
    let held = said.iter().filter(|line| line.starts_with("ok ")).count();
    if *last != format!("verdict: passed, {held} checks") || held == 0 {
        return Err(format!(
            "the verdict is \"{last}\", after {held} checks that held"
        ));
    }
    Ok(())
}

/// Bochs, running the hypervisor.
struct Emulator {
    process: Child,
    lines: Receiver<String>,
}

impl Emulator {
    fn start(folder: &Path, files: &Path) -> Emulator {
        std::fs::create_dir_all(files).expect("the folder for Bochs's files can be made");
        // A file and not a pipe: nobody has to empty it.
        let errors = File::create(files.join(ERRORS)).expect("a file in that folder can be made");
        let mut process = run(folder)
            .env("OUT", files)
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .expect("run.sh starts");
        let output = process.stdout.take().expect("it is piped");
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
            .expect("a thread starts");
        Emulator { process, lines }
    }

    /// Prints and returns what is said, until Bochs ends or the time is over.
    fn listen(&mut self) -> Vec<String> {
        let end = Instant::now() + LIMIT;
        let mut said = Vec::new();
        loop {
            match self
                .lines
                .recv_timeout(end.saturating_duration_since(Instant::now()))
            {
                Ok(line) => {
                    // Not `println`: that would be kept back while the test passes.
                    let _ = writeln!(std::io::stdout(), "bochs: {line}");
                    said.push(line);
                }
                Err(RecvTimeoutError::Disconnected) => return said,
                Err(RecvTimeoutError::Timeout) => {
                    self.stop();
                    said.push(format!("FAIL no end after {} seconds", LIMIT.as_secs()));
                    return said;
                }
            }
        }
    }

    fn stop(&mut self) {
        // run.sh has become Bochs, so this is Bochs. It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The last lines of a file, under its name.
fn end_of(file: &Path) -> String {
    const LINES: usize = 60;
    let text = match std::fs::read(file) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) => format!("(not readable: {error})"),
    };
    let lines: Vec<&str> = text.lines().collect();
    let end = lines
        .get(lines.len().saturating_sub(LINES)..)
        .unwrap_or_default();
    format!("the end of {}:\n{}", file.display(), end.join("\n"))
}
