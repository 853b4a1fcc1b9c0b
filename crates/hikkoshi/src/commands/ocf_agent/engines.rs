//! The engines of the guest's moves. Each is a process that goes on when the agent has ended, or
//! Pacemaker has killed it.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use error_reporter::Report;
use serde_json::Value;

use super::guest::{Guest, Journal};
use super::parameters::{Machine, OnTimeout};
use crate::args::Words;
use crate::commands::{cluster_guest, own_executable};
use crate::journal::{DestinationEntry, JournalEntry, SourceEntry};
use crate::output::streams;

/// The file with the messages of the engine.
const LOG: &str = "log";

/// The end of an engine.
#[derive(Debug)]
pub(super) struct Ended {
    /// Its exit status. `None`: it was killed.
    pub(super) status: Option<i32>,
    /// Why it has ended, as a code.
    pub(super) reason: String,
    /// For people.
    pub(super) message: String,
}

impl Guest {
    /// A file of the agent about the guest.
    fn file(&self, end: &str) -> io::Result<PathBuf> {
        cluster_guest::file(self.run(), &self.parameters.name, end)
    }

    /// Notes whether the guest is active on this node: other commands do not move it then.
    pub(super) fn note_active(&self, is_active: bool) {
        let noted = cluster_guest::mark(self.run(), &self.parameters.name, is_active);
        if let Err(error) = noted {
            streams::notice(&format!(
                "noting whether Pacemaker has the guest here: {}",
                Report::new(&error)
            ));
        }
    }

    /// Notes whether a QEMU for the guest is being started, to which nobody may connect yet. Those
    /// that a receiver starts it connects to itself, first.
    pub(super) fn note_starting(&self, starting: bool) -> Result<(), String> {
        let note = self.file("starting").and_then(|file| match starting {
            true => fs::write(file, ""),
            false => fs::remove_file(file),
        });
        note.map_err(|error| format!("noting that the guest is started: {error}"))
    }

    /// Whether that was noted.
    pub(super) fn is_starting(&self) -> bool {
        self.file("starting").is_ok_and(|file| file.exists())
    }

    /// Starts this program with these arguments, in a process group of its own. It writes its
    /// messages to that file of the agent.
    pub(super) fn spawn(
        &self,
        log: &str,
        arguments: &[impl AsRef<OsStr>],
        stdin: Stdio,
    ) -> io::Result<Child> {
        let mut options = OpenOptions::new();
        let log = options
            .create(true)
            .append(true)
            .mode(0o600)
            .open(self.file(log)?)?;
        // What the last process says only.
        log.set_len(0)?;
        let mut command = own_executable::command();
        command
            .args(arguments)
            .stdin(stdin)
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()
    }

    /// Starts to move the guest to `node`.
    pub(super) fn start_move(&self, node: &str) -> Result<Child, String> {
        let parameters = &self.parameters;
        let result = self.file("json").map_err(|error| error.to_string())?;
        let _ = fs::remove_file(&result);
        let mut words: Vec<String> = vec!["migrate".into(), parameters.address(node)];
        let mut option = |name: &str, value: &str| {
            words.push(format!("--{name}={value}"));
        };
        match &parameters.machine {
            Machine::Template(_) => option("qmp", &self.socket().display().to_string()),
            Machine::Domain { uri, .. } => {
                option("domain", &parameters.name);
                option("connect", uri);
            }
        }
        option("name", &parameters.name);
        option("mode", &parameters.mode);
        option("tls-ca", &parameters.tls_ca);
        option("tls-cert", &parameters.tls_cert);
        option("tls-key", &parameters.tls_key);
        option("journal", &self.run().display().to_string());
        option("json", &result.display().to_string());
        if let Some(bandwidth) = &parameters.bandwidth {
            option("bandwidth", bandwidth);
        }
        if let Some(downtime) = &parameters.max_downtime {
            option("max-downtime", downtime);
        }
        // Otherwise the destination would not be prepared for the end of pre-copy.
        if parameters.on_timeout == OnTimeout::Postcopy && parameters.mode == "precopy" {
            option("when-stalled", "switch");
        }
        if parameters.copy_disks {
            words.push("--copy-disks".into());
        }
        words.extend(["--quit-source".into(), "--allow-managed".into()]);
        if !parameters.options.trim().is_empty() {
            let more: Words = parameters
                .options
                .parse()
                .map_err(|why| format!("options: {why}"))?;
            words.push(more.program);
            words.extend(more.arguments);
        }
        self.spawn(LOG, &words, Stdio::null())
            .map_err(|error| error.to_string())
    }

    /// What the engine of the last move has written at its end.
    fn result(&self) -> Value {
        let text = self.file("json").and_then(fs::read_to_string);
        let value = text
            .ok()
            .and_then(|text| serde_json::from_str::<Value>(&text).ok());
        value.unwrap_or_default()
    }

    /// The exit status that it stands for.
    pub(super) fn result_status(&self) -> Option<i64> {
        exit_status(&self.result())
    }

    /// What the engine of the last move has said at its end.
    pub(super) fn ended(&self, status: std::process::ExitStatus) -> Ended {
        let value = self.result();
        let value = &value["error"];
        let said = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
        let mut message = said("message");
        if message.is_empty() {
            message = self.last_line();
        }
        Ended {
            status: status.code(),
            reason: said("reason"),
            message,
        }
    }

    /// The last line that an engine has written.
    pub(super) fn last_line(&self) -> String {
        let text = self.file("log").and_then(fs::read);
        let text = text.unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let last = text.lines().rev().find(|line| !line.trim().is_empty());
        last.unwrap_or("it has said nothing").trim().to_owned()
    }

    /// Resumes the migration of a journal which no engine works on. The daemon does that for what
    /// it has received, if one runs.
    pub(super) fn resume<E: JournalEntry>(&self, journal: &Journal) -> io::Result<Option<Child>> {
        if E::SIDE == DestinationEntry::SIDE && self.has_daemon() {
            return Ok(None);
        }
        let path = journal.path.display();
        let words = [E::COMMAND.to_owned(), format!("--resume={path}")];
        self.spawn(LOG, &words, Stdio::null()).map(Some)
    }

    /// Whether a daemon runs with this run folder.
    pub(super) fn has_daemon(&self) -> bool {
        hikkoshi_linux::is_served(&self.run().join("daemon.sock")).unwrap_or(false)
    }

    /// Restores a guest whose move was interrupted before the handover.
    pub(super) fn restore(&self, journal: &Journal) -> io::Result<()> {
        let path = journal.path.display();
        let words = [SourceEntry::COMMAND.to_owned(), format!("--resume={path}")];
        self.spawn(LOG, &words, Stdio::null())?.wait().map(drop)
    }

    /// Gives up a migration to here, and waits for that. `lost`: also if the guest has run here.
    pub(super) fn give_up_received(&self, journal: &Journal, lost: bool) -> io::Result<()> {
        let path = journal.path.display();
        let mut words = vec![
            DestinationEntry::COMMAND.to_owned(),
            format!("--resume={path}"),
            "--give-up".to_owned(),
        ];
        if lost {
            words.push("--other-side-is-lost".to_owned());
        }
        self.spawn(LOG, &words, Stdio::null())?.wait().map(drop)
    }

    /// Ends pre-copy, or cancels the move: `switch` or `cancel`. What it answers, if it refuses.
    pub(super) fn control(&self, command: &str) -> Result<(), String> {
        let mut words = own_executable::command();
        words.arg(command).arg(self.migration_name());
        words.arg("--journal").arg(self.run());
        let output = output(words).map_err(|error| error.to_string())?;
        match output.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        }
    }
}

/// The exit status for which a result (`--json`) stands, if there is one.
pub(super) fn exit_status(result: &Value) -> Option<i64> {
    match &result["error"] {
        Value::Null => result.is_object().then_some(0),
        error => error["exit_status"].as_i64(),
    }
}

/// Runs a command to its end.
pub(super) fn output(mut command: Command) -> io::Result<std::process::Output> {
    command.stdin(Stdio::null()).output()
}
