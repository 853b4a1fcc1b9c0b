//! `hikkoshi migrate --resume`.

use std::path::Path;
use std::sync::Arc;

use error_reporter::Report;
use hikkoshi_engine::{CancelFlag, SourceGuest, resume_migrate};
use hikkoshi_handover::{DestinationStage, SourceStage};
use hikkoshi_qemu::{QemuSource, RamFileSource};

use super::outcome;
use super::run::{AttachedGuest, AttachedSource};
use crate::args::{Migrate, MigrateOptions, NamedGuest};
use crate::commands::find_journal::{find, is_same_host};
use crate::commands::guard::qemu_ended;
use crate::commands::monitor;
use crate::commands::print_result::print_moved;
use crate::commands::resume_command::{cannot_resume, not_resumed};
use crate::journal::{self, DestinationEntry, JournalFile, SourceEntry};
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::{Holder, Reason};
use crate::output::streams;
use crate::security;
use crate::status::RunPublisher;

/// Another engine has received what became of the domain's configuration.
const NOT_KNOWN: &str = "whether the domain was made persistent at the destination is not known \
                         here any more: see 'virsh dominfo' there";

/// Continues the migration in the journal `file`, or the one that the options lead to.
pub(super) fn resume(
    args: &Migrate,
    file: Option<&Path>,
    cancel: CancelFlag,
    publisher: &RunPublisher,
) -> Result<ExitStatus, Exit> {
    let (file, mut entry) =
        find::<SourceEntry>(NamedGuest::source(args).as_ref(), &args.recovery, file)?;
    let options = args.options_over(&entry.options);
    if entry.engine.stage == SourceStage::Done {
        // The engine before knew what the destination had reported.
        let unknown = entry.options.domain.persistent.then_some(NOT_KNOWN);
        return complete(args, &options, &file, &entry, unknown);
    }
    if let Some(there) = completed_here(&file, &entry) {
        return complete(args, &options, &file, &entry, there.left_to_do.as_deref());
    }
    let plaintext = entry.plaintext && is_same_host(args.address.as_ref(), &entry.address);
    let security = args.security.with_plaintext(plaintext);
    let address = args.address.as_ref().unwrap_or(&entry.address);
    let remote = security::resumed_remote(&security, address, entry.security.take())
        .map_err(not_resumed::<SourceEntry>(file.path()))?;
    let path = file.path().to_owned();
    let cannot =
        |reason, error: &dyn std::error::Error| cannot_resume::<SourceEntry>(reason, error, &path);
    let monitor = monitor::at_source(&entry.qemu.identity.monitor, &options.domain);
    let attached = QemuSource::reattach(&entry.qemu, Arc::clone(&monitor))
        .map_err(|error| cannot(Reason::NotAttached, &error))?;
    let (guest, info) = match attached {
        Some(guest) => {
            let info = guest.reattach_info();
            (AttachedGuest::Qemu(Box::new(guest)), info)
        }
        None if entry.engine.stage == SourceStage::Owned => {
            file.remove();
            let ended = qemu_ended(entry.qemu.why_ended().as_deref());
            let what = format!("{ended}; it was never handed over");
            let exit = Exit::new(ExitStatus::AtSource, Reason::QemuEnded, what);
            return Err(exit.held_by(Holder::Nobody));
        }
        None => {
            let files =
                RamFileSource::open(&entry.qemu).map_err(|error| cannot(Reason::Memory, &error))?;
            (AttachedGuest::Files(Box::new(files)), entry.qemu)
        }
    };
    let record = entry.engine;
    let attached = AttachedSource {
        args,
        publisher,
        options,
        remote,
        security,
        monitor,
        guest,
        info,
        file,
        record: Some(record.clone()),
        auto: None,
    };
    let run = attached.begin(|reason, error| cannot(reason, error))?;
    run.run(cancel, |guest, remote, options, control| {
        resume_migrate(guest, record, remote, options, control)
    })
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
    options: &MigrateOptions,
    file: &JournalFile,
    entry: &SourceEntry,
    left_to_do: Option<&str>,
) -> Result<ExitStatus, Exit> {
    let identity = &entry.qemu.identity;
    let monitor = monitor::at_source(&identity.monitor, &options.domain);
    let mut attached = QemuSource::reattach(&entry.qemu, Arc::clone(&monitor))
        .map_err(|error| cannot_resume::<SourceEntry>(Reason::NotAttached, &error, file.path()))?;
    if let Some(guest) = &mut attached
        && let Err(error) = guest.release()
    {
        let error = Report::new(&error);
        streams::notice(&format!("the guest has moved, but: {error}"));
    }
    let quit = outcome::end_qemu(attached.as_mut(), &*monitor, options, identity, left_to_do);
    // Otherwise this command can be repeated: nothing else is left to do.
    if quit.as_ref().is_none_or(|quit| quit.source_quit) || entry.engine.stage != SourceStage::Done
    {
        file.remove();
    }
    // Or it has shut down there: the journal does not tell.
    let what = "the guest has moved to the destination, which needs nothing more from here";
    print_moved(&args.output, what, quit.as_ref())
}
