//! `--resume --give-up`: nobody goes on with a migration.
//!
//! Whose guest it is, the two sides settle between them; where one of them is lost
//! for good, only a person can know that, and answers for it. So the consequence
//! is told first, and nothing is done before it is confirmed.

use std::path::Path;
use std::sync::Arc;

use hikkoshi_engine::{
    Cancel, DestinationGuest, ReceiveWatch, Watch, give_up_migrate, give_up_receive,
};
use hikkoshi_handover::{DestinationStage, Outcome, SourceStage};
use hikkoshi_qemu::{ExitedDestination, QemuDestination, QemuSource};

use crate::args::{Common, Migrate, Receive};
use crate::commands::resume;
use crate::journal::{DestinationEntry, OfflineJournal, SourceEntry};
use crate::output::exit::{Exit, Status};
use crate::output::progress;
use crate::output::reason::Reason;
use crate::output::streams;

/// At the source.
pub fn source(args: &Migrate, file: Option<&Path>, cancel: Cancel) -> Result<Status, Exit> {
    let (page, entry) = resume::find::<SourceEntry>(&args.common, file)?;
    let stage = entry.engine.stage;
    let again = resume::command::<SourceEntry>(page.path());
    confirmed(&args.common, at_source(stage).as_deref())?;
    let cannot = |reason, error: &dyn std::fmt::Display| {
        Exit::new(Status::Paused, reason, error).resumed_by(&again)
    };
    let taken =
        QemuSource::reattach(&entry.qemu).map_err(|error| cannot(Reason::NotAttached, &error))?;
    let Some(mut guest) = taken else {
        let what = "giving up: the source's QEMU has ended, and no guest is here to run on";
        return Err(cannot(Reason::QemuEnded, &what));
    };
    let engine = entry.engine.clone();
    let watch = Watch {
        cancel,
        observer: progress::observer(args.common.progress),
        journal: Arc::new(OfflineJournal::new(page, entry)),
    };
    if let Err(error) = give_up_migrate(&mut guest, engine, &watch) {
        let next = match error.outcome {
            Outcome::Stopped => {
                "the guest is the source's, and paused: let it go on with the QMP command 'cont', \
                 or try this again"
            }
            _ => "nothing was changed",
        };
        let reason = Reason::from(&error.cause);
        return Err(cannot(reason, &error).with(next));
    }
    if stage == SourceStage::Done {
        streams::to_stdout("the guest runs at the destination, and all of it is there\n");
        return Ok(Status::Moved);
    }
    let what = "the migration is given up";
    Err(Exit::new(Status::AtSource, Reason::GivenUp, what).with("the guest runs on at the source"))
}

/// What giving up means at the source, where it is not harmless.
fn at_source(stage: SourceStage) -> Option<String> {
    match stage {
        SourceStage::Owned | SourceStage::Done => None,
        SourceStage::Committed => Some(format!(
            "the guest would run on here, as it was when it was stopped. That is right ONLY if the \
             destination never ran it and never will, or has lost it (its QEMU has ended): \
             otherwise there are two of it. Whatever it may have done there is lost. And if it has \
             run there, {DISKS}"
        )),
        SourceStage::HandedOver => Some(format!(
            "the destination has run the guest. It would run on here as it was when it was \
             stopped: a moment of the past, and whatever it has done since is lost. That is right \
             ONLY if its guest there is lost (its QEMU has ended): otherwise there are two of it. \
             And {DISKS}"
        )),
    }
}

/// What a guest that goes on from the past does to its disks.
const DISKS: &str = "its disks are of a later moment than this memory, which would destroy what is \
                     on them: it may run on ONLY without disks, or with disks brought back to the \
                     moment when it was stopped (a snapshot). Otherwise end this QEMU, and boot \
                     the guest anew from its disks";

/// At the destination.
pub fn destination(args: &Receive, file: Option<&Path>, cancel: Cancel) -> Result<Status, Exit> {
    let (page, entry) = resume::find::<DestinationEntry>(&args.common, file)?;
    let (stage, pid) = (entry.engine.stage, entry.qemu.identity.pid);
    confirmed(&args.common, at_destination(stage))?;
    let again = resume::command::<DestinationEntry>(page.path());
    let cannot = |reason, error: &dyn std::fmt::Display| {
        Exit::new(Status::Paused, reason, error).resumed_by(&again)
    };
    let not_attached = |error: &dyn std::fmt::Display| cannot(Reason::NotAttached, error);
    let taken = QemuDestination::reattach(&entry.qemu).map_err(|error| not_attached(&error))?;
    let mut guest: Box<dyn DestinationGuest> = match taken {
        Some(guest) => Box::new(guest),
        None => {
            Box::new(ExitedDestination::new(&entry.qemu).map_err(|error| not_attached(&error))?)
        }
    };
    let engine = entry.engine.clone();
    let watch = ReceiveWatch {
        cancel,
        observer: progress::observer(args.common.progress),
        journal: Arc::new(OfflineJournal::new(page, entry)),
    };
    give_up_receive(&mut *guest, engine, &watch).map_err(|error| {
        cannot(Reason::from(&error.cause), &error).with("it can be tried again")
    })?;
    let what = "the migration is given up";
    Err(match stage {
        DestinationStage::Complete => {
            streams::to_stdout(
                "the guest runs here, and all of it is here; its source was not told so\n",
            );
            return Ok(Status::Moved);
        }
        DestinationStage::Ready => Exit::new(Status::AtSource, Reason::GivenUp, what)
            .with(format!(
                "the guest has not run here and never will: end this QEMU. Its source takes it \
                 back when it hears that: {again} waits for it"
            ))
            .resumed_by(again),
        DestinationStage::Receiving | DestinationStage::Declined => {
            Exit::new(Status::AtSource, Reason::GivenUp, what)
                .with("the guest has not run here and never will")
        }
        DestinationStage::Running => Exit::new(Status::Lost, Reason::GivenUp, what).with(format!(
            "the guest has ended here with its QEMU (process {pid})"
        )),
    })
}

/// What giving up means at the destination, where it is not harmless.
fn at_destination(stage: DestinationStage) -> Option<&'static str> {
    match stage {
        DestinationStage::Receiving | DestinationStage::Ready => None,
        DestinationStage::Declined => Some(
            "the guest has not run here and never will, and its source may still wait to hear \
             that. Once this is forgotten, only giving up at the source lets the guest run on",
        ),
        DestinationStage::Running => Some(
            "the guest runs here, and lacks pages that only its source has. The guest would end \
             here, with its QEMU: that is right ONLY if those pages cannot be had any more",
        ),
        DestinationStage::Complete => Some(
            "the guest runs on here, and all of it is here. But its source would never hear so: \
             see that it is not made to run there",
        ),
    }
}

fn confirmed(common: &Common, consequence: Option<&str>) -> Result<(), Exit> {
    match consequence {
        Some(consequence) if !common.other_side_is_lost => {
            let what = format!("giving up: {consequence}");
            let next = "nothing was done. If that is meant: --give-up --other-side-is-lost";
            Err(Exit::new(Status::Usage, Reason::ConfirmationNeeded, what).with(next))
        }
        _ => Ok(()),
    }
}
