//! `hikkoshi migrate --resume`.

use std::path::Path;
use std::sync::Arc;

use error_reporter::Report;
use hikkoshi_engine::{CancelFlag, MigrateControl, SourceControl, SourceGuest, resume_migrate};
use hikkoshi_handover::{DestinationStage, SourceStage};
use hikkoshi_qemu::{QemuSource, QuitError, RamFileSource};

use super::outcome::{self, SourceMachine};
use crate::args::Migrate;
use crate::commands::find_journal::{find, is_same_host};
use crate::commands::guard::GuardProcess;
use crate::commands::monitor::{self, NamedGuest};
use crate::commands::print_result::print_moved;
use crate::commands::resume_command::{cannot_resume, not_resumed};
use crate::journal::{self, DestinationEntry, JournalFile, SourceEntry, SourceJournal};
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::{Holder, Reason};
use crate::output::report::SourceExtras;
use crate::output::streams;
use crate::security;
use crate::status::Session;

/// Another engine has received what became of the domain's configuration.
const NOT_KNOWN: &str = "whether the domain was made persistent at the destination is not known \
                         here any more: see 'virsh dominfo' there";

/// Continues the migration in the journal `file`, or the one that the options lead to.
pub(super) fn resume(
    args: &Migrate,
    file: Option<&Path>,
    cancel: CancelFlag,
    session: &Session,
) -> Result<ExitStatus, Exit> {
    let (file, mut entry) =
        find::<SourceEntry>(NamedGuest::source(args).as_ref(), &args.recovery, file)?;
    if entry.engine.stage == SourceStage::Done {
        // The engine before knew what the destination had reported.
        let unknown = entry.options.domain.persistent.then_some(NOT_KNOWN);
        return complete(args, &file, &entry, unknown);
    }
    if let Some(there) = completed_here(&file, &entry) {
        return complete(args, &file, &entry, there.left_to_do.as_deref());
    }
    let plaintext = entry.plaintext && is_same_host(args.address.as_ref(), &entry.address);
    let args = &args.clone().resumed(entry.options.clone(), plaintext);
    let remote = security::resumed_remote(args, &entry.address, entry.security.take())
        .map_err(not_resumed::<SourceEntry>(file.path()))?;
    let cannot = |reason, error: &dyn std::error::Error| {
        cannot_resume::<SourceEntry>(reason, error, file.path())
    };
    let address = entry.qemu.identity.monitor.clone();
    let monitor = monitor::at_source(&address, &args.options.domain);
    let mut attached = QemuSource::reattach(&entry.qemu, Arc::clone(&monitor))
        .map_err(|error| cannot(Reason::NotAttached, &error))?;
    let has_ended = attached.is_none();
    let reattach_info = attached
        .as_ref()
        .map_or_else(|| entry.qemu.clone(), QemuSource::reattach_info);
    let mut files;
    let guest: &mut dyn SourceGuest = match &mut attached {
        Some(guest) => guest,
        None if entry.engine.stage == SourceStage::Owned => {
            file.remove();
            let what = "the source's QEMU has ended, and the guest with it: it was never handed \
                        over";
            let exit = Exit::new(ExitStatus::AtSource, Reason::QemuEnded, what);
            return Err(exit.held_by(Holder::Nobody));
        }
        None => {
            files =
                RamFileSource::open(&entry.qemu).map_err(|error| cannot(Reason::Memory, &error))?;
            &mut files
        }
    };
    // If the guest comes back and this engine is killed, the guest must not stay stopped.
    let nameless = reattach_info.identity.nameless_files(&guest.ram());
    let guard =
        (!has_ended || !nameless.is_empty()).then(|| GuardProcess::start(file.path(), &nameless));
    let _guard = guard.transpose().map_err(|error| {
        let error = std::io::Error::other(format!(
            "starting the guard process: {}",
            Report::new(&error)
        ));
        cannot(Reason::System, &error)
    })?;
    let identity = entry.qemu.identity.clone();
    let pid = identity.pid;
    let engine = entry.engine;
    let journal = Arc::new(SourceJournal::new(
        file,
        remote.clone(),
        args.security.plaintext,
        args.options.clone(),
        reattach_info,
        Some(engine.clone()),
    ));
    session.set_guest(&monitor::guest_name(&identity));
    session.set_monitor(&address);
    let observer = session.observer();
    security::warn_of_readable_key(&args.security.certificates, &*observer);
    let control = SourceControl::new();
    session.set_control(&control);
    let watch = MigrateControl {
        cancel,
        control,
        observer,
        journal: Arc::<SourceJournal>::clone(&journal),
    };
    let result = resume_migrate(guest, engine, &remote, &args.engine_options(), &watch);
    let has_ended = guest.has_ended();
    let quits = result.is_ok() && (args.options.quit_source || address.is_owned());
    if let (Ok(_), false, Some(guest)) = (&result, quits, &mut attached) {
        guest.note_moved();
    }
    let left_to_do = result
        .as_ref()
        .ok()
        .and_then(|done| done.left_to_do.as_deref());
    let undefine = args.options.domain.undefine_source;
    let quit = quits.then(|| {
        outcome::quit_source(|| {
            quit_attached(attached.as_mut())?;
            outcome::forget(&*monitor, undefine, left_to_do)
        })
    });
    let guest_now = outcome::guest_now(&result, attached.as_mut());
    drop(attached);
    if quit.as_ref().is_some_and(|quit| quit.source_quit) {
        journal.remove();
    }
    let has_ended = has_ended || matches!(identity.process(), Ok(None));
    let machine = SourceMachine {
        monitor: &address,
        pid: (!has_ended).then_some(pid),
        guest: guest_now,
        ran: identity.description.running,
    };
    let extras = SourceExtras {
        quit: quit.as_ref(),
        auto: None,
    };
    let status = outcome::report(session, result, journal.path(), &machine, extras);
    // Before the guard, which reads the journal.
    drop((watch, journal));
    status
}

/// Ends QEMU; `None`: it has ended.
fn quit_attached(guest: Option<&mut QemuSource>) -> Result<(), QuitError> {
    guest.map_or(Ok(()), QemuSource::quit)
}

/// A destination on this host that has all pages.
struct CompletedHere {
    /// What it has not done.
    left_to_do: Option<String>,
}

/// The destination, if its journal is in the same folder and says that it has all pages, and no
/// process works with that journal. The journal is removed: the source knows.
fn completed_here(file: &JournalFile, entry: &SourceEntry) -> Option<CompletedHere> {
    let handed_over = matches!(
        entry.engine.stage,
        SourceStage::Committed | SourceStage::HandedOver
    );
    let folder = file.path().parent().filter(|_| handed_over)?;
    let is_complete = |there: &DestinationEntry| {
        there.engine.id == entry.engine.id && there.engine.stage == DestinationStage::Complete
    };
    let mut found = journal::find::<DestinationEntry>(folder, None)
        .ok()?
        .into_iter();
    let (path, _) = found.find(|(_, there)| is_complete(there))?;
    // Read again under the lock. A process that holds it is waiting for this side.
    let there = JournalFile::lock(&path).ok()?;
    let read = there.read::<DestinationEntry>().ok()??;
    if !is_complete(&read) {
        return None;
    }
    let left_to_do = monitor::received(&read.qemu.identity.monitor, folder).complete();
    if let Some(what) = &left_to_do {
        streams::notice(what);
    }
    there.remove();
    Some(CompletedHere { left_to_do })
}

/// The destination has all pages: restores what was changed in the source's QEMU.
fn complete(
    args: &Migrate,
    file: &JournalFile,
    entry: &SourceEntry,
    left_to_do: Option<&str>,
) -> Result<ExitStatus, Exit> {
    let address = &entry.qemu.identity.monitor;
    let domain = args.options.domain.clone().or(&entry.options.domain);
    let monitor = monitor::at_source(address, &domain);
    let mut attached = QemuSource::reattach(&entry.qemu, Arc::clone(&monitor))
        .map_err(|error| cannot_resume::<SourceEntry>(Reason::NotAttached, &error, file.path()))?;
    if let Some(guest) = &mut attached
        && let Err(error) = guest.release()
    {
        let error = Report::new(&error);
        streams::notice(&format!("the guest has moved, but: {error}"));
    }
    let quits = args.options.quit_source || entry.options.quit_source || address.is_owned();
    if let (false, Some(guest)) = (quits, &mut attached) {
        guest.note_moved();
    }
    let quit = quits.then(|| {
        outcome::quit_source(|| {
            quit_attached(attached.as_mut())?;
            outcome::forget(&*monitor, domain.undefine_source, left_to_do)
        })
    });
    // Otherwise this command can be repeated: nothing else is left to do.
    if quit.as_ref().is_none_or(|quit| quit.source_quit) || entry.engine.stage != SourceStage::Done
    {
        file.remove();
    }
    // Or it has shut down there: the journal does not tell.
    let what = "the guest has moved to the destination, which needs nothing more from here";
    print_moved(&args.output, what, quit.as_ref())
}
