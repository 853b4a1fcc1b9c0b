//! One move: `hikkoshi migrate`, in a process group of its own, so that Ctrl-C does not reach it.
//! Its result and its messages are in files, so that they are there also if this process is killed.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Stdio};

use hikkoshi_control::{Command, ControlFolder, Outcome, Set, send};
use hikkoshi_linux::Process;
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;

use super::journal::MoveFiles;
use crate::commands::own_executable;
use crate::output::units;

/// How long an engine may take to answer.
const ANSWER: std::time::Duration = std::time::Duration::from_secs(5);

/// How a move ended.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum MoveEnd {
    /// The guest is at the destination.
    Moved(Moved),
    /// It did not move, or not wholly.
    Failed(Failure),
}

/// What a move has reported. `None`: it has not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
pub(super) struct Moved {
    #[serde(default)]
    pub(super) total_ms: Option<f64>,
    #[serde(default)]
    pub(super) downtime_ms: Option<f64>,
    #[serde(default)]
    request_latency_us: Option<Waits>,
}

/// How often and how long the guest's processors have waited for pages.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
struct Waits {
    count: u64,
    mean: f64,
}

impl Moved {
    /// What a guest with so many processors has lost of its time, in milliseconds.
    pub(super) fn felt_ms(&self, vcpus: u32) -> Option<f64> {
        let waits = self.request_latency_us?;
        let waited_ms = units::float(waits.count) * waits.mean / 1e3;
        Some(self.downtime_ms? + waited_ms / f64::from(vcpus.max(1)))
    }
}

/// Why a move did not end well.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Failure {
    /// As `migrate` ends.
    pub(super) exit_status: u8,
    /// A code (`docs/json.md`).
    pub(super) reason: String,
    pub(super) message: String,
    #[serde(default)]
    pub(super) next: Option<String>,
    #[serde(default)]
    pub(super) resume: Option<String>,
}

impl Failure {
    /// What happened and what to do, for people.
    pub(super) fn text(&self) -> String {
        match &self.next {
            Some(next) => format!("{}; {next}", self.message),
            None => self.message.clone(),
        }
    }
}

/// The object of `--json`.
#[derive(Debug, Deserialize)]
struct Written {
    #[serde(default)]
    error: Option<Failure>,
    #[serde(flatten)]
    moved: Moved,
}

/// A process that moves a guest: a child, or one that an earlier run has started.
#[derive(Debug)]
pub(super) enum MoveProcess {
    Child(Child),
    /// Of an earlier run.
    Other(Process),
}

impl MoveProcess {
    /// Starts `hikkoshi` with these words.
    pub(super) fn start(words: &[OsString], files: &MoveFiles) -> io::Result<Self> {
        match fs::remove_file(&files.result) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let messages = File::create(&files.log)?;
        let child = own_executable::command()
            .args(words)
            .args(["--progress", "none"])
            .arg("--json")
            .arg(&files.result)
            .stdin(Stdio::null())
            .stdout(messages.try_clone()?)
            .stderr(messages)
            .process_group(0)
            .spawn()?;
        Ok(Self::Child(child))
    }

    /// The process of an earlier run with these files, if it still runs.
    pub(super) fn left(pid: u32, files: &MoveFiles) -> Option<Self> {
        let process = Process::open(pid).ok()?;
        let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let file = files.result.to_str()?.as_bytes();
        let is_it = words.split(|byte| *byte == 0).any(|word| word == file);
        (is_it && process.is_alive()).then_some(Self::Other(process))
    }

    pub(super) fn pid(&self) -> u32 {
        match self {
            Self::Child(child) => child.id(),
            Self::Other(process) => process.pid(),
        }
    }

    /// Cancels the move, if its guest is not handed over yet.
    pub(super) fn cancel(&self) {
        match self {
            Self::Child(child) => {
                // It is a child that was not waited for: its number is its own.
                let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
                if let Some(pid) = pid {
                    let _ = kill_process(pid, Signal::INT);
                }
            }
            Self::Other(process) => {
                let _ = process.signal(Signal::INT);
            }
        }
    }

    /// How it ended; `None` while it runs.
    pub(super) fn ended(&mut self, files: &MoveFiles) -> Option<MoveEnd> {
        let status = match self {
            Self::Child(child) => match child.try_wait() {
                Ok(None) => return None,
                Ok(Some(status)) => status.code(),
                Err(_) => None,
            },
            Self::Other(process) if process.is_alive() => return None,
            Self::Other(_) => None,
        };
        Some(end(status, files))
    }

    /// Whether its engine can be controlled: it has reached the destination.
    pub(super) fn is_controlled(&self, folder: &ControlFolder) -> bool {
        control_name(folder, self.pid()).is_some()
    }

    /// Changes the limit of its background traffic; `false`: not now.
    pub(super) fn set_bandwidth(&self, folder: &ControlFolder, limit: Option<u64>) -> bool {
        let Some(name) = control_name(folder, self.pid()) else {
            return false;
        };
        let set = Set {
            bandwidth: Some(limit),
            max_downtime_ms: None,
        };
        // It is refused when there is nothing more to limit.
        let answer = send(folder, &name, Command::Set(set), ANSWER);
        matches!(answer, Ok(Outcome::Changed(_) | Outcome::Refused(_)))
    }
}

/// The name of the control socket of the source with this process.
fn control_name(folder: &ControlFolder, pid: u32) -> Option<String> {
    let begins = format!("source-{pid}-");
    let names = fs::read_dir(folder.path()).ok()?.filter_map(|entry| {
        let name = entry.ok()?.file_name().into_string().ok()?;
        let name = name.strip_suffix(".sock")?.to_owned();
        name.starts_with(&begins).then_some(name)
    });
    names.into_iter().next()
}

/// How a move ended whose process has ended with this status, if it is known.
pub(super) fn end(status: Option<i32>, files: &MoveFiles) -> MoveEnd {
    if let Some(end) = written(&files.result) {
        return end;
    }
    let said = last_line(&files.log);
    // Without a result: it was killed, or an option was invalid.
    let (exit_status, what) = match status {
        Some(0) => {
            return MoveEnd::Moved(Moved::default());
        }
        Some(code @ (1 | 2)) => (
            u8::try_from(code).unwrap_or(3),
            "it has ended without a result",
        ),
        // What it had done is not known. Its journal has it.
        Some(_) => (3, "its process has failed"),
        None => (3, "its process was killed"),
    };
    let message = match said {
        Some(line) => format!("{what}: {line}"),
        None => what.to_owned(),
    };
    MoveEnd::Failed(Failure {
        exit_status,
        reason: "interrupted".to_owned(),
        message,
        next: None,
        resume: None,
    })
}

/// How a move ended, by its result. `None`: there is none.
pub(super) fn written(file: &Path) -> Option<MoveEnd> {
    let text = fs::read(file).ok()?;
    let written: Written = serde_json::from_slice(&text).ok()?;
    Some(match written.error {
        Some(failure) if failure.exit_status != 0 => MoveEnd::Failed(failure),
        _ => MoveEnd::Moved(written.moved),
    })
}

fn last_line(log: &Path) -> Option<String> {
    let text = fs::read(log).ok()?;
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().rev().find(|line| !line.trim().is_empty())?;
    Some(line.chars().take(500).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(folder: &Path) -> MoveFiles {
        MoveFiles {
            result: folder.join("a.json"),
            log: folder.join("a.log"),
        }
    }

    #[test]
    fn the_end_of_a_move_is_read_from_its_result() {
        let folder = tempfile::tempdir().unwrap();
        let files = files(folder.path());
        let failed = |status| match end(status, &files) {
            MoveEnd::Failed(failure) => failure,
            MoveEnd::Moved(_) => panic!("it has not moved"),
        };
        // Killed before it could say anything.
        assert_eq!(failed(None).exit_status, 3);
        // It has panicked.
        assert_eq!(failed(Some(101)).exit_status, 3);
        fs::write(&files.log, "error: no such option\n\n").unwrap();
        let usage = failed(Some(2));
        assert_eq!(usage.exit_status, 2);
        assert!(usage.message.ends_with("no such option"), "{usage:?}");
        let error = r#"{"error":{"exit_status":1,"reason":"connect","guest":"source",
            "message":"m","next":"n","resume":null}}"#;
        fs::write(&files.result, error).unwrap();
        let refused = failed(Some(1));
        assert_eq!((&*refused.reason, &*refused.text()), ("connect", "m; n"));
        let result = r#"{"total_ms":12.5,"downtime_ms":3.0,"more":[],
            "request_latency_us":{"count":40,"mean":50.0,"max":70.0}}"#;
        fs::write(&files.result, result).unwrap();
        let MoveEnd::Moved(moved) = end(Some(0), &files) else {
            panic!("it has moved");
        };
        assert_eq!(moved.total_ms, Some(12.5));
        // Two of 1 ms for each processor.
        assert_eq!(moved.felt_ms(2), Some(4.0));
        assert_eq!(Moved::default().felt_ms(1), None);
    }
}
