//! `--resume --give-up`: gives up a migration.
//!
//! The two sides decide between them who has the guest. If one of them is permanently lost, only a
//! person can know that and take the responsibility. So the consequences are explained first, and
//! nothing is done before the confirmation.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use hikkoshi_engine::{
    CancelFlag, DestinationGuest, MigrateControl, ReceiveControl, SourceControl, give_up_migrate,
    give_up_receive,
};
use hikkoshi_handover::{DestinationStage, Outcome, SourceStage};
use hikkoshi_qemu::qmp::MonitorAddress;
use hikkoshi_qemu::{ExitedDestination, QemuSource};

use crate::args::{GiveUpOptions, Migrate, NamedGuest, Receive};
use crate::commands::find_journal::find;
use crate::commands::monitor::{self, resume_by_hand};
use crate::commands::print_result::print_moved;
use crate::commands::reattach_destination::reattach;
use crate::commands::resume_command::resume_command;
use crate::journal::{DestinationEntry, OfflineJournal, SourceEntry};
use crate::machines::WaitingMark;
use crate::output::exit::{Exit, ExitStatus};
use crate::output::progress::Notices;
use crate::output::reason::Reason;

const GIVEN_UP: &str = "the migration was given up";

/// What happens to the disks of a guest that is continued from an earlier state.
const DISKS: &str = "its disks are newer than this memory, which would damage them: continue it ONLY \
                     if it has no disks, or if they are restored to the moment when it was stopped \
                     (a snapshot). Otherwise end this QEMU, and reboot the guest from its disks";

/// Gives up the migration at the source.
pub(super) fn source(
    args: &Migrate,
    file: Option<&Path>,
    cancel: CancelFlag,
) -> Result<ExitStatus, Exit> {
    let (file, entry) =
        find::<SourceEntry>(NamedGuest::source(args).as_ref(), &args.recovery, file)?;
    let stage = entry.engine.stage;
    let address = entry.qemu.identity.monitor.clone();
    let again = resume_command::<SourceEntry>(file.path());
    require_confirmation(&args.give_up, source_consequence(stage).as_deref())
        .map_err(|exit| exit.resumed_by(&again))?;
    let cannot = |reason, error: &dyn Error| {
        Exit::caused(ExitStatus::Unfinished, reason, error).resumed_by(&again)
    };
    let attached = QemuSource::reattach(
        &entry.qemu,
        monitor::at_address(&entry.qemu.identity.monitor),
    )
    .map_err(|error| cannot(Reason::NotAttached, &error))?;
    let Some(mut guest) = attached else {
        let what = "giving up the migration: the source's QEMU has ended, and the guest with it";
        return Err(Exit::new(ExitStatus::Unfinished, Reason::QemuEnded, what).resumed_by(&again));
    };
    let engine = entry.engine.clone();
    let control = MigrateControl {
        cancel,
        control: SourceControl::new(),
        observer: Arc::new(Notices),
        journal: Arc::new(OfflineJournal::new(file, entry)),
    };
    if let Err(error) = give_up_migrate(&mut guest, engine, &control) {
        let next = match error.outcome {
            Outcome::Stopped => {
                let by_hand = resume_by_hand(&address);
                format!(
                    "the guest belongs to the source, and is paused: resume it with {by_hand}, or \
                     repeat this command"
                )
            }
            _ => "nothing was changed".to_owned(),
        };
        let reason = Reason::from(&error.cause);
        return Err(cannot(reason, &error).with(next));
    }
    if stage == SourceStage::Done {
        let what = "the guest runs at the destination, with all of its pages";
        return print_moved(&args.output, what, None);
    }
    Err(Exit::new(ExitStatus::AtSource, Reason::GivenUp, GIVEN_UP)
        .with("the guest runs at the source"))
}

/// What giving up means at the source, if it can do harm.
fn source_consequence(stage: SourceStage) -> Option<String> {
    match stage {
        SourceStage::Owned | SourceStage::Done => None,
        SourceStage::Committed => Some(format!(
            "the guest would be resumed here in the state in which it was paused. Do this ONLY if \
             the destination never ran the guest and never will, or if its QEMU has ended: \
             otherwise two copies of the guest run. All changes that it made there are lost. And \
             if it has run there, {DISKS}"
        )),
        SourceStage::HandedOver => Some(format!(
            "the destination has run the guest. It would be resumed here in the state in which it \
             was paused: a stale snapshot, and all changes since are lost. Do this ONLY if the \
             guest is lost there (its QEMU has ended): otherwise two copies of the guest run. And \
             {DISKS}"
        )),
    }
}

/// Gives up the migration at the destination.
pub(super) fn destination(
    args: &Receive,
    file: Option<&Path>,
    cancel: CancelFlag,
) -> Result<ExitStatus, Exit> {
    let (file, entry) = find::<DestinationEntry>(
        monitor::named_destination(args).as_ref(),
        &args.recovery,
        file,
    )?;
    let (stage, pid) = (entry.engine.stage, entry.qemu.identity.pid);
    let again = resume_command::<DestinationEntry>(file.path());
    require_confirmation(&args.give_up, destination_consequence(stage))
        .map_err(|exit| exit.resumed_by(&again))?;
    let cannot = |reason, error: &dyn Error| {
        Exit::caused(ExitStatus::Unfinished, reason, error).resumed_by(&again)
    };
    let not_attached = |error: &dyn Error| cannot(Reason::NotAttached, error);
    let address = entry.qemu.identity.monitor.clone();
    let folder = file.path().parent().unwrap_or(Path::new("")).to_owned();
    let no_mark = |error: std::io::Error| cannot(Reason::Journal, &error);
    let mark = WaitingMark::of_journal(&address, &folder).map_err(no_mark)?;
    let attached = reattach(&entry.qemu, &folder).map_err(|error| not_attached(&error))?;
    let mark = match mark {
        Some(mark) => mark.resumed(attached.is_some(), stage).map_err(no_mark)?,
        None => None,
    };
    let mut guest: Box<dyn DestinationGuest> = match attached {
        Some(guest) => Box::new(guest),
        None => {
            let monitor = monitor::received(&address, &folder);
            let exited = ExitedDestination::new(&entry.qemu, monitor);
            Box::new(exited.map_err(|error| not_attached(&error))?)
        }
    };
    let engine = entry.engine.clone();
    let control = ReceiveControl {
        cancel,
        observer: Arc::new(Notices),
        journal: Arc::new(OfflineJournal::new(file, entry)),
    };
    give_up_receive(&mut *guest, engine, &control).map_err(|error| {
        cannot(Reason::from(&error.cause), &error).with("this command can be repeated")
    })?;
    if stage != DestinationStage::Complete {
        monitor::discard_received(&address, &folder);
    }
    let declines = matches!(
        stage,
        DestinationStage::Receiving | DestinationStage::Ready | DestinationStage::Declined
    );
    // The journal says so now. The guest that was declined leaves nothing of its machine.
    let is_ended = match mark.filter(|_| declines) {
        Some(mark) => mark
            .follow(DestinationStage::Declined)
            .is_ok_and(|()| mark.end_or_log()),
        None => false,
    };
    let here = match address {
        // It was ended, because its guest has not run.
        MonitorAddress::Domain { .. } => "nothing is left of its domain here",
        MonitorAddress::Socket(_) if is_ended => "the QEMU that was started for it was ended",
        MonitorAddress::Socket(_) => "end this QEMU",
    };
    let given_up = |status| Exit::new(status, Reason::GivenUp, GIVEN_UP);
    Err(match stage {
        DestinationStage::Complete => {
            let what = "the guest runs here with all of its pages; its source was not informed";
            return print_moved(&args.output, what, None);
        }
        DestinationStage::Ready => given_up(ExitStatus::AtSource)
            .with(format!(
                "the guest has not run here and never will: {here}. The source \
                 resumes the guest when this is reported to it: {again} waits for the source"
            ))
            .resumed_by(again),
        DestinationStage::Receiving | DestinationStage::Declined => {
            let what = format!("the guest has not run here and never will: {here}");
            given_up(ExitStatus::AtSource).with(what)
        }
        DestinationStage::Running => given_up(ExitStatus::Lost).with(format!(
            "the guest has ended here with its QEMU (process {pid})"
        )),
    })
}

/// What giving up means at the destination, if it can do harm.
fn destination_consequence(stage: DestinationStage) -> Option<&'static str> {
    match stage {
        DestinationStage::Receiving | DestinationStage::Ready => None,
        DestinationStage::Declined => Some(
            "the guest has not run here and never will, and its source may still wait for that \
             answer. Without this journal, only giving up the migration at the source \
             resumes the guest there",
        ),
        DestinationStage::Running => Some(
            "the guest runs here, and pages are missing that only its source has. The guest and \
             its QEMU would be ended: do this ONLY if the source can no longer send those pages",
        ),
        DestinationStage::Complete => Some(
            "the guest continues to run here, with all of its pages. But the source is not \
             notified: make sure that the guest is not continued there",
        ),
    }
}

fn require_confirmation(options: &GiveUpOptions, consequence: Option<&str>) -> Result<(), Exit> {
    match consequence {
        Some(consequence) if !options.other_side_is_lost => {
            let what = format!("giving up the migration: {consequence}");
            let next = "nothing was done. To confirm: --give-up --other-side-is-lost";
            Err(Exit::new(ExitStatus::Unfinished, Reason::ConfirmationNeeded, what).with(next))
        }
        _ => Ok(()),
    }
}
