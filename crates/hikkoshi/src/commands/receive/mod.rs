//! `hikkoshi receive`: the destination of a migration.

mod domain;
mod journal;
mod outcome;
mod resume;
mod run;
pub(crate) mod shown_name;
mod template;
mod unfinished;

use std::io;
use std::path::Path;
use std::sync::Arc;

use error_reporter::Report;
use hikkoshi_account::{Limits, Side};
use hikkoshi_engine::destination::DestinationFailure;
use hikkoshi_engine::{CancelFlag, receive};
use hikkoshi_handover::Outcome;
use hikkoshi_qemu::qmp::wait_until_started;
use hikkoshi_qemu::{AttachError, QemuDestination, QemuIdentity, Refusal};

use self::journal::DestinationJournal;
use self::outcome::DestinationLeft;
use self::run::{Announcement, DestinationRun};
use self::template::TemplateQemu;
use crate::args::{DomainOptions, Receive};
use crate::commands::find_journal::may_exist;
use crate::commands::monitor;
use crate::commands::resume_command::before_search;
use crate::commands::{give_up, journal_link, signals};
use crate::journal::{DestinationEntry, JournalFile, absolute};
use crate::machines::WaitingMark;
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::Reason;
use crate::security::Acceptor;
use crate::status::{RunInfo, RunPublisher};

pub(crate) fn run(args: &Receive) -> Result<ExitStatus, Exit> {
    let cancel = signals::cancel_on_signals().map_err(before_search(&args.recovery))?;
    receive_guest(args, cancel)
}

/// Receives one guest, whatever has started this process.
pub(super) fn receive_guest(args: &Receive, cancel: CancelFlag) -> Result<ExitStatus, Exit> {
    let publisher = RunPublisher::new(
        &args.output,
        &args.recovery.journals.path(),
        RunInfo {
            side: Side::Destination,
            guest: shown_name::by_options(args),
            qmp: None,
            limits: Limits::default(),
            working_set: None,
        },
    );
    let result = match &args.recovery.resume {
        None => match (&args.guest.domain.connect, &args.guest.template) {
            (Some(uri), _) => domain::start(args, uri, cancel, &publisher),
            (None, Some(file)) => start_from_template(args, file, cancel, &publisher),
            (None, None) => start(args, None, cancel, &publisher),
        },
        Some(file) if args.give_up.give_up => give_up::destination(args, file.as_deref(), cancel),
        Some(file) => resume::resume(args, file.as_deref(), cancel, &publisher),
    };
    publisher.end(&result);
    result
}

/// Starts a QEMU, waits for a source and receives its guest.
fn start_from_template(
    args: &Receive,
    file: &Path,
    cancel: CancelFlag,
    publisher: &RunPublisher,
) -> Result<ExitStatus, Exit> {
    let qemu = TemplateQemu::start(args, file, &cancel)?;
    let mut args = args.clone();
    args.guest.qmp = Some(qemu.qmp().to_owned());
    let result = start(&args, Some(qemu.mark()), cancel, publisher);
    qemu.finish(result.as_ref().map_or_else(Exit::status, |status| *status));
    result
}

/// Waits for a source and receives its guest. `mark` is that of a machine that was started for it.
fn start(
    args: &Receive,
    mark: Option<&Arc<WaitingMark>>,
    cancel: CancelFlag,
    publisher: &RunPublisher,
) -> Result<ExitStatus, Exit> {
    let acceptor = Acceptor::new(args, run::address(args)?)?;
    // Before QEMU is used: a daemon may end it until then.
    let taken_over = match (mark, &args.guest.qmp) {
        (None, Some(qmp)) => take_over(&args.recovery.journals.path(), qmp)?,
        _ => None,
    };
    if let Some(qmp) = &args.guest.qmp {
        wait_until_started(qmp);
    }
    let monitor = monitor::named(monitor::named_destination(args), &DomainOptions::default())?;
    let folder = args.recovery.journals.path();
    unfinished::check_folder(&folder, &*monitor)?;
    let allowed = args.guest.devices.allowed();
    let mut guest = QemuDestination::attach_allowing(monitor, &allowed, args.guest.overcommit())
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
    let run = DestinationRun::new(args, publisher, acceptor)?;
    // Not if another engine has the address: it may be the one that resumes an earlier migration.
    if let Some(link) = &args.recovery.journal_link {
        journal_link::make::<DestinationEntry>(link, &file).map_err(keeping)?;
    }
    let journal = run.journal(file, guest.reattach_info(), mark.cloned().or(taken_over));
    let journal = Arc::new(journal);
    let kept = Arc::<DestinationJournal>::clone(&journal);
    let result = run.receive(
        cancel,
        kept,
        Announcement::New,
        |listener, options, watch| receive(&mut guest, listener, options, watch),
    )?;
    if let Err(error) = &result
        && matches!(error.cause, DestinationFailure::NoSource(_))
    {
        let exit = Exit::caused(ExitStatus::AtSource, Reason::from(&error.cause), error);
        return Err(exit.with(match mark {
            Some(_) => "nothing was changed, and the QEMU that was started for the guest ends",
            None => "nothing was changed, and this QEMU can still receive a guest",
        }));
    }
    if let Err(error) = &result
        && matches!(error.cause, DestinationFailure::Cancelled)
        && error.outcome == Outcome::AtSource
        && guest.has_ended()
    {
        // The end of QEMU has cancelled the wait, not a signal.
        let what = "waiting for a guest: this QEMU has ended";
        return Err(
            Exit::new(ExitStatus::AtSource, Reason::QemuEnded, what).with(outcome::AT_SOURCE)
        );
    }
    let after = match (mark, guest.is_unused()) {
        (Some(_), _) => DestinationLeft::Ends,
        (None, true) => DestinationLeft::Unused,
        (None, false) => DestinationLeft::Used,
    };
    outcome::report(publisher, result, journal.path(), guest.has_ended(), after)
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
