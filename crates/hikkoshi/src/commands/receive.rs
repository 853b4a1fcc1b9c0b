//! `hikkoshi receive`.

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use hikkoshi_engine::destination::DestinationFailure;
use hikkoshi_engine::report::GuestState;
use hikkoshi_engine::source::SOURCE_ENDED;
use hikkoshi_engine::{
    Account, Cancel, DestinationGuest, ReceiveError, ReceiveWatch, receive, resume_receive,
};
use hikkoshi_handover::{DestinationRecord, DestinationStage, Outcome};
use hikkoshi_qemu::{
    AttachError, ExitedDestination, FindProcessError, QemuDestination, Refusal, SharedNotes,
};

use crate::args::Receive;
use crate::commands::give_up;
use crate::commands::migrate::finish;
use crate::commands::resume;
use crate::commands::signals;
use crate::commands::wait_for_source::waiting;
use crate::journal::{self, DestinationEntry, DestinationJournal, JournalFile};
use crate::output::exit::{Exit, Status};
use crate::output::progress;
use crate::output::reason::{Holder, Reason};
use crate::security;
use crate::security::Door;

pub fn run(args: &Receive) -> Result<Status, Exit> {
    let cancel = signals::cancel_on_signals()?;
    match &args.common.resume {
        None => begin(args, cancel),
        Some(file) if args.common.give_up => give_up::destination(args, file.as_deref(), cancel),
        Some(file) => go_on(args, file.as_deref(), cancel),
    }
}

/// Takes a guest in.
fn begin(args: &Receive, cancel: Cancel) -> Result<Status, Exit> {
    let Some(listen) = &args.listen else {
        // The command line requires it.
        return Err(Exit::new(
            Status::Usage,
            Reason::Usage,
            "--listen ADDR is missing",
        ));
    };
    let door = Door::of(args, listen)?;
    let qmp = resume::qmp(&args.common)?;
    let folder = journal::folder(args.common.journal.as_deref());
    refuse_taken_in(&folder, qmp)?;
    let at_source = |reason, error: &dyn Display| Exit::new(Status::AtSource, reason, error);
    let mut guest = QemuDestination::attach_allowing(qmp, &args.options.shared.allowed())
        .map_err(|error| not_attached(&error))?;
    guest.cancel_load_with(cancel.clone());
    guest
        .cancel_on_exit(cancel.clone())
        .map_err(|error| at_source(Reason::System, &format!("watching QEMU: {error}")))?;
    let keeping = |error| at_source(Reason::Journal, &format!("keeping a journal: {error}"));
    let page = JournalFile::for_qemu::<DestinationEntry>(&folder, &guest.noted().get().identity)
        .map_err(keeping)?;
    // By its process: the socket may have had another name then.
    if let Some(entry) = page.read::<DestinationEntry>().map_err(keeping)?
        && resume::may_live(&entry.qemu.identity)
            .map_err(|error| at_source(Reason::Journal, &error))?
    {
        return Err(taken_in(page.path(), entry.engine.stage));
    }
    let waiting = waiting(args.wait_for, door.prints_invitation(args));
    let listener = door
        .bind(listen)?
        .with_priority(args.engine_options().priority)
        .with_waiting(waiting);
    let journal = Arc::new(DestinationJournal::new(
        page,
        listener.address(),
        args.common.security.plaintext,
        args.options.clone(),
        door.tls().cloned(),
        guest.noted(),
    ));
    let observer = progress::observer(args.common.progress);
    security::warn_of_readable_key(&args.common.security, &*observer);
    args.options.shared.warn_of_devices(&*observer);
    door.open(args, &listener, &*observer)?;
    let watch = ReceiveWatch {
        cancel,
        observer,
        journal: Arc::<DestinationJournal>::clone(&journal),
    };
    let result = receive(&mut guest, &listener, &args.engine_options(), &watch);
    if let Err(error) = &result
        && matches!(error.cause, DestinationFailure::NoSource(_))
    {
        let exit = Exit::new(Status::AtSource, Reason::from(&error.cause), error);
        return Err(exit.with("nothing was changed, and this QEMU can still take a guest in"));
    }
    if let Err(error) = &result
        && matches!(error.cause, DestinationFailure::Cancelled)
        && error.outcome == Outcome::AtSource
        && guest.has_ended()
    {
        // A wait that no signal has ended.
        let what = "waiting for a guest: this QEMU has ended, and can take none in";
        return Err(Exit::new(Status::AtSource, Reason::QemuEnded, what).with(AT_SOURCE));
    }
    let is_unused = guest.is_unused();
    told(args, result, journal.path(), guest.has_ended(), is_unused)
}

const AT_SOURCE: &str = "the guest stays at the source; start this QEMU anew before the next try";

/// Where a guest is that was not taken in, and whether this QEMU can take one in later.
fn at_source(cause: &DestinationFailure, is_unused: bool) -> String {
    let source = match cause {
        // Its source has said why.
        DestinationFailure::CalledOff(why) if why.contains(SOURCE_ENDED) => {
            "the guest was not taken in here"
        }
        _ => "the guest stays at the source",
    };
    let here = if is_unused {
        "nothing was loaded into this QEMU: it can take a guest in as it is"
    } else {
        "start this QEMU anew before the next try"
    };
    format!("{source}; {here}")
}

/// A QEMU that has a guest takes in none.
fn refuse_taken_in(folder: &Path, qmp: &Path) -> Result<(), Exit> {
    let looking = |error: &dyn Display| {
        let what = format!("looking for an earlier migration into this QEMU: {error}");
        Exit::new(Status::AtSource, Reason::Journal, what).with("nothing was changed")
    };
    if journal::is_hidden(folder) {
        // Who may not look there may not look into QEMU either: that is said then.
        return Ok(());
    }
    let found = journal::find::<DestinationEntry>(folder, Some(qmp)).map_err(|e| looking(&e))?;
    for (path, entry) in found {
        let unknown = |error: FindProcessError| {
            let journal = path.display();
            looking(&format!(
                "{error} (as {journal} tells; remove it if it is of no use)"
            ))
        };
        if resume::may_live(&entry.qemu.identity).map_err(unknown)?
            && resume::may_listen(qmp, &entry.qemu.identity)
        {
            return Err(taken_in(&path, entry.engine.stage));
        }
    }
    Ok(())
}

/// This QEMU has a guest, or was to have one, by a migration that is not finished.
fn taken_in(journal: &Path, stage: DestinationStage) -> Exit {
    let again = resume::command::<DestinationEntry>(journal);
    let (what, next) = match stage {
        DestinationStage::Complete => (
            "this QEMU has a guest already, with all of its pages; but whether its source knows \
             that is not known",
            format!("to tell it: {again}. For another guest, start another QEMU"),
        ),
        _ => (
            "this QEMU was to have a guest already, and that migration is not over",
            format!("go on with it: {again}"),
        ),
    };
    let holder = match stage {
        DestinationStage::Running | DestinationStage::Complete => Holder::Destination,
        DestinationStage::Declined => Holder::Source,
        DestinationStage::Receiving | DestinationStage::Ready => Holder::Undecided,
    };
    Exit::new(Status::Paused, Reason::Unfinished, what)
        .with(next)
        .held_by(holder)
        .resumed_by(again)
}

/// What is known of a QEMU that cannot take a guest in. The source was not asked.
fn not_attached(error: &AttachError) -> Exit {
    match error {
        AttachError::Refused(refusal @ Refusal::NotWaiting { .. }) => {
            Exit::new(Status::Usage, Reason::NotAttached, refusal)
                .with("nothing was changed, here or at the source")
        }
        error => Exit::new(Status::AtSource, Reason::NotAttached, error),
    }
}

/// Goes on with a guest.
fn go_on(args: &Receive, file: Option<&Path>, cancel: Cancel) -> Result<Status, Exit> {
    let (page, mut entry) = resume::find::<DestinationEntry>(&args.common, file)?;
    let plaintext = entry.plaintext && resume::is_same_host(args.listen.as_ref(), &entry.address);
    let args = &args.clone().resumed(entry.options.clone(), plaintext);
    let cannot = |error: &dyn Display| {
        resume::cannot::<DestinationEntry>(Reason::NotAttached, error, page.path())
    };
    let pid = entry.qemu.identity.pid;
    let taken = QemuDestination::reattach(&entry.qemu).map_err(|error| cannot(&error))?;
    let (mut guest, noted): (Box<dyn DestinationGuest>, _) = match taken {
        Some(guest) => {
            if awaits_pages(&entry.engine) {
                guest.check_userfault().map_err(|error| {
                    let path = page.path().display();
                    Exit::new(Status::Paused, Reason::Memory, error).with(format!(
                        "nothing was changed, and the journal, {path}, is as it was"
                    ))
                })?;
            }
            let noted = guest.noted();
            (Box::new(guest), noted)
        }
        None if entry.engine.stage == DestinationStage::Running => {
            let what = format!("the destination's QEMU (process {pid}) has ended");
            let path = page.path().display();
            let left =
                format!("The journal, {path}, is left for you to look at, and to be removed");
            return Err(perished(&entry.engine, what, &left));
        }
        // Its source needs to know that it never ran here, or that nothing is needed
        // of it any more.
        None => {
            let departed = ExitedDestination::new(&entry.qemu).map_err(|error| cannot(&error))?;
            (Box::new(departed), SharedNotes::new(entry.qemu.clone()))
        }
    };
    let listen = args.listen.as_ref().unwrap_or(&entry.address).clone();
    let door = Door::again(args, &listen, entry.security.take())?;
    let tls = door.tls().cloned();
    let listener = door
        .bind(&listen)?
        .with_priority(args.engine_options().priority);
    let (at, options) = (listener.address(), args.options.clone());
    let plaintext = args.common.security.plaintext;
    let journal = DestinationJournal::new(page, at, plaintext, options, tls, noted);
    let journal = Arc::new(journal);
    let observer = progress::observer(args.common.progress);
    security::warn_of_readable_key(&args.common.security, &*observer);
    let what = match entry.engine.stage {
        DestinationStage::Complete if guest.has_ended() => {
            "the guest has run here and needs nothing more of its source; its QEMU has ended since"
        }
        _ if guest.has_ended() => "the guest has never run here, and its QEMU has ended",
        DestinationStage::Ready => "the guest is paused here",
        DestinationStage::Running => "the guest runs here with the pages that it has",
        DestinationStage::Complete => "the guest runs here, and all of it is here",
        DestinationStage::Receiving | DestinationStage::Declined => "the guest is not run here",
    };
    observer.notice(&format!("{what}; waiting for its source at {at}"));
    let watch = ReceiveWatch {
        cancel,
        observer,
        journal: Arc::<DestinationJournal>::clone(&journal),
    };
    let result = resume_receive(
        &mut *guest,
        entry.engine,
        &listener,
        &args.engine_options(),
        &watch,
    );
    told(args, result, journal.path(), guest.has_ended(), false)
}

/// Whether pages of it may be missing.
fn awaits_pages(record: &DestinationRecord) -> bool {
    let lives = matches!(
        record.stage,
        DestinationStage::Ready | DestinationStage::Running
    );
    lives && record.postcopy
}

const LOST: &str = "the guest is lost: it had run in that QEMU, and unless it was shut down, what it \
                    did since is lost with it. What the source has of it, in a QEMU that is \
                    paused since ('hikkoshi migrate --resume' there names its process), is a \
                    moment of the past, and must not be continued on disks of a later one. Boot \
                    the guest anew from its disks";

const PERHAPS: &str = "the guest was made to run in it, and may have run or not: if it has, what it \
                       did is lost, and what the source has is a moment of the past, which must \
                       not be continued on disks of a later one. Its owner decides: hikkoshi \
                       migrate --resume --give-up at the source says how";

/// What became of a guest whose QEMU has ended before its source was told that
/// all is well.
fn perished(record: &DestinationRecord, what: String, left: &str) -> Exit {
    let (status, reason, holder, next) = if record.started {
        (Status::Lost, Reason::GuestLost, Holder::Nobody, LOST)
    } else {
        (
            Status::Paused,
            Reason::QemuEnded,
            Holder::Undecided,
            PERHAPS,
        )
    };
    Exit::new(status, reason, what)
        .with(format!("{next}. {left}"))
        .held_by(holder)
}

/// Tells what came of it.
fn told(
    args: &Receive,
    result: Result<Account, ReceiveError>,
    journal: &Path,
    ended: bool,
    is_unused: bool,
) -> Result<Status, Exit> {
    let error = match result {
        Ok(account) => {
            let what = match account.guest_state {
                GuestState::Running => "the guest runs here",
                GuestState::Paused => "the guest is here, paused as it was",
                GuestState::ShutDown => "the guest has run here and has shut itself down",
            };
            finish(&account, &args.common, what, None)?;
            if journal.exists() {
                progress::observer(args.common.progress).notice(&format!(
                    "whether the source knows that is not known: do not continue the guest \
                     there. If 'hikkoshi migrate' has not ended well there, run it with --resume \
                     there, and here: {}",
                    resume::command::<DestinationEntry>(journal)
                ));
            }
            return Ok(Status::of(account.guest_state));
        }
        Err(error) => error,
    };
    let outcome = match error.outcome {
        Outcome::AtDestination if ended => Outcome::Lost,
        outcome => outcome,
    };
    let again = resume::command::<DestinationEntry>(journal);
    let next = match outcome {
        // A source's word, which is none of a destination.
        Outcome::AtSource | Outcome::Stopped => at_source(&error.cause, is_unused),
        Outcome::Declined => format!(
            "the guest has not run here and never will, and its source may not have heard that: \
             until it has, the guest stands still there. Unless 'hikkoshi migrate' says that the \
             guest runs on at the source, go on here with: {again} and there with: hikkoshi \
             migrate --resume"
        ),
        Outcome::Lost => LOST.to_owned(),
        Outcome::Paused if ended => PERHAPS.to_owned(),
        Outcome::Paused => format!(
            "as far as is known the guest has not run here, and nothing of it is lost: keep both \
             QEMU processes. {} Unless 'hikkoshi migrate' says that the guest runs on at the source \
             (then end this QEMU, and remove {}), go on here with: {again}",
            resume::GIVE_UP,
            journal.display(),
        ),
        Outcome::AtDestination => format!(
            "the guest runs here with the pages that it has, and waits where it needs others, \
             which are still at the source; nothing of it is lost: never continue it there. To go \
             on, run 'hikkoshi migrate --resume' at the source after this here: {again}"
        ),
    };
    let reason = match outcome {
        Outcome::Lost => Reason::GuestLost,
        _ if ended => Reason::QemuEnded,
        _ => Reason::from(&error.cause),
    };
    let exit = Exit::new(outcome.into(), reason, error)
        .with(next)
        .held_by(outcome.into());
    Err(match outcome {
        Outcome::AtSource | Outcome::Stopped | Outcome::Lost => exit,
        Outcome::Paused | Outcome::AtDestination | Outcome::Declined => exit.resumed_by(again),
    })
}
