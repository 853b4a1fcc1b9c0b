//! What all ways to receive a guest do, and in which order: listen, prepare the journal, announce
//! it, receive.

use std::sync::Arc;

use error_reporter::Report;
use hikkoshi_engine::destination::DestinationFailure;
use hikkoshi_engine::{
    Account, CancelFlag, DestinationOptions, Observer, ReceiveControl, ReceiveError,
};
use hikkoshi_handover::{DestinationRecord, Journal};
use hikkoshi_link::{Address, Listener, WaitEnded};
use hikkoshi_linux::notify_ready;
use hikkoshi_qemu::SharedReattachInfo;

use super::journal::DestinationJournal;
use crate::args::{Receive, ReceiveOptions};
use crate::commands::receive_answer::LISTENING;
use crate::commands::signals;
use crate::commands::wait_for_source::wait_for_source;
use crate::journal::JournalFile;
use crate::machines::WaitingMark;
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::Reason;
use crate::output::streams;
use crate::security::{self, Acceptor};
use crate::status::RunPublisher;

/// A destination that listens, and is not announced yet.
pub(super) struct DestinationRun<'a> {
    args: &'a Receive,
    publisher: &'a RunPublisher,
    options: ReceiveOptions,
    plaintext: bool,
    acceptor: Acceptor,
    listener: Listener,
}

/// What is said of a destination that is ready.
pub(super) enum Announcement {
    /// That any source that is accepted can send a guest, and its invitation.
    New,
    /// That the source of a migration can connect again, and where the guest is.
    Resumed(String),
}

/// The address to listen on.
pub(super) fn address(args: &Receive) -> Result<&Address, Exit> {
    // The command line requires it.
    let missing = || Exit::new(ExitStatus::Usage, Reason::Usage, "--listen ADDR is missing");
    args.listen.as_ref().ok_or_else(missing)
}

impl<'a> DestinationRun<'a> {
    /// Listens for the source of a new migration.
    pub(super) fn new(
        args: &'a Receive,
        publisher: &'a RunPublisher,
        acceptor: Acceptor,
    ) -> Result<Self, Exit> {
        let waiting = wait_for_source(args, acceptor.prints_invitation(args));
        let plaintext = args.security.plaintext;
        let options = args.guest.options();
        let run = Self::listen(
            args,
            publisher,
            options,
            plaintext,
            acceptor,
            address(args)?,
        )?;
        Ok(Self {
            listener: run.listener.with_wait_limit(waiting),
            ..run
        })
    }

    /// Listens for the source of a migration that is resumed with these options.
    pub(super) fn listen(
        args: &'a Receive,
        publisher: &'a RunPublisher,
        options: ReceiveOptions,
        plaintext: bool,
        acceptor: Acceptor,
        address: &Address,
    ) -> Result<Self, Exit> {
        let priority = args.guest.engine_options(&options).priority;
        let listener = acceptor.bind(address)?.with_priority(priority);
        Ok(Self {
            args,
            publisher,
            options,
            plaintext,
            acceptor,
            listener,
        })
    }

    /// The journal of a guest that is received into this machine. `mark` is that of a machine that
    /// was started for it.
    pub(super) fn journal(
        &self,
        file: JournalFile,
        qemu: SharedReattachInfo,
        mark: Option<Arc<WaitingMark>>,
    ) -> DestinationJournal {
        DestinationJournal::new(
            file,
            self.listener.address(),
            self.plaintext,
            self.options.clone(),
            self.acceptor.tls().cloned(),
            qemu,
            mark,
        )
    }

    /// Announces that a source can connect, and receives its guest by `engine`.
    pub(super) fn receive(
        &self,
        cancel: CancelFlag,
        journal: Arc<dyn Journal<DestinationRecord>>,
        announcement: Announcement,
        engine: impl FnOnce(
            &Listener,
            &DestinationOptions,
            &ReceiveControl,
        ) -> Result<Account, ReceiveError>,
    ) -> Result<Result<Account, ReceiveError>, Exit> {
        let observer = self.publisher.observer();
        security::warn_of_readable_key(&self.args.security.certificates, &*observer);
        match announcement {
            Announcement::New => {
                self.args.guest.devices.warn(&*observer);
                not_withdrawn()?;
                self.acceptor
                    .announce(self.args, &self.listener, &*observer)?;
            }
            Announcement::Resumed(state) => {
                let address = self.listener.address();
                observer.notice(&format!("{state}; waiting for its source at {address}"));
                if self.args.is_in_session() {
                    streams::to_stdout(&format!("{LISTENING}\n"));
                }
            }
        }
        tell_ready(&*observer);
        let watch = ReceiveControl {
            cancel,
            observer,
            journal,
        };
        let options = self.args.guest.engine_options(&self.options);
        Ok(engine(&self.listener, &options, &watch))
    }
}

/// Ends before an invitation is printed that was withdrawn.
fn not_withdrawn() -> Result<(), Exit> {
    match signals::is_withdrawn() {
        true => {
            let withdrawn = DestinationFailure::NoSource(WaitEnded::Withdrawn);
            let reason = Reason::from(&withdrawn);
            Err(Exit::caused(ExitStatus::AtSource, reason, &withdrawn).with("nothing was changed"))
        }
        false => Ok(()),
    }
}

/// Tells systemd that a source can connect, and that the invitation can be read.
fn tell_ready(observer: &dyn Observer) {
    if let Err(error) = notify_ready() {
        let error = Report::new(&error);
        observer.notice(&format!(
            "telling the service manager that a source can connect: {error}"
        ));
    }
}
