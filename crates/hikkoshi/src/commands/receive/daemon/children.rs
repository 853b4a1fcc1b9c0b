//! The processes that receive a guest each: `hikkoshi receive` behind a unix socket.
//!
//! They do not depend on the daemon once they run: their messages go to the daemon's standard
//! error, they have a process group of their own, and no pipe that they wait for. If one of them
//! dies after the handover, its journal is there, and another process resumes it
//! ([`Children::resume_orphans`]).

use std::collections::HashMap;
use std::io::{self, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_link::Address;
use hikkoshi_link::tls::Invitation;
use hikkoshi_linux::connect_unix;
use hikkoshi_qemu::qmp::Client;

use super::super::template;
use super::receivers::Receivers;
use super::request::{Machine, Request};
use crate::commands::own_executable;
use crate::commands::receive_answer::Answer;
use crate::journal::{self, DestinationEntry, JournalFile};
use crate::output::streams;

/// How long a receiver may take to print its invitation: its QEMU is started before.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The time before a receiver is resumed again; it doubles each time, up to [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// How long a QEMU may take to answer.
const QMP_TIMEOUT: Duration = Duration::from_secs(5);

/// Results that are kept.
const MAX_RESULTS: usize = 256;

/// The most bytes that are read of a result.
const MAX_RESULT: u64 = 1 << 20;

/// All receivers of the daemon.
#[derive(Debug, Clone)]
pub(super) struct Children {
    /// The run folder, with the journals.
    run: PathBuf,
    receivers: Receivers,
    /// The address in invitations.
    advertised: Address,
    max_guests: usize,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// The guests whose receiver is a child of this process.
    running: Vec<String>,
    /// When a receiver may be resumed, and the pause after that.
    pauses: HashMap<String, (Instant, Duration)>,
    /// Names that were made.
    made: u32,
}

impl Children {
    pub(super) fn new(
        run: &Path,
        receivers: Receivers,
        advertised: Address,
        max_guests: usize,
    ) -> Self {
        Self {
            run: run.to_owned(),
            receivers,
            advertised,
            max_guests,
            state: Arc::default(),
        }
    }

    /// Starts a receiver. Returns the guest's name and the invitation; the error says why there is
    /// none.
    pub(super) fn invite(&self, request: &Request) -> Result<(String, String), String> {
        if let Err(error) = self.receivers.remove_old_results(MAX_RESULTS) {
            tracing::warn!(error = %Report::new(&error), "removing old results");
        }
        let name = self.reserve(request.name.as_deref())?;
        let started = self.start(&name, request);
        if let Err(why) = &started {
            streams::notice(&format!("guest {name}: not invited: {why}"));
        }
        started.map(|invitation| (name, invitation))
    }

    /// Takes a name that no receiver has.
    fn reserve(&self, given: Option<&str>) -> Result<String, String> {
        let guests = self.receivers.guests();
        let guests = guests.map_err(|error| format!("looking for receivers: {error}"))?;
        let mut state = self.state();
        let taken = |state: &State, name: &str| {
            state.running.iter().any(|other| other == name)
                || guests.iter().any(|other| other == name)
        };
        let ours = |name: &&String| !state.running.contains(name);
        let all = state.running.len() + guests.iter().filter(ours).count();
        if all >= self.max_guests {
            return Err(format!(
                "{all} guests are received or awaited, as many as --max-guests allows"
            ));
        }
        let name = match given {
            Some(name) if taken(&state, name) => {
                return Err(format!("a guest with the name {name} is received already"));
            }
            Some(name) => name.to_owned(),
            None => loop {
                state.made += 1;
                let name = format!("guest-{}-{}", std::process::id(), state.made);
                if !taken(&state, &name) {
                    break name;
                }
            },
        };
        state.running.push(name.clone());
        Ok(name)
    }

    fn start(&self, name: &str, request: &Request) -> Result<String, String> {
        let mut command = self.command(name);
        let wait = request.wait_seconds.to_string();
        command.args(["--wait-for", &wait]);
        command.arg("--listen").arg(self.listen(name).to_string());
        command.arg("--advertise").arg(self.advertised.to_string());
        match &request.machine {
            Machine::Template(file) => {
                command.arg("--template").arg(file).args(["--name", name]);
            }
            Machine::Connect(uri) => {
                command.arg(format!("--connect={uri}"));
            }
            Machine::Qmp(path) => {
                command.arg("--qmp").arg(path);
            }
        }
        command.args(&request.options);
        let failed = |error: io::Error| {
            self.state().running.retain(|other| other != name);
            format!("starting its receiver: {}", Report::new(&error))
        };
        let mut child = command.spawn().map_err(failed)?;
        let output = child.stdout.take();
        let (sender, answers) = channel();
        let this = self.clone();
        let watched = name.to_owned();
        let spawned = thread::Builder::new()
            .name("dmn-receiver".into())
            .spawn(move || {
                let answer = output.map(|output| this.read_answer(&watched, output));
                if let Some((Some(answer), mut rest)) = answer {
                    let _ = sender.send(answer);
                    // Until its end.
                    let _ = io::copy(&mut rest, &mut io::sink());
                } else {
                    drop(sender);
                }
                this.wait(&watched, child);
            });
        spawned.map_err(failed)?;
        match answers.recv_timeout(START_TIMEOUT) {
            Ok(invitation) => {
                streams::notice(&format!("guest {name}: invited, for {wait} s"));
                Ok(invitation)
            }
            Err(RecvTimeoutError::Timeout) => {
                Err("its receiver has not printed an invitation in time".to_owned())
            }
            Err(RecvTimeoutError::Disconnected) => Err(self.why(name)),
        }
    }

    /// Reads the invitation of a receiver, and makes the route to it.
    fn read_answer(
        &self,
        name: &str,
        output: ChildStdout,
    ) -> (Option<String>, BufReader<ChildStdout>) {
        let mut output = BufReader::new(output);
        let Ok(Some(Answer::Invitation(text))) = Answer::read(&mut output, |_| {}) else {
            return (None, output);
        };
        let route = text
            .parse::<Invitation>()
            .map(|invitation| invitation.route());
        let added = route
            .map_err(io::Error::other)
            .and_then(|route| self.receivers.add_route(route, name));
        if let Err(error) = added {
            let error = Report::new(&error);
            streams::notice(&format!("guest {name}: no source can reach it: {error}"));
        }
        (Some(text), output)
    }

    /// The command for a receiver of the guest.
    fn command(&self, name: &str) -> Command {
        let mut command = own_executable::command();
        command
            .args([
                "receive",
                "--progress=none",
                "--receiver",
                name,
                "--journal",
            ])
            .arg(&self.run)
            .arg("--json")
            .arg(self.receivers.result(name))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .env_remove("LISTEN_FDS")
            .env_remove("LISTEN_PID")
            .env_remove("NOTIFY_SOCKET")
            // A signal from the terminal is for the daemon.
            .process_group(0);
        command
    }

    fn listen(&self, name: &str) -> Address {
        Address::Unix(self.receivers.socket(name))
    }

    /// Why a receiver has ended without an invitation, from its result.
    fn why(&self, name: &str) -> String {
        let path = self.receivers.result(name);
        let result = std::fs::File::open(&path).and_then(|file| {
            let bounded = io::Read::take(file, MAX_RESULT);
            serde_json::from_reader::<_, serde_json::Value>(bounded).map_err(io::Error::other)
        });
        let error = result
            .map(|result| result["error"].clone())
            .unwrap_or_default();
        match (error["message"].as_str(), error["next"].as_str()) {
            (Some(message), Some(next)) => format!("{message}; {next}"),
            (Some(message), None) => message.to_owned(),
            _ => "its receiver has ended; its messages are in the daemon's log".to_owned(),
        }
    }

    /// Waits for the end of a receiver.
    fn wait(&self, name: &str, mut child: Child) {
        let ended = child.wait();
        streams::notice(&match &ended {
            Ok(status) => match status.code() {
                Some(0) => format!("guest {name}: received"),
                Some(1 | 2) => format!("guest {name}: not received"),
                Some(3) => format!("guest {name}: its migration is not finished"),
                Some(4) => format!("guest {name}: lost"),
                _ => format!("guest {name}: its receiver was killed ({status})"),
            },
            Err(error) => format!("guest {name}: waiting for its receiver: {error}"),
        });
        let resumable = self.journal_of(name).is_some();
        if !resumable {
            self.receivers.remove(name);
            // A receiver that ends by itself has ended the QEMU that it has started.
            if ended.as_ref().is_ok_and(|status| status.code().is_none()) {
                self.end_unused_machine(name);
            }
        }
        let mut state = self.state();
        state.running.retain(|other| other != name);
        let resumes =
            resumable && ended.is_ok_and(|status| matches!(status.code(), None | Some(3)));
        if !resumes {
            // An operator decides.
            state.pauses.remove(name);
            if resumable {
                state.pauses.insert(name.to_owned(), (never(), MAX_PAUSE));
            }
        }
    }

    /// Ends the QEMU that a killed receiver has started from a template, if it still waits for a
    /// guest.
    fn end_unused_machine(&self, name: &str) {
        let qmp = template::socket(&self.run, name);
        if !qmp.exists() {
            return;
        }
        match end_if_unused(&qmp) {
            Ok(true) => {
                streams::notice(&format!("guest {name}: its QEMU, which has no guest, ends"))
            }
            Ok(false) => {}
            Err(why) => streams::notice(&format!(
                "guest {name}: looking whether its QEMU ({}) has a guest: {why}",
                qmp.display()
            )),
        }
    }

    /// The journal of a guest, if it has one.
    fn journal_of(&self, name: &str) -> Option<PathBuf> {
        let found = self.journals();
        found
            .into_iter()
            .find_map(|(guest, path)| (guest == name).then_some(path))
    }

    /// The guests of this folder that have a journal.
    fn journals(&self) -> Vec<(String, PathBuf)> {
        let found = journal::find::<DestinationEntry>(&self.run, None);
        let found = found.inspect_err(|error| {
            tracing::warn!(error = %Report::new(error), "looking for migrations to resume");
        });
        let entries = found.unwrap_or_default().into_iter();
        entries
            .filter_map(|(path, entry)| match &entry.address {
                Address::Unix(socket) => Some((self.receivers.guest_at(socket)?, path)),
                Address::Tcp(_) => None,
            })
            .collect()
    }

    /// Resumes migrations whose receiver has ended, of this daemon or of one before.
    pub(super) fn resume_orphans(&self) {
        for (name, journal) in self.journals() {
            if self.state().running.contains(&name) || !self.may_resume(&name) {
                continue;
            }
            // Another process works with it otherwise: a receiver of an earlier daemon.
            match JournalFile::try_lock(&journal) {
                Ok(Some(file)) => drop(file),
                Ok(None) => continue,
                Err(error) => {
                    tracing::warn!(error = %Report::new(&error), "looking for a migration to resume");
                    continue;
                }
            }
            let mut resume = std::ffi::OsString::from("--resume=");
            resume.push(&journal);
            let spawned = self
                .command(&name)
                .arg(resume)
                .stdout(Stdio::null())
                .spawn();
            match spawned {
                Ok(child) => {
                    streams::notice(&format!("guest {name}: resuming its migration"));
                    self.state().running.push(name.clone());
                    let this = self.clone();
                    let spawned = thread::Builder::new()
                        .name("dmn-receiver".into())
                        .spawn(move || this.wait(&name, child));
                    if let Err(error) = spawned {
                        tracing::warn!(error = %Report::new(&error), "watching a receiver");
                    }
                }
                Err(error) => {
                    let error = Report::new(&error);
                    streams::notice(&format!("guest {name}: resuming its migration: {error}"));
                }
            }
        }
    }

    /// Whether the pause since the last attempt is over.
    fn may_resume(&self, name: &str) -> bool {
        let now = Instant::now();
        let mut state = self.state();
        let pause = match state.pauses.get(name) {
            Some((at, _)) if now < *at => return false,
            Some((_, pause)) => *pause,
            None => FIRST_PAUSE,
        };
        let next = (now + pause, (2 * pause).min(MAX_PAUSE));
        state.pauses.insert(name.to_owned(), next);
        true
    }

    /// Removes the routes to receivers that have ended, also to those of an earlier daemon.
    pub(super) fn remove_stale_routes(&self) -> io::Result<()> {
        let journals = self.journals();
        let running = self.state().running.clone();
        self.receivers.remove_stale_routes(|name| {
            running.iter().any(|other| other == name)
                || journals.iter().any(|(other, _)| other == name)
        })
    }

    /// Removes what killed receivers have left, if there is nothing to resume.
    pub(super) fn remove_stale(&self) -> io::Result<()> {
        let journals = self.journals();
        for name in self.receivers.guests()? {
            let socket = self.receivers.socket(&name);
            let refused = connect_unix(&socket)
                .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
            if refused && journals.iter().all(|(other, _)| *other != name) {
                self.receivers.remove(&name);
                self.end_unused_machine(&name);
            }
        }
        self.remove_stale_routes()
    }

    /// Whether a guest of this name is received or awaited.
    pub(super) fn is_receiving(&self, name: &str) -> bool {
        let is_running = self.state().running.iter().any(|other| other == name);
        is_running || self.receivers.socket(name).exists()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the QEMU with this socket if it waits for a guest. One that has a guest is in another state
/// ('inmigrate' is the state of a QEMU that was started with -incoming, qapi/run-state.json).
fn end_if_unused(qmp: &Path) -> Result<bool, String> {
    let text = |error: &dyn std::error::Error| Report::new(error).to_string();
    let mut client = Client::connect(qmp, QMP_TIMEOUT).map_err(|error| text(&error))?;
    let none = serde_json::json!({});
    let status = client.execute("query-status", none.clone());
    if status.map_err(|error| text(&error))?["status"] != "inmigrate" {
        return Ok(false);
    }
    // It may end before its answer has arrived.
    let _ = client.execute("quit", none);
    Ok(true)
}

/// A time that does not come.
fn never() -> Instant {
    Instant::now() + Duration::from_secs(100 * 365 * 24 * 3600)
}
