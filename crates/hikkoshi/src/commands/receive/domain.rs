//! `hikkoshi receive --connect`: creates a libvirt domain for the guest.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use error_reporter::Report;
use hikkoshi_engine::{
    CancelFlag, DestinationGuest, DestinationHost, GuestError, OfferedGuest, receive_at,
};
use hikkoshi_handover::{DestinationRecord, Journal};
use hikkoshi_libvirt::{Domain, IncomingOptions};
use hikkoshi_qemu::{Overcommit, PipedGuest, QemuDestination, untested_libvirt_qemu};
use hikkoshi_wire::text::one_line;
use thiserror::Error;

use super::journal::DestinationJournal;
use super::outcome::{self, DestinationLeft};
use super::run::{self, Announcement, GuestJournals, ListeningDestination};
use super::unfinished;
use crate::args::Receive;
use crate::commands::monitor;
use crate::commands::operator_file;
use crate::journal::{DestinationEntry, JournalFile, absolute};
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::Reason;
use crate::security::Acceptor;
use crate::status::RunPublisher;

/// A guest is refused.
#[derive(Debug, Error)]
enum RefuseError {
    /// It is not a domain.
    #[error(
        "the guest is not a libvirt domain at the source, and 'hikkoshi receive --connect' creates \
         domains only: start a QEMU for it here, and 'hikkoshi receive --qmp'"
    )]
    NoDomain,
    /// Another one was admitted.
    #[error(
        "the destination accepts the domain {accepted} only (--only-domain), and {offered} is \
         offered: if the destination has admitted it by this side's certificate, 'hikkoshi migrate \
         --name' must have the domain's name"
    )]
    OtherDomain {
        /// The only one that is accepted.
        accepted: String,
        /// The one that the source offers.
        offered: String,
    },
    /// It is here already, in part.
    #[error("at the destination: {0}")]
    Unfinished(String),
    /// There is no journal for it.
    #[error("creating the journal")]
    Journal(#[source] io::Error),
}

/// Waits for a source, and receives its guest as a domain of the daemon `uri`.
pub(super) fn start(
    args: &Receive,
    uri: &str,
    cancel: CancelFlag,
    publisher: &RunPublisher,
) -> Result<ExitStatus, Exit> {
    let acceptor = Acceptor::new(args, run::address(args)?)?;
    if !args.guest.devices.allow_device.is_empty() {
        let what = "--allow-device has no effect with --connect: the source checks the domain's \
                    devices, so give it there";
        return Err(Exit::new(ExitStatus::Usage, Reason::Usage, what));
    }
    let options = options(args, uri)?;
    let version = hikkoshi_libvirt::check_daemon(uri).map_err(|error| {
        Exit::caused(ExitStatus::AtSource, Reason::NotAttached, &error).with("nothing was changed")
    })?;
    if let Some([major, minor, micro]) = version
        && let Some(note) = untested_libvirt_qemu(major, minor, micro)
    {
        publisher.observer().notice(&note);
    }
    let folder = absolute(&args.recovery.journals.path());
    let waiting_lock = JournalFile::for_receiver(&folder).map_err(|error| {
        let what = format!("creating the journal: {}", Report::new(&error));
        Exit::new(ExitStatus::AtSource, Reason::Journal, what)
    })?;
    let listening = ListeningDestination::for_new(args, publisher, acceptor)?;
    let journal = Arc::new(LaterJournal::default());
    let host = DomainHost {
        options,
        only_domain: args.guest.domain.only_domain.clone(),
        overcommit: args.guest.overcommit(),
        folder: folder.clone(),
        waiting_lock: Some(waiting_lock),
        cancel: cancel.clone(),
        journal: Arc::clone(&journal),
        journals: listening.journals(),
        guest: None,
        publisher,
    };
    let ready = listening.ready(host, journal);
    let announced = ready.announce(Announcement::New)?;
    let ended = announced.receive(cancel, |host, listener, options, control| {
        receive_at(host, listener, options, control)
    });
    if let Some(exit) = ended.no_source() {
        return Err(exit.with("nothing was changed"));
    }
    let guest = ended.guest().guest.as_ref();
    let has_ended = guest.is_none_or(QemuDestination::has_ended);
    if let (Err(error), Some(guest)) = (&ended.result, guest)
        && outcome::is_gone(error, has_ended)
    {
        monitor::discard_received(&guest.reattach_info().get().identity.monitor, &folder);
    }
    let path = ended.journal().path().unwrap_or(folder);
    ended.report(&path, has_ended, DestinationLeft::Domain)
}

fn options(args: &Receive, uri: &str) -> Result<IncomingOptions, Exit> {
    let xml = args.guest.domain.xml.as_ref().map(|path| {
        operator_file::read(path).map_err(|why| {
            let what = format!("reading {} (--xml): {why}", path.display());
            Exit::new(ExitStatus::Usage, Reason::Usage, what)
        })
    });
    Ok(IncomingOptions {
        uri: uri.to_owned(),
        xml: xml.transpose()?,
        changes: args.guest.domain.changes.clone(),
        allow_arguments: args.guest.domain.allow_qemu_arguments,
    })
}

/// Refuses a domain of another name than the one that was admitted. Its description has the name
/// that is offered ([`IncomingOptions::start`] checks that).
fn check_name(only: Option<&str>, offered: &str) -> Result<(), RefuseError> {
    match only {
        Some(accepted) if accepted != offered => Err(RefuseError::OtherDomain {
            accepted: accepted.to_owned(),
            offered: one_line(offered).into_owned(),
        }),
        _ => Ok(()),
    }
}

/// Creates domains for offered guests, one at a time.
struct DomainHost<'a> {
    options: IncomingOptions,
    /// The only domain that is accepted.
    only_domain: Option<String>,
    overcommit: Overcommit,
    /// Where journals are, and the pipes of domains.
    folder: PathBuf,
    /// Held as long as there is no guest, whose journal has a lock.
    waiting_lock: Option<JournalFile>,
    cancel: CancelFlag,
    journal: Arc<LaterJournal>,
    journals: GuestJournals,
    guest: Option<QemuDestination>,
    publisher: &'a RunPublisher,
}

impl DestinationHost for DomainHost<'_> {
    fn vm(&mut self, offered: &OfferedGuest) -> Result<&mut dyn DestinationGuest, GuestError> {
        self.discard();
        let domain = offered.domain.as_ref();
        let domain = domain.ok_or_else(|| GuestError::new(RefuseError::NoDomain))?;
        check_name(self.only_domain.as_deref(), &domain.name).map_err(GuestError::new)?;
        let known =
            Domain::known(&self.options.uri, &domain.uuid, &domain.name).received_in(&self.folder);
        unfinished::check_folder(&self.folder, &known)
            .map_err(|exit| GuestError::new(RefuseError::Unfinished(exit.text())))?;
        self.publisher.set_guest(&domain.name);
        let running = offered.description.running;
        let machine = self
            .options
            .start(domain, running, &self.folder, &self.cancel)
            .map_err(GuestError::new)?;
        let guest = PipedGuest {
            description: &offered.description,
            processors: offered.processors.clone(),
            machine: offered.machine.clone(),
        };
        let attached = QemuDestination::attach_piped(
            machine,
            guest,
            Arc::new(known),
            self.overcommit,
            &self.cancel,
        );
        let mut attached = attached.map_err(GuestError::new)?;
        attached.cancel_load_with(self.cancel.clone());
        let identity = attached.reattach_info().get().identity;
        let file = JournalFile::for_qemu::<DestinationEntry>(&self.folder, &identity)
            .map_err(|error| GuestError::new(RefuseError::Journal(error)))?;
        // libvirt owns the machine: it has no mark.
        self.journals
            .link(&file)
            .map_err(|error| GuestError::new(RefuseError::Journal(error)))?;
        let journal = self.journals.create(file, attached.reattach_info(), None);
        self.journal.begin(journal);
        self.waiting_lock = None;
        Ok(self.guest.insert(attached))
    }

    fn discard(&mut self) {
        if let Some(mut guest) = self.guest.take()
            && let Err(error) = guest.release()
        {
            tracing::warn!(error = %Report::new(&error), "ending a domain that is not needed");
        }
        if self.waiting_lock.is_none() {
            let lock = JournalFile::for_receiver(&self.folder).inspect_err(|error| {
                tracing::warn!(error = %Report::new(error), "locking a name for this receiver");
            });
            self.waiting_lock = lock.ok();
        }
        self.journal.end();
    }
}

/// The journal of the guest that is being received, once there is one.
#[derive(Debug, Default)]
struct LaterJournal(Mutex<Option<Arc<DestinationJournal>>>);

impl LaterJournal {
    fn begin(&self, journal: DestinationJournal) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(journal));
    }

    fn end(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn get(&self) -> Option<Arc<DestinationJournal>> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn path(&self) -> Option<PathBuf> {
        Some(self.get()?.path().to_owned())
    }
}

impl Journal<DestinationRecord> for LaterJournal {
    fn record(&self, record: &DestinationRecord) -> io::Result<()> {
        match self.get() {
            Some(journal) => journal.record(record),
            None => Err(io::Error::other("no guest is being received")),
        }
    }

    fn close(&self) {
        if let Some(journal) = self.get() {
            journal.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_admitted_domain_is_accepted() {
        assert!(check_name(None, "db").is_ok());
        assert!(check_name(Some("web1"), "web1").is_ok());
        for other in ["web2", "web", "web11", "Web1", "", "web1\n"] {
            let error = check_name(Some("web1"), other).unwrap_err().to_string();
            assert!(error.contains("the domain web1 only"), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }
}
