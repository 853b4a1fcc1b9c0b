//! The processes that receive a guest each: `hikkoshi receiver` behind a unix socket.
//!
//! They do not depend on the daemon once they run: their messages go to the daemon's standard
//! error, they have a process group of their own, and no pipe that they wait for. If one of them
//! dies after the handover, its journal is there, and another process resumes it
//! (`resumption.rs`).

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::{self, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use error_reporter::Report;
use hikkoshi_link::Address;
use hikkoshi_link::tls::Invitation;
use hikkoshi_linux::Process;
use rustix::process::Signal;

use super::guest_journals::{GuestJournal, Journals};
use super::open_files::OpenFiles;
use super::receivers::Receivers;
use super::request::{Refusal, RefusalKind, Request};
use super::resumption_pauses::ResumptionPauses;
use crate::commands::guest_state;
use crate::commands::own_executable;
use crate::commands::receive_answer::Answer;
use crate::commands::resume_command::resume_command;
use crate::journal::DestinationEntry;
use crate::output::streams;

/// How long a receiver may take to print its invitation: its QEMU is started before.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Results that are kept.
const MAX_RESULTS: usize = 256;

/// The most bytes that are read of a result.
const MAX_RESULT: u64 = 1 << 20;

/// All receivers of the daemon.
#[derive(Debug, Clone)]
pub(super) struct ReceiverProcesses {
    /// The run folder, with the journals.
    pub(super) run: PathBuf,
    pub(super) receivers: Receivers,
    /// The address in invitations.
    advertised: Address,
    max_guests: usize,
    open_files: OpenFiles,
    /// The program of a receiver.
    pub(super) program: PathBuf,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// The guests whose receiver is a child of this process.
    pub(super) running: HashMap<String, Running>,
    /// When the migration of a journal is resumed again.
    pub(super) pauses: ResumptionPauses,
    /// Names that were made.
    made: u32,
    /// The guests whose machines could not be ended, which was reported.
    pub(super) not_ended: HashSet<String>,
    /// The journals that cannot be read, which was reported.
    pub(super) unreadable: HashSet<PathBuf>,
}

/// A receiver that is a child of this process.
#[derive(Debug, Clone, Default)]
pub(super) struct Running {
    /// `None`: it is being started, or could not be opened.
    pub(super) process: Option<Arc<Process>>,
    /// It has printed its invitation.
    pub(super) has_printed: bool,
}

impl ReceiverProcesses {
    pub(super) fn new(
        run: &Path,
        receivers: Receivers,
        advertised: Address,
        max_guests: usize,
        open_files: OpenFiles,
    ) -> Self {
        Self {
            run: run.to_owned(),
            receivers,
            advertised,
            max_guests,
            open_files,
            program: own_executable::SELF.into(),
            state: Arc::default(),
        }
    }

    /// Starts a receiver. Returns the guest's name and the invitation; the error says why there is
    /// none.
    ///
    /// `source` is the connection of a source that has asked for it: the receiver ends when the
    /// source closes that before it sends its guest. It does not depend on the daemon.
    pub(super) fn invite(
        &self,
        request: &Request,
        source: Option<OwnedFd>,
    ) -> Result<(String, String), Refusal> {
        if let Err(error) = self.receivers.remove_old_results(MAX_RESULTS) {
            tracing::warn!(error = %Report::new(&error), "removing old results");
        }
        let refused = |name: &str, refusal: &Refusal| {
            streams::notice(&format!("guest {name}: not invited: {}", refusal.why));
        };
        let given = request.name.as_deref();
        let name = self
            .reserve(given)
            .inspect_err(|refusal| refused(given.unwrap_or("without a name"), refusal))?;
        let started = self.start(&name, request, source).map_err(Refusal::from);
        let invitation = started.inspect_err(|refusal| refused(&name, refusal))?;
        Ok((name, invitation))
    }

    /// How many guests may be received or awaited at a time.
    pub(super) fn max_guests(&self) -> usize {
        self.max_guests
    }

    /// The guests that are received or awaited, or whose migration is not finished.
    pub(super) fn guests(&self) -> Result<BTreeSet<String>, Refusal> {
        let mut guests = self.stored_guests(&self.journals().map_err(looking)?)?;
        guests.extend(self.state().running.keys().cloned());
        Ok(guests)
    }

    /// Those of the run folder: the process of a receiver may be of an earlier daemon.
    fn stored_guests(&self, journals: &Journals) -> Result<BTreeSet<String>, Refusal> {
        let guests = self.receivers.guests().map_err(looking)?;
        let mut guests: BTreeSet<String> = guests.into_iter().collect();
        let routes = self.receivers.routes().map_err(looking)?.into_iter();
        // A journal that cannot be read is of one of these guests, or of none.
        let kept = routes.filter(|(route, _)| journals.may_have_one(route));
        guests.extend(kept.map(|(_, guest)| guest));
        guests.extend(journals.guests().map(str::to_owned));
        Ok(guests)
    }

    /// Takes a name that no receiver has, and no unfinished migration.
    fn reserve(&self, given: Option<&str>) -> Result<String, Refusal> {
        let journals = self.journals().map_err(looking)?;
        let guests = self.stored_guests(&journals)?;
        let mut state = self.state();
        let taken =
            |state: &State, name: &str| state.running.contains_key(name) || guests.contains(name);
        let ours = |name: &&String| !state.running.contains_key(*name);
        let all = state.running.len() + guests.iter().filter(ours).count();
        if all >= self.max_guests {
            let why =
                format!("{all} guests are received or awaited, as many as --max-guests allows");
            return Err(Refusal::new(RefusalKind::Full, why));
        }
        let name = match given {
            Some(name) if taken(&state, name) => {
                let why = match journals.journal_of(name) {
                    Some(journal) if !state.running.contains_key(name) => {
                        unfinished(name, journal, state.pauses.is_stopped(&journal.path))
                    }
                    _ => format!("a guest with the name {name} is invited or received already"),
                };
                return Err(Refusal::new(RefusalKind::NameTaken, why));
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
        state.running.insert(name.clone(), Running::default());
        Ok(name)
    }

    fn start(
        &self,
        name: &str,
        request: &Request,
        source: Option<OwnedFd>,
    ) -> Result<String, String> {
        let mut command = self.command(name);
        command.stdin(source.map_or_else(Stdio::null, Stdio::from));
        let listen = Address::Unix(self.receivers.socket(name));
        command.args(request.receiver_arguments(&listen, &self.advertised));
        // If it is killed, it leaves none, and this is another guest's.
        self.receivers.remove_result(name);
        let failed = |error: io::Error| {
            self.state().running.remove(name);
            format!("starting its receiver: {}", Report::new(&error))
        };
        let mut child = command.spawn().map_err(failed)?;
        let process = self.note(name, &child);
        let output = child.stdout.take();
        let (sender, answers) = channel();
        let this = self.clone();
        let watched = name.to_owned();
        let spawned = thread::Builder::new()
            .name("dmn-receiver".into())
            .spawn(move || {
                // Its result is in a file, too. A pipe for each guest would be too many.
                let answer = output.and_then(|output| this.read_answer(&watched, output));
                if let Some(answer) = answer {
                    this.has_printed(&watched);
                    let _ = sender.send(answer);
                } else {
                    drop(sender);
                }
                this.wait(&watched, child);
            });
        spawned.map_err(|error| {
            if let Some(process) = &process {
                let _ = process.kill();
            }
            failed(error)
        })?;
        match answers.recv_timeout(START_TIMEOUT) {
            Ok(invitation) => {
                let wait = request.wait_seconds;
                streams::notice(&format!("guest {name}: invited, for {wait} s"));
                Ok(invitation)
            }
            Err(RecvTimeoutError::Timeout) => {
                // Otherwise it would wait for a source that has no invitation.
                if let Some(process) = &process {
                    let _ = process.signal(Signal::USR1);
                }
                Err("its receiver has not printed an invitation in time".to_owned())
            }
            Err(RecvTimeoutError::Disconnected) => Err(self.why(name)),
        }
    }

    /// Notes the process of a receiver that has just been started.
    pub(super) fn note(&self, name: &str, child: &Child) -> Option<Arc<Process>> {
        // No thread waits for the child yet, so the number is its own.
        let process = Process::open(child.id()).inspect_err(|error| {
            tracing::warn!(%error, "an invitation of this receiver cannot be withdrawn");
        });
        let process = process.ok().map(Arc::new);
        let running = Running {
            process: process.clone(),
            has_printed: false,
        };
        self.state().running.insert(name.to_owned(), running);
        process
    }

    fn has_printed(&self, name: &str) {
        if let Some(running) = self.state().running.get_mut(name) {
            running.has_printed = true;
        }
    }

    /// Reads the invitation of a receiver, and makes the route to it.
    fn read_answer(&self, name: &str, output: ChildStdout) -> Option<String> {
        let mut output = BufReader::new(output);
        let Ok(Some(Answer::Invitation(text))) = Answer::read(&mut output, |_| {}) else {
            return None;
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
        Some(text)
    }

    /// The command for a receiver of the guest.
    pub(super) fn command(&self, name: &str) -> Command {
        let mut command = own_executable::command_of(&self.program);
        command
            .args(["receiver", name, "--journal"])
            .arg(&self.run)
            .arg("--json")
            .arg(self.receivers.result(name))
            .args(self.open_files.argument())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .env_remove("LISTEN_FDS")
            .env_remove("LISTEN_PID")
            .env_remove("NOTIFY_SOCKET")
            // A signal from the terminal is for the daemon.
            .process_group(0);
        command
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
    pub(super) fn wait(&self, name: &str, mut child: Child) {
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
        self.clean_up(name, ended.ok());
        self.state().running.remove(name);
    }

    /// Whether a guest of this name is received or awaited.
    pub(super) fn is_receiving(&self, name: &str) -> bool {
        let is_running = self.state().running.contains_key(name);
        is_running || self.receivers.socket(name).exists()
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn looking(error: io::Error) -> Refusal {
    format!("looking for receivers: {}", Report::new(&error)).into()
}

/// Why the name of a guest whose migration is not finished is taken, and what to do.
fn unfinished(name: &str, journal: &GuestJournal, stopped: bool) -> String {
    let by_hand = resume_command::<DestinationEntry>(&journal.path);
    let resumed = match stopped {
        true => {
            format!("the daemon does not resume it again: its log says why, and so does: {by_hand}")
        }
        false => format!("the daemon resumes it, and so does: {by_hand}"),
    };
    format!(
        "the migration of a guest with the name {name} is not finished: {}. {resumed}. Its journal \
         {} keeps the name until the migration is finished, or given up: 'Giving up a guest' in \
         receiving-many.md",
        guest_state::at(journal.stage),
        journal.path.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use hikkoshi_handover::DestinationStage;
    use hikkoshi_link::tls::TlsServer;
    use std::fs::{self, File};
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;
    use std::time::SystemTime;

    /// One journal cannot be read. A guest that is newer than its last change, or that has ended
    /// for good, keeps neither its name nor its place.
    #[test]
    fn a_journal_that_cannot_be_read_keeps_only_what_may_be_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path();
        let minute = Duration::from_secs(60);
        let stranger = run.join("destination-1-1.json");
        fs::write(&stranger, "{}").unwrap();
        let written_at = |time: SystemTime| {
            let file = File::options().write(true).open(&stranger).unwrap();
            file.set_modified(time).unwrap();
        };
        let receivers = Receivers::open(run).unwrap();
        let advertised = Address::Unix(run.join("front"));
        let files = OpenFiles::unchanged();
        let children = ReceiverProcesses::new(run, receivers.clone(), advertised, 2, files);
        let invite = |name: &str| {
            children
                .reserve(Some(name))
                .map_err(|refusal| refusal.why)?;
            let server = TlsServer::inviting().unwrap();
            let invitation = server.invitation("h:1".parse().unwrap()).unwrap();
            receivers.add_route(invitation.route(), name).unwrap();
            Ok::<_, String>(())
        };
        let end = |name: &str, code: Option<i32>| {
            // wait(2): an exit status, or SIGKILL.
            let status = ExitStatus::from_raw(code.map_or(9, |code| code << 8));
            children.clean_up(name, Some(status));
            children.state().running.remove(name);
        };
        let stale = || {
            let journals = children.journals().unwrap();
            children.remove_stale(&journals).unwrap();
        };
        written_at(SystemTime::now() - minute);
        for _ in 0..2 {
            for (name, code) in [("received", 0), ("expired", 1)] {
                invite(name).unwrap();
                end(name, Some(code));
            }
        }
        // Left by an earlier daemon.
        invite("earlier").unwrap();
        children.state().running.remove("earlier");
        stale();
        assert!(receivers.routes().unwrap().is_empty());

        // It may be the journal of a guest that is older, and was killed.
        for name in ["killed", "refused"] {
            invite(name).unwrap();
        }
        written_at(SystemTime::now() + minute);
        end("killed", None);
        end("refused", Some(1));
        stale();
        let taken = children.reserve(Some("killed")).unwrap_err();
        assert_eq!(taken.kind, RefusalKind::NameTaken);
        invite("refused").unwrap();
        let full = children.reserve(Some("other")).unwrap_err();
        assert_eq!(full.kind, RefusalKind::Full);
        assert!(
            full.why.contains("2 guests are received or awaited"),
            "{full:?}"
        );
        // The journal was finished by its own program.
        fs::remove_file(&stranger).unwrap();
        stale();
        children.reserve(Some("killed")).unwrap();
    }

    #[test]
    fn a_journal_that_is_left_to_an_operator_is_not_said_to_be_resumed() {
        let path = Path::new("/run/destination-1-1.json");
        let journal = |stage| GuestJournal::without_route("web", path, stage);
        let resumed = unfinished("web", &journal(DestinationStage::Running), false);
        assert!(resumed.contains("the daemon resumes it"), "{resumed}");
        assert!(
            resumed.contains("the guest runs here, and pages"),
            "{resumed}"
        );
        let stopped = unfinished("web", &journal(DestinationStage::Ready), true);
        assert!(!stopped.contains("the daemon resumes it"), "{stopped}");
        assert!(stopped.contains("its source may have kept it"), "{stopped}");
        assert!(
            stopped.contains("Its journal /run/destination-1-1.json"),
            "{stopped}"
        );
    }
}
