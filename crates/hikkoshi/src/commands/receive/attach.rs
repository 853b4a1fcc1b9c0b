//! From a QEMU that waits to a destination that is ready.
//!
//! ```text
//! HeldQemu ── attach ─▶ AttachedDestination ── listen ─▶ ReadyDestination
//! ```

use std::io;
use std::path::Path;
use std::sync::Arc;

use error_reporter::Report;
use hikkoshi_engine::CancelFlag;
use hikkoshi_qemu::qmp::wait_until_started;
use hikkoshi_qemu::{AttachError, QemuDestination, QemuIdentity, Refusal};

use super::journal::DestinationJournal;
use super::run::{ListeningDestination, ReadyDestination};
use super::{shown_name, unfinished};
use crate::args::{DomainOptions, Receive};
use crate::commands::find_journal::may_exist;
use crate::commands::monitor;
use crate::journal::{DestinationEntry, JournalFile, absolute};
use crate::machines::WaitingMark;
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::Reason;
use crate::security::Acceptor;
use crate::status::RunPublisher;

/// The QEMU that the options name, which was not used yet. If it is a machine that was started for
/// a guest, its mark is locked: until then a daemon may end it.
pub(super) struct HeldQemu<'a> {
    args: &'a Receive,
    mark: Option<Arc<WaitingMark>>,
}

/// A QEMU that is attached, and the locked journal of its guest. The fields are dropped in this
/// order: what was changed in QEMU is restored under the locks.
pub(super) struct AttachedDestination<'a> {
    args: &'a Receive,
    guest: QemuDestination,
    file: JournalFile,
    mark: Option<Arc<WaitingMark>>,
}

impl<'a> HeldQemu<'a> {
    /// `started` is the mark of a machine that was started for this guest. Another machine may have
    /// been started for another guest, whose receiver was killed.
    pub(super) fn hold(
        args: &'a Receive,
        started: Option<&Arc<WaitingMark>>,
    ) -> Result<Self, Exit> {
        let mark = match (started, &args.guest.qmp) {
            (Some(mark), _) => Some(Arc::clone(mark)),
            (None, Some(qmp)) => take_over(&args.recovery.journals.path(), qmp)?,
            (None, None) => None,
        };
        Ok(Self { args, mark })
    }

    /// Attaches to it, and locks its journal. `cancel` is set when it ends.
    pub(super) fn attach(
        self,
        cancel: &CancelFlag,
        publisher: &RunPublisher,
    ) -> Result<AttachedDestination<'a>, Exit> {
        let Self { args, mark } = self;
        if let Some(qmp) = &args.guest.qmp {
            wait_until_started(qmp);
        }
        let named = monitor::named_destination(args);
        let monitor = monitor::named(named, &DomainOptions::default())?;
        let folder = args.recovery.journals.path();
        unfinished::check_folder(&folder, &*monitor)?;
        let allowed = args.guest.devices.allowed();
        let overcommit = args.guest.overcommit();
        let mut guest = QemuDestination::attach_allowing(monitor, &allowed, overcommit)
            .map_err(|error| not_attached(&error))?;
        guest.cancel_load_with(cancel.clone());
        guest.cancel_on_exit(cancel.clone()).map_err(|error| {
            let what = format!("watching QEMU: {}", Report::new(&error));
            Exit::new(ExitStatus::AtSource, Reason::System, what)
        })?;
        let identity = guest.reattach_info().get().identity;
        publisher.set_guest(&shown_name::of_waiting(args, &identity));
        publisher.set_monitor(&identity.monitor);
        let file = journal_file(&folder, &identity)?;
        Ok(AttachedDestination {
            args,
            guest,
            file,
            mark,
        })
    }
}

impl<'a> AttachedDestination<'a> {
    /// Listens for a source, and creates the journal.
    pub(super) fn listen(
        self,
        publisher: &'a RunPublisher,
        acceptor: Acceptor,
    ) -> Result<ReadyDestination<'a, QemuDestination, DestinationJournal>, Exit> {
        let listening = ListeningDestination::for_new(self.args, publisher, acceptor)?;
        let journals = listening.journals();
        let journal = journals.create(self.file, self.guest.reattach_info(), self.mark);
        let ready = listening.ready(self.guest, Arc::new(journal));
        journals.link(ready.journal().file()).map_err(keeping)?;
        Ok(ready)
    }
}

/// Locks the mark of a machine that was started for another guest, whose receiver was killed.
fn take_over(run: &Path, qmp: &Path) -> Result<Option<Arc<WaitingMark>>, Exit> {
    let mark = WaitingMark::lock_of(&absolute(run), qmp).map_err(|error| {
        let what = format!(
            "using a QEMU that was started for a guest: {}",
            Report::new(&error)
        );
        Exit::new(ExitStatus::AtSource, Reason::Journal, what)
    })?;
    Ok(mark.map(Arc::new))
}

/// The locked journal of a new migration.
fn journal_file(folder: &Path, identity: &QemuIdentity) -> Result<JournalFile, Exit> {
    let file = JournalFile::for_qemu::<DestinationEntry>(folder, identity).map_err(keeping)?;
    // The journal is found by the process: the socket may have had another name then.
    let entry = file.read::<DestinationEntry>();
    if let Some(entry) = entry.map_err(|error| unfinished::unreadable(file.path(), &error))?
        && may_exist(&entry.qemu.identity)
            .map_err(|error| Exit::caused(ExitStatus::AtSource, Reason::Journal, &error))?
    {
        return Err(unfinished::refuse(file.path(), entry.engine.stage));
    }
    Ok(file)
}

fn keeping(error: io::Error) -> Exit {
    let what = format!("creating the journal: {}", Report::new(&error));
    Exit::new(ExitStatus::AtSource, Reason::Journal, what)
}

/// A QEMU that cannot receive a guest. The source was not contacted.
fn not_attached(error: &AttachError) -> Exit {
    let mut all = error.all().iter();
    // Other obstacles do not matter then.
    let not_waiting = all.find_map(|obstacle| match obstacle {
        AttachError::Refused(refusal @ Refusal::NotWaiting { .. }) => Some(refusal),
        _ => None,
    });
    match not_waiting {
        Some(refusal) => Exit::caused(ExitStatus::Usage, Reason::NotAttached, refusal)
            .with("nothing was changed, here or at the source"),
        None => Exit::caused(ExitStatus::AtSource, Reason::NotAttached, error),
    }
}
