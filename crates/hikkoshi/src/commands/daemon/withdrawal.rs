//! Withdraws invitations.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_linux::Process;
use hikkoshi_status::{StatusEntryKind, StatusFolder};
use rustix::process::Signal;

use super::receiver_processes::ReceiverProcesses;
use crate::commands::guest_state;
use crate::machines::ListeningProcess;
use crate::output::streams;

/// How long a receiver may take to end: it ends its QEMU before.
const END_TIMEOUT: Duration = Duration::from_secs(20);

/// How often to look whether it has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The process that receives a guest.
struct Receiver {
    process: Arc<Process>,
    /// It has printed its invitation, as far as is known.
    has_printed: bool,
}

impl ReceiverProcesses {
    /// Withdraws the invitation of a guest that is awaited, and waits until its receiver has ended.
    /// A guest whose source has connected is not affected.
    pub(super) fn withdraw(&self, name: &str) -> Result<(), String> {
        let journals = self
            .journals()
            .map_err(|error| format!("looking for its journal: {}", Report::new(&error)))?;
        if let Some(journal) = journals.journal_of(name) {
            return Err(format!(
                "{name} is not only invited: {}. If its source never comes back: 'Giving up a \
                 guest' in receiving-many.md",
                guest_state::at(journal.stage)
            ));
        }
        let Receiver {
            process,
            has_printed,
        } = self
            .receiver(name)?
            .ok_or_else(|| format!("no guest with the name {name} is awaited"))?;
        let has_source = || {
            let why = format!(
                "the source of the guest {name} has connected: 'hikkoshi cancel' there keeps the \
                 guest there"
            );
            self.receives(process.pid()).then_some(why)
        };
        if let Some(why) = has_source() {
            return Err(why);
        }
        process
            .signal(Signal::USR1)
            .map_err(|error| format!("ending its receiver: {}", Report::new(&error)))?;
        let begun = Instant::now();
        while process.is_alive() || self.state().running.contains_key(name) {
            if begun.elapsed() > END_TIMEOUT {
                return Err(has_source().unwrap_or_else(|| {
                    let seconds = END_TIMEOUT.as_secs();
                    let next = match has_printed {
                        true => "if its source has connected, use 'hikkoshi cancel' there",
                        false => "it is being started, and ends later",
                    };
                    format!(
                        "the receiver of the guest {name} has not ended within {seconds} s: {next}"
                    )
                }));
            }
            thread::sleep(POLL_INTERVAL);
        }
        streams::notice(&format!("guest {name}: its invitation was withdrawn"));
        Ok(())
    }

    /// Whether a guest is on its way to this process: its status is served.
    fn receives(&self, pid: u32) -> bool {
        let begin = format!("destination-{pid}-");
        let entries = StatusFolder::in_run_folder(&self.run).entries();
        entries.is_ok_and(|entries| {
            let mut sockets = entries
                .iter()
                .filter(|entry| entry.kind == StatusEntryKind::Socket);
            sockets.any(|entry| entry.name.starts_with(&begin))
        })
    }

    /// The process that receives this guest: a child, or one of an earlier daemon.
    fn receiver(&self, name: &str) -> Result<Option<Receiver>, String> {
        let text = |error: io::Error| format!("finding its receiver: {}", Report::new(&error));
        let child = self.state().running.get(name).cloned();
        // Without a process it is being started, or it was started and could not be opened.
        let is_starting = child.is_some();
        if let Some(child) = child
            && let Some(process) = child.process
        {
            return Ok(Some(Receiver {
                process,
                has_printed: child.has_printed,
            }));
        }
        match ListeningProcess::at(&self.receivers.socket(name)).map_err(text)? {
            ListeningProcess::None if is_starting => {
                Err(format!("the receiver of the guest {name} is being started"))
            }
            ListeningProcess::None => Ok(None),
            ListeningProcess::Process(process) => Ok(Some(Receiver {
                process: Arc::new(process),
                has_printed: true,
            })),
            ListeningProcess::Changed => Err(format!(
                "the receiver of the guest {name} has ended, or another one has just been started: \
                 try again"
            )),
            ListeningProcess::Unknown => {
                Err(format!("the receiver of the guest {name} does not answer"))
            }
        }
    }
}
