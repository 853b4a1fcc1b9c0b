//! `hikkoshi migrate`.

use std::fmt::Display;
use std::io;
use std::path::Path;
use std::sync::Arc;

use hikkoshi_engine::report::{GuestState, Observer};
use hikkoshi_engine::{
    Account, Cancel, MigrateError, Mode, SourceGuest, Watch, migrate, resume_migrate,
};
use hikkoshi_handover::Outcome;
use hikkoshi_handover::{DestinationStage, Journal, SourceRecord, SourceStage};
use hikkoshi_link::Remote;
use hikkoshi_qemu::{AttachError, QemuSource, RamFileSource};

use crate::args::{Common, Migrate};
use crate::commands::give_up;
use crate::commands::guard::{self, Guard};
use crate::commands::resume;
use crate::commands::signals::{self, TooLate};
use crate::journal::{self, DestinationEntry, JournalFile, SourceEntry, SourceJournal};
use crate::output::exit::{Exit, Status};
use crate::output::progress;
use crate::output::reason::{Holder, Reason};
use crate::output::report;
use crate::output::streams;
use crate::security;

const UNTOUCHED: &str = "the guest runs on at the source; nothing was changed";

const ENDED: &str = "the source's QEMU has ended, and the guest with it";

pub fn run(args: &Migrate) -> Result<Status, Exit> {
    let cancel = signals::cancel_on_signals()?;
    match &args.common.resume {
        None => begin(args, &security::remote(args)?, cancel),
        Some(file) if args.common.give_up => give_up::source(args, file.as_deref(), cancel),
        Some(file) => go_on(args, file.as_deref(), cancel),
    }
}

/// Moves a guest.
fn begin(args: &Migrate, remote: &Remote, cancel: Cancel) -> Result<Status, Exit> {
    let qmp = resume::qmp(&args.common)?;
    let folder = journal::folder(args.common.journal.as_deref());
    let observer = progress::observer(args.common.progress);
    refuse_unfinished(&folder, qmp, &*observer)?;
    let untouched =
        |reason, error: &dyn Display| Exit::new(Status::AtSource, reason, error).with(UNTOUCHED);
    let mut attached = QemuSource::attach_allowing(qmp, &args.options.shared.allowed())
        .map_err(|error| not_attached(&error))?;
    attached
        .check_mode(args.mode())
        .map_err(|e| untouched(Reason::Unsupported, &e))?;
    // After attaching: without the right to trace the probe fails, too.
    require_dirty_log(args.mode())?;
    let keeping =
        |error: io::Error| untouched(Reason::Journal, &format!("keeping a journal: {error}"));
    let page = JournalFile::for_qemu::<SourceEntry>(&folder, &attached.notes().identity)
        .map_err(keeping)?;
    // By its process: the socket may have had another name then.
    if let Some(entry) = page.read::<SourceEntry>().map_err(keeping)?
        && resume::may_live(&entry.qemu.identity).map_err(|error| unknown(&error, page.path()))?
    {
        return Err(unfinished(&entry, page.path()));
    }
    // What lives on behind it is let go before it: it waits for the journal.
    let _guard = Guard::start(page.path()).map_err(|error| {
        let what = format!("starting the guard process: {error}");
        untouched(Reason::System, &what)
    })?;
    let mut guest = attached;
    let plaintext = args.common.security.plaintext;
    let (options, notes) = (args.options.clone(), guest.notes());
    let journal = SourceJournal::new(page, remote.clone(), plaintext, options, notes, None);
    let journal = Arc::new(journal);
    let undoing = Arc::clone(&journal);
    guest
        .on_undo_record(move |record| undoing.set_undo(record))
        .map_err(keeping)?;
    security::warn_of_readable_key(&args.common.security, &*observer);
    args.options.shared.warn_of_devices(&*observer);
    let too_late = Arc::new(TooLate::new(cancel.clone(), observer));
    let watch = Watch {
        cancel,
        observer: too_late.observer(),
        journal: Arc::new(Keeping {
            journal: Arc::clone(&journal),
            too_late: Arc::clone(&too_late),
        }),
    };
    let moved = migrate(&mut guest, remote, &args.engine_options(), &watch);
    too_late.end();
    let left = (!guest.has_ended()).then(|| guest.pid());
    let status = told(args, moved, journal.path(), left, |outcome| match outcome {
        Outcome::AtSource | Outcome::Stopped if guest.has_ended() => Some((Holder::Nobody, ENDED)),
        Outcome::AtSource if guest.is_stuck_in_postmigrate() => Some((
            Holder::Source,
            "the guest is paused at the source, as it was; but this old QEMU calls that \
             'postmigrate' now, and does not move it again before it has run (QMP command 'cont')",
        )),
        Outcome::AtSource if !guest.describe().running => Some((
            Holder::Source,
            "the guest is paused at the source, as it was",
        )),
        _ => None,
    });
    // Before the guard, which looks into the journal.
    drop((watch, guest, journal));
    status
}

/// What is known of a guest that could not be attached to.
fn not_attached(error: &AttachError) -> Exit {
    let status = if error.may_be_handed_over() {
        Status::Paused
    } else {
        Status::AtSource
    };
    let next = if error.found_guest() {
        UNTOUCHED
    } else {
        "nothing was changed"
    };
    Exit::new(status, Reason::NotAttached, error).with(next)
}

/// A guest whose last migration is not over is none to be moved, whatever QEMU
/// calls its state.
fn refuse_unfinished(folder: &Path, qmp: &Path, observer: &dyn Observer) -> Result<(), Exit> {
    let looking = |error: &dyn Display| {
        let what = format!("looking for an earlier migration of this guest: {error}");
        Exit::new(Status::AtSource, Reason::Journal, what).with("nothing was changed")
    };
    if journal::is_hidden(folder) {
        // Who may not look there may not look into QEMU either: that is said then.
        return Ok(());
    }
    let found = journal::find::<SourceEntry>(folder, Some(qmp)).map_err(|e| looking(&e))?;
    for (path, entry) in found {
        if !resume::may_live(&entry.qemu.identity).map_err(|error| unknown(&error, &path))?
            || !resume::may_listen(qmp, &entry.qemu.identity)
        {
            continue;
        }
        // Who is at work on it, or undoes it, may be done soon.
        let page = JournalFile::lock(&path).map_err(|error| {
            Exit::new(Status::Paused, Reason::Unfinished, error)
                .with("nothing was changed by this one")
        })?;
        if let Some(entry) = page.read::<SourceEntry>().map_err(|e| looking(&e))? {
            undo_interrupted(&page, &entry, observer)?;
        }
    }
    Ok(())
}

/// A migration whose engine and guard were both killed before the guest was handed
/// over is undone: nobody else will do that.
fn undo_interrupted(
    page: &JournalFile,
    entry: &SourceEntry,
    observer: &dyn Observer,
) -> Result<(), Exit> {
    if entry.engine.stage != SourceStage::Owned {
        return Err(unfinished(entry, page.path()));
    }
    let stopped = entry.qemu.undo.stopped == Some(true);
    match guard::bring_back(page, entry) {
        Ok(undone) if !stopped || guard::is_over(&undone) => {
            observer.notice(
                "an earlier migration of this guest was interrupted before it was handed over: \
                 what it had changed in QEMU is undone",
            );
            Ok(())
        }
        Ok(_) => Err(unfinished(entry, page.path())),
        Err(error) => {
            let again = resume::command::<SourceEntry>(page.path());
            let next = format!(
                "an earlier migration of this guest was interrupted before it was handed over, and \
                 could not be undone: the guest may be stopped. Once that is mended: {again}"
            );
            Err(Exit::new(Status::Paused, Reason::Unfinished, error)
                .with(next)
                .held_by(Holder::Source)
                .resumed_by(again))
        }
    }
}

fn unfinished(entry: &SourceEntry, path: &Path) -> Exit {
    let again = resume::command::<SourceEntry>(path);
    if entry.engine.stage == SourceStage::Owned {
        let what = "an earlier migration of this guest was interrupted before it was handed over, \
                    and it does not run again";
        let next = format!("let it run again, and then move it anew: {again}");
        return Exit::new(Status::Paused, Reason::Unfinished, what)
            .with(next)
            .held_by(Holder::Source)
            .resumed_by(again);
    }
    let what = "this guest has been handed over already, and that migration is not over";
    Exit::new(Status::Paused, Reason::Unfinished, what)
        .with(format!("go on with it: {again}"))
        .resumed_by(again)
}

/// Whether an earlier migration was of this guest cannot be found out.
fn unknown(error: &dyn Display, path: &Path) -> Exit {
    let next = format!(
        "this guest may have been handed over already, as {} tells, so nothing was changed. Remove \
         that file only if you know that it was not",
        path.display()
    );
    Exit::new(Status::Paused, Reason::Journal, error).with(next)
}

/// Goes on with a migration.
fn go_on(args: &Migrate, file: Option<&Path>, cancel: Cancel) -> Result<Status, Exit> {
    let (page, mut entry) = resume::find::<SourceEntry>(&args.common, file)?;
    if entry.engine.stage == SourceStage::Done || has_arrived(&page, &entry) {
        return settle(args, &page, &entry);
    }
    let plaintext = entry.plaintext && resume::is_same_host(args.address.as_ref(), &entry.address);
    let args = &args.clone().resumed(entry.options.clone(), plaintext);
    let remote = security::remote_again(args, &entry.address, entry.security.take())?;
    let cannot =
        |reason, error: &dyn Display| resume::cannot::<SourceEntry>(reason, error, page.path());
    let taken =
        QemuSource::reattach(&entry.qemu).map_err(|error| cannot(Reason::NotAttached, &error))?;
    // A guest that comes back must not be left stopped if this engine is killed.
    let guard = taken.is_some().then(|| Guard::start(page.path()));
    let _guard = guard.transpose().map_err(|error| {
        let what = format!("starting the guard process: {error}");
        cannot(Reason::System, &what)
    })?;
    let mut guest: Box<dyn SourceGuest> = match taken {
        Some(guest) => Box::new(guest),
        None if entry.engine.stage == SourceStage::Owned => {
            page.remove();
            let what = "the guest was never handed over, and the source's QEMU has ended: the \
                        guest has ended with it";
            let exit = Exit::new(Status::AtSource, Reason::QemuEnded, what);
            return Err(exit.held_by(Holder::Nobody));
        }
        None => Box::new(
            RamFileSource::open(&entry.qemu).map_err(|error| cannot(Reason::Memory, &error))?,
        ),
    };
    let left = Some(entry.qemu.identity.pid);
    let (engine, options) = (entry.engine, args.options.clone());
    let plaintext = args.common.security.plaintext;
    let written = Some(engine.clone());
    let journal = SourceJournal::new(
        page,
        remote.clone(),
        plaintext,
        options,
        entry.qemu,
        written,
    );
    let journal = Arc::new(journal);
    let observer = progress::observer(args.common.progress);
    security::warn_of_readable_key(&args.common.security, &*observer);
    let watch = Watch {
        cancel,
        observer,
        journal: Arc::<SourceJournal>::clone(&journal),
    };
    let moved = resume_migrate(&mut *guest, engine, &remote, &args.engine_options(), &watch);
    let ended = guest.has_ended();
    let left = left.filter(|_| !ended);
    let status = told(args, moved, journal.path(), left, |outcome| match outcome {
        Outcome::AtSource | Outcome::Stopped if ended => Some((Holder::Nobody, ENDED)),
        _ => None,
    });
    // Before the guard, which looks into the journal.
    drop((watch, guest, journal));
    status
}

/// Whether the destination's journal is beside the source's, on the same machine, and
/// says that nothing is needed from the source any more. Nobody is at work on it: it
/// goes, for there is nobody left to tell.
fn has_arrived(page: &JournalFile, entry: &SourceEntry) -> bool {
    let handed_over = matches!(
        entry.engine.stage,
        SourceStage::Committed | SourceStage::HandedOver
    );
    let Some(folder) = page.path().parent().filter(|_| handed_over) else {
        return false;
    };
    let whole = |there: &DestinationEntry| {
        there.engine.id == entry.engine.id && there.engine.stage == DestinationStage::Complete
    };
    let Ok(found) = journal::find::<DestinationEntry>(folder, None) else {
        return false;
    };
    let Some((path, _)) = found.into_iter().find(|(_, there)| whole(there)) else {
        return false;
    };
    // It may have changed, or somebody may wait there to be asked.
    let Ok(there) = JournalFile::lock(&path) else {
        return false;
    };
    let is_whole = matches!(there.read::<DestinationEntry>(), Ok(Some(there)) if whole(&there));
    if is_whole {
        there.remove();
    }
    is_whole
}

/// The destination has everything: gives back what was taken from the source's QEMU.
fn settle(args: &Migrate, page: &JournalFile, entry: &SourceEntry) -> Result<Status, Exit> {
    let taken = QemuSource::reattach(&entry.qemu)
        .map_err(|error| resume::cannot::<SourceEntry>(Reason::NotAttached, &error, page.path()))?;
    if let Some(mut guest) = taken
        && let Err(error) = guest.release()
    {
        progress::observer(args.common.progress)
            .notice(&format!("the guest has moved, but: {error}"));
    }
    page.remove();
    streams::to_stdout("the guest is at the destination, with all of its pages\n");
    Ok(Status::Moved)
}

/// Tells what came of it. `left` is the process of a QEMU that is left here without
/// its guest if that has moved. `special` knows who has the guest and what to say in
/// some cases.
fn told(
    args: &Migrate,
    moved: Result<Account, MigrateError>,
    journal: &Path,
    left: Option<u32>,
    special: impl Fn(Outcome) -> Option<(Holder, &'static str)>,
) -> Result<Status, Exit> {
    let error = match moved {
        Ok(account) => {
            let what = match account.guest_state {
                GuestState::Running => "the guest runs at the destination",
                GuestState::Paused => "the guest is at the destination, paused as it was",
                GuestState::ShutDown => {
                    "the guest has shut itself down at the destination: it needs nothing more from \
                     here, and must not be continued here"
                }
            };
            finish(&account, &args.common, what, left.map(end_qemu).as_deref())?;
            return Ok(Status::of(account.guest_state));
        }
        Err(error) => error,
    };
    let again = resume::command::<SourceEntry>(journal);
    let mut holder = Holder::from(error.outcome);
    let next = match (special(error.outcome), error.outcome) {
        (Some((known, next)), _) => {
            holder = known;
            next.to_owned()
        }
        (None, Outcome::AtSource) if !error.aftermath.is_empty() => {
            format!("the guest runs on at the source. To have the rest put back in QEMU: {again}")
        }
        (None, Outcome::AtSource) => "the guest runs on at the source".to_owned(),
        // A destination's word, which is none of a source.
        (None, Outcome::Stopped | Outcome::Declined) => format!(
            "the guest is the source's, and paused. Nothing of it is lost. To let it go on: \
             {again}; or the QMP command 'cont'"
        ),
        (None, Outcome::Paused) => format!(
            "the guest is paused here, and may run at the destination already: never continue it \
             by hand. Nothing of it is lost. {} To go on, start 'hikkoshi receive --resume' at the \
             destination, if none waits there, and here: {again}",
            resume::GIVE_UP,
        ),
        (None, Outcome::Lost) => {
            "the guest is lost: it had run at the destination, and unless it was shut down there, \
             what it did since is lost with it. What is here is a moment of the past, and must not \
             be continued on disks of a later one: end this QEMU, and boot the guest anew from its \
             disks"
                .to_owned()
        }
        (None, Outcome::AtDestination) => format!(
            "the guest runs at the destination: never continue it here. Pages that it may lack \
             are here still, and nothing of it is lost as long as its QEMU lives there. {} To \
             resume, start at the destination, unless it waits there: hikkoshi receive --resume \
             --qmp PATH (also if it has ended there and said that everything is here: it tells this \
             side so); and here: {again}",
            resume::GIVE_UP,
        ),
    };
    let reason = match (holder, error.outcome) {
        (Holder::Nobody, Outcome::AtSource | Outcome::Stopped) => Reason::QemuEnded,
        _ => Reason::from(&error.cause),
    };
    let exit = Exit::new(error.outcome.into(), reason, &error)
        .with(next)
        .held_by(holder);
    // A journal that is left is what there is to resume.
    Err(match error.outcome {
        Outcome::Lost => exit,
        Outcome::AtSource if error.aftermath.is_empty() => exit,
        _ => exit.resumed_by(again),
    })
}

/// Keeps the journal, and sees to it that who wants to stop later is told that
/// it is too late.
#[derive(Debug)]
struct Keeping {
    journal: Arc<SourceJournal>,
    too_late: Arc<TooLate>,
}

impl Journal<SourceRecord> for Keeping {
    fn record(&self, record: &SourceRecord) -> io::Result<()> {
        self.journal.record(record)?;
        if record.stage == SourceStage::Committed {
            self.too_late.begin();
        }
        Ok(())
    }

    fn close(&self) {
        self.journal.close();
    }
}

/// Refuses a mode that this machine's kernel cannot do, before anybody is
/// bothered.
pub fn require_dirty_log(mode: Mode) -> Result<(), Exit> {
    if mode == Mode::Postcopy {
        return Ok(());
    }
    hikkoshi_qemu::dirty_log_support().map_err(|error| {
        Exit::new(Status::AtSource, Reason::Unsupported, error)
            .with("the guest runs on at the source; --mode postcopy needs no dirty log")
    })
}

/// What is to be done about a QEMU whose guest has moved.
fn end_qemu(pid: u32) -> String {
    format!(
        "next: end the source's QEMU (process {pid}), with the QMP command 'quit' for instance. It \
         is paused ('postmigrate') and is not needed any more; never let it go on ('cont')"
    )
}

/// Tells and writes the account, and then what is to be done `next`.
pub fn finish(
    account: &hikkoshi_engine::Account,
    common: &Common,
    what: &str,
    next: Option<&str>,
) -> Result<(), Exit> {
    if common.json.as_deref() != Some("-".as_ref()) {
        let readable = report::readable(account, common.verbose);
        let next = next.map_or_else(String::new, |next| format!("{next}\n"));
        streams::to_stdout(&format!("{what}\n{readable}{next}"));
    }
    if let Some(path) = &common.json {
        report::write_json(account, path).map_err(|error| {
            // The move itself is done; the status must say so.
            Exit::new(
                Status::Moved,
                Reason::AccountNotWritten,
                format!(
                    "{what}, but writing the account to {}: {error}",
                    path.display()
                ),
            )
        })?;
    }
    Ok(())
}
