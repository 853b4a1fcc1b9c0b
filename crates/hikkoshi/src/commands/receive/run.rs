//! What all ways to receive a guest do in the same way, from an address to the report.
//!
//! ```text
//! ListeningDestination ── ready ─▶ ReadyDestination ── announce ─▶ AnnouncedDestination
//!     ── receive: the engine ─▶ EndedReception ── report
//! ```
//!
//! Each step takes the one before. So a journal is created, and `--journal-link` made, only at an
//! address that is this destination's: another engine that has it may be the one that resumes an
//! earlier migration. And no source is told to connect before there is a journal.

use std::io;
use std::path::{Path, PathBuf};
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

use super::journal::{DestinationJournal, ListeningTerms};
use super::outcome::{self, DestinationLeft};
use crate::args::{Receive, ReceiveOptions};
use crate::commands::journal_link;
use crate::commands::receive_answer::LISTENING;
use crate::commands::signals;
use crate::commands::wait_for_source::wait_for_source;
use crate::journal::{DestinationEntry, JournalFile, absolute_address};
use crate::machines::WaitingMark;
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::Reason;
use crate::output::streams;
use crate::security::{self, Acceptor};
use crate::status::RunPublisher;

/// A destination that listens, and is not announced yet.
pub(super) struct ListeningDestination<'a> {
    args: &'a Receive,
    publisher: &'a RunPublisher,
    options: ReceiveOptions,
    plaintext: bool,
    acceptor: Acceptor,
    listener: Listener,
}

/// Creates the journals of guests that a destination receives. Only one that listens has it.
pub(super) struct GuestJournals {
    terms: ListeningTerms,
    /// `--journal-link`.
    link: Option<PathBuf>,
}

/// A destination that listens, and has a guest to receive, or what creates one, and a journal.
///
/// The fields are dropped in this order, here and in the steps that follow: what was changed in the
/// guest's QEMU is restored under the journal's lock, and that is free when the address is.
pub(super) struct ReadyDestination<'a, G, J> {
    guest: G,
    journal: Arc<J>,
    listening: ListeningDestination<'a>,
}

/// A destination that sources may connect to.
pub(super) struct AnnouncedDestination<'a, G, J>(ReadyDestination<'a, G, J>);

/// A destination whose engine has ended.
pub(super) struct EndedReception<'a, G, J> {
    /// What the engine reports.
    pub(super) result: Result<Account, ReceiveError>,
    run: ReadyDestination<'a, G, J>,
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

impl<'a> ListeningDestination<'a> {
    /// Listens for the source of a new migration.
    pub(super) fn for_new(
        args: &'a Receive,
        publisher: &'a RunPublisher,
        acceptor: Acceptor,
    ) -> Result<Self, Exit> {
        let waiting = wait_for_source(args, acceptor.prints_invitation(args));
        let options = args.guest.options();
        let listener = listen(args, &options, &acceptor, address(args)?)?;
        Ok(Self {
            args,
            publisher,
            options,
            plaintext: args.security.plaintext,
            acceptor,
            listener: listener.with_wait_limit(waiting),
        })
    }

    /// Listens at `address` for the source of a migration that is resumed with these options.
    pub(super) fn for_resumed(
        args: &'a Receive,
        publisher: &'a RunPublisher,
        options: ReceiveOptions,
        (acceptor, plaintext): (Acceptor, bool),
        address: &Address,
    ) -> Result<Self, Exit> {
        let listener = listen(args, &options, &acceptor, address)?;
        Ok(Self {
            args,
            publisher,
            options,
            plaintext,
            acceptor,
            listener,
        })
    }

    /// What creates the journals of its guests.
    pub(super) fn journals(&self) -> GuestJournals {
        GuestJournals {
            terms: ListeningTerms {
                address: absolute_address(self.listener.address()),
                plaintext: self.plaintext,
                options: self.options.clone(),
                tls: self.acceptor.tls().cloned(),
            },
            link: self.args.recovery.journal_link.clone(),
        }
    }

    /// The engine will receive this guest and keep this journal.
    pub(super) fn ready<G, J>(self, guest: G, journal: Arc<J>) -> ReadyDestination<'a, G, J> {
        ReadyDestination {
            guest,
            journal,
            listening: self,
        }
    }
}

fn listen(
    args: &Receive,
    options: &ReceiveOptions,
    acceptor: &Acceptor,
    address: &Address,
) -> Result<Listener, Exit> {
    let priority = args.guest.engine_options(options).priority;
    Ok(acceptor.bind(address)?.with_priority(priority))
}

impl GuestJournals {
    /// The journal of a guest that is received into this machine. `mark` is that of a machine that
    /// was started for it.
    pub(super) fn create(
        &self,
        file: JournalFile,
        qemu: SharedReattachInfo,
        mark: Option<Arc<WaitingMark>>,
    ) -> DestinationJournal {
        DestinationJournal::new(file, self.terms.clone(), qemu, mark)
    }

    /// Makes `--journal-link` to the journal of a guest that is new here.
    ///
    /// # Errors
    /// When the link cannot be made.
    pub(super) fn link(&self, file: &JournalFile) -> io::Result<()> {
        match &self.link {
            Some(link) => journal_link::make::<DestinationEntry>(link, file),
            None => Ok(()),
        }
    }
}

impl<'a, G, J: Journal<DestinationRecord> + 'static> ReadyDestination<'a, G, J> {
    /// The journal that the engine will keep.
    pub(super) fn journal(&self) -> &J {
        &self.journal
    }

    /// Announces that a source can connect.
    pub(super) fn announce(
        self,
        announcement: Announcement,
    ) -> Result<AnnouncedDestination<'a, G, J>, Exit> {
        let ListeningDestination {
            args,
            publisher,
            acceptor,
            listener,
            ..
        } = &self.listening;
        let observer = publisher.observer();
        security::warn_of_readable_key(&args.security.certificates, &*observer);
        match announcement {
            Announcement::New => {
                args.guest.devices.warn(&*observer);
                not_withdrawn()?;
                acceptor.announce(args, listener, &*observer)?;
            }
            Announcement::Resumed(state) => {
                let address = listener.address();
                observer.notice(&format!("{state}; waiting for its source at {address}"));
                if args.is_in_session() {
                    streams::to_stdout(&format!("{LISTENING}\n"));
                }
            }
        }
        tell_ready(&*observer);
        Ok(AnnouncedDestination(self))
    }
}

impl<'a, G, J: Journal<DestinationRecord> + 'static> AnnouncedDestination<'a, G, J> {
    /// Receives the guest by `engine`.
    pub(super) fn receive(
        self,
        cancel: CancelFlag,
        engine: impl FnOnce(
            &mut G,
            &Listener,
            &DestinationOptions,
            &ReceiveControl,
        ) -> Result<Account, ReceiveError>,
    ) -> EndedReception<'a, G, J> {
        let Self(mut run) = self;
        let control = ReceiveControl {
            cancel,
            observer: run.listening.publisher.observer(),
            journal: Arc::<J>::clone(&run.journal),
        };
        let listening = &run.listening;
        let options = listening.args.guest.engine_options(&listening.options);
        EndedReception {
            result: engine(&mut run.guest, &listening.listener, &options, &control),
            run,
        }
    }
}

impl<G, J> EndedReception<'_, G, J> {
    /// The guest that was received, or what creates one.
    pub(super) fn guest(&self) -> &G {
        &self.run.guest
    }

    /// The journal that the engine has kept.
    pub(super) fn journal(&self) -> &J {
        &self.run.journal
    }

    /// Why no source came, if so: nothing was changed.
    pub(super) fn no_source(&self) -> Option<Exit> {
        let error = self.result.as_ref().err()?;
        matches!(error.cause, DestinationFailure::NoSource(_))
            .then(|| Exit::caused(ExitStatus::AtSource, Reason::from(&error.cause), error))
    }

    /// Reports the outcome. `journal` is the path to resume by, and `qemu_has_ended` is about the
    /// destination's QEMU.
    pub(super) fn report(
        self,
        journal: &Path,
        qemu_has_ended: bool,
        left: DestinationLeft,
    ) -> Result<ExitStatus, Exit> {
        outcome::report(
            self.run.listening.publisher,
            self.result,
            journal,
            qemu_has_ended,
            left,
        )
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args, Command};
    use crate::status::RunInfo;
    use clap::Parser;
    use hikkoshi_account::{Limits, Side};
    use hikkoshi_handover::Outcome;
    use std::sync::{Mutex, PoisonError};

    /// What was dropped, each with whether the destination still had its address.
    type Dropped = Arc<Mutex<Vec<(&'static str, bool)>>>;

    /// Stands for the guest or the journal.
    #[derive(Debug)]
    struct Noted {
        name: &'static str,
        socket: PathBuf,
        dropped: Dropped,
    }

    impl Drop for Noted {
        fn drop(&mut self) {
            let mut dropped = self.dropped.lock().unwrap_or_else(PoisonError::into_inner);
            dropped.push((self.name, self.socket.exists()));
        }
    }

    impl Journal<DestinationRecord> for Noted {
        fn record(&self, _: &DestinationRecord) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_guest_is_dropped_under_the_lock_and_that_under_the_address() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let listen = format!("--listen=unix:{}", socket.display());
        let words = ["hikkoshi", "receive", &listen, "--qmp=/q"];
        let Command::Receive(args) = Args::parse_from(words).command else {
            panic!("{words:?}");
        };
        let info = RunInfo {
            side: Side::Destination,
            guest: "web".into(),
            qmp: None,
            limits: Limits::default(),
            working_set: None,
        };
        let publisher = RunPublisher::new(&args.output, folder.path(), info);
        let dropped = Dropped::default();
        let ready = || {
            let acceptor = Acceptor::new(&args, address(&args).unwrap()).unwrap();
            let listening = ListeningDestination::for_new(&args, &publisher, acceptor).unwrap();
            let noted = |name| Noted {
                name,
                socket: socket.clone(),
                dropped: Arc::clone(&dropped),
            };
            listening.ready(noted("guest"), Arc::new(noted("journal")))
        };
        let ended = || {
            let announced = ready().announce(Announcement::New).unwrap();
            announced.receive(CancelFlag::new(), |_, _, _, _| {
                Err(ReceiveError {
                    cause: DestinationFailure::Cancelled,
                    outcome: Outcome::AtSource,
                })
            })
        };
        let all: [&dyn Fn(); 4] = [
            &|| drop(ready()),
            &|| drop(ready().announce(Announcement::New).unwrap()),
            &|| drop(ended()),
            &|| {
                let reported = ended().report(folder.path(), false, DestinationLeft::Unused);
                reported.unwrap_err();
            },
        ];
        for (step, drops) in all.into_iter().enumerate() {
            drops();
            let dropped = std::mem::take(&mut *dropped.lock().unwrap());
            assert_eq!(dropped, [("guest", true), ("journal", true)], "step {step}");
            assert!(!socket.exists(), "step {step}");
        }
    }
}
