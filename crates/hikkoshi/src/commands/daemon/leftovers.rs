//! What receivers have left that were killed, of this daemon or of one before.

use std::fs;
use std::io;
use std::thread;

use error_reporter::Report;
use hikkoshi_linux::is_served;

use super::guest_journals::Journals;
use super::receiver_processes::ReceiverProcesses;
use crate::machines;
use crate::machines::{LeftQemu, WaitingMark};
use crate::output::streams;

impl ReceiverProcesses {
    /// Looks for migrations that no process receives, and for what receivers have left.
    pub(super) fn look_after(&self) {
        match self.journals() {
            Ok(journals) => {
                self.resume_orphans(&journals);
                if let Err(error) = self.remove_stale(&journals) {
                    let error = Report::new(&error);
                    tracing::warn!(%error, "removing what killed receivers have left");
                }
            }
            Err(error) => {
                tracing::warn!(error = %Report::new(&error), "looking for migrations to resume");
            }
        }
        self.end_abandoned_machines();
        if let Err(error) = machines::limit_logs(&self.run) {
            tracing::warn!(error = %Report::new(&error), "limiting the logs of machines");
        }
    }

    /// Ends the machines that have not got their guests and whose receivers have ended: of this
    /// daemon or of one before. Does not wait for that: a QEMU that hangs in the kernel ends late.
    fn end_abandoned_machines(&self) {
        let abandoned = WaitingMark::abandoned(&self.run).unwrap_or_else(|error| {
            tracing::warn!(error = %Report::new(&error), "looking for machines without receivers");
            Vec::new()
        });
        for (name, mark) in abandoned {
            // One that has just been started may not have locked its mark yet.
            if self.state().running.contains_key(&name) {
                continue;
            }
            let this = self.clone();
            // There is one thread for each machine: it holds the lock of the mark.
            let spawned = thread::Builder::new()
                .name("dmn-end-machine".into())
                .spawn(move || this.end_machine(&name, &mark));
            if let Err(error) = spawned {
                // A later look ends it.
                tracing::warn!(error = %Report::new(&error), "ending a machine");
            }
        }
    }

    /// Ends the machine of a receiver that has ended, if its guest was not handed over to it.
    pub(super) fn end_abandoned_machine(&self, name: &str) {
        let abandoned = WaitingMark::abandoned(&self.run).unwrap_or_default();
        for (_, mark) in abandoned.iter().filter(|(other, _)| other == name) {
            self.end_machine(name, mark);
        }
    }

    fn end_machine(&self, name: &str, mark: &WaitingMark) {
        match mark.end_machine() {
            Ok(LeftQemu::Ended) => streams::notice(&format!(
                "guest {name}: its QEMU, which has not got the guest, was ended"
            )),
            Ok(LeftQemu::Nothing | LeftQemu::MayStart) => {}
            Err(why) => {
                if self.state().not_ended.insert(name.to_owned()) {
                    streams::notice(&format!(
                        "guest {name}: its QEMU ({}), which has not got the guest, could not be \
                         ended: {why}. End it by hand",
                        machines::socket(&self.run, name).display()
                    ));
                }
            }
        }
    }

    /// Removes the sockets of receivers that have ended, also of an earlier daemon's, and the
    /// routes to them, if there is nothing to resume.
    pub(super) fn remove_stale(&self, journals: &Journals) -> io::Result<()> {
        for name in self.receivers.guests()? {
            let running = self.state().running.contains_key(&name);
            if !running
                && journals.journal_of(&name).is_none()
                && !self.may_have_journal(journals, &name)
                && !is_served(&self.receivers.socket(&name))?
            {
                self.receivers.remove(&name);
            }
        }
        let running: Vec<_> = self.state().running.keys().cloned().collect();
        self.receivers.remove_stale_routes(|route, name| {
            running.iter().any(|other| other == name)
                || journals.journal_of(name).is_some()
                || journals.may_have_one(route)
        })
    }

    /// Whether a journal that cannot be read may be that of this guest.
    pub(super) fn may_have_journal(&self, journals: &Journals, name: &str) -> bool {
        let socket = self.receivers.socket(name);
        // A receiver that has ended by itself has removed its socket.
        let is_there = fs::symlink_metadata(&socket).is_ok();
        let routes = self.receivers.routes_of(name).unwrap_or_default();
        let files = is_there.then_some(socket).into_iter().chain(routes);
        files.into_iter().any(|file| journals.may_have_one(&file))
    }
}
