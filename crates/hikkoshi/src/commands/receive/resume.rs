//! `hikkoshi receive --resume`.

use std::path::Path;
use std::sync::Arc;

use hikkoshi_engine::{CancelFlag, DestinationGuest, resume_receive};
use hikkoshi_handover::{DestinationRecord, DestinationStage, Outcome};
use hikkoshi_qemu::{ExitedDestination, SharedReattachInfo};

use super::outcome::{self, DestinationLeft};
use super::run::{Announcement, ListeningDestination};
use super::shown_name;
use crate::args::Receive;
use crate::commands::find_journal::{find, is_same_host};
use crate::commands::guest_state;
use crate::commands::monitor;
use crate::commands::reattach_destination::reattach;
use crate::commands::receive_answer::BUSY;
use crate::commands::resume_command::{cannot_resume, not_resumed};
use crate::journal::{DestinationEntry, JournalFile};
use crate::machines::WaitingMark;
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::Reason;
use crate::output::streams;
use crate::security::Acceptor;
use crate::status::RunPublisher;

/// Continues the migration in the journal `file`, or the one that the options lead to.
pub(super) fn resume(
    args: &Receive,
    file: Option<&Path>,
    cancel: CancelFlag,
    publisher: &RunPublisher,
) -> Result<ExitStatus, Exit> {
    let named = monitor::named_destination(args);
    let (file, mut entry) = find::<DestinationEntry>(named.as_ref(), &args.recovery, file)
        .inspect_err(|exit| {
            if args.is_in_session() && exit.reason() == Reason::JournalBusy {
                streams::to_stdout(&format!("{BUSY}\n"));
            }
        })?;
    let plaintext = entry.plaintext && is_same_host(args.listen.as_ref(), &entry.address);
    let security = args.security.with_plaintext(plaintext);
    let identity = entry.qemu.identity.clone();
    let folder = file.path().parent().unwrap_or(Path::new("")).to_owned();
    let ResumedMachine {
        mark,
        guest,
        reattach_info,
    } = ResumedMachine::reattach(&file, &entry, &folder)?;
    let listen = args.listen.as_ref().unwrap_or(&entry.address).clone();
    let not_resumed = not_resumed::<DestinationEntry>(file.path());
    let acceptor =
        Acceptor::resumed(&security, &listen, entry.security.take()).map_err(&not_resumed)?;
    let options = args.guest.options_over(&entry.options);
    let protection = (acceptor, security.plaintext);
    let listening =
        ListeningDestination::for_resumed(args, publisher, options, protection, &listen)
            .map_err(&not_resumed)?;
    let journal = listening
        .journals()
        .create(file, reattach_info, mark.clone());
    publisher.set_guest(&shown_name::of_resumed(args, &folder, &identity));
    publisher.set_monitor(&identity.monitor);
    let state = match guest.has_ended() {
        true => guest_state::without_qemu(entry.engine.stage),
        false => guest_state::at(entry.engine.stage),
    };
    let ready = listening.ready(guest, Arc::new(journal));
    let announced = ready.announce(Announcement::Resumed(state.to_owned()))?;
    let ended = announced.receive(cancel, |guest, listener, options, control| {
        resume_receive(&mut **guest, entry.engine, listener, options, control)
    });
    let has_ended = ended.guest().has_ended();
    let is_gone = |error| outcome::is_gone(error, has_ended);
    if ended.result.as_ref().is_err_and(is_gone) {
        monitor::discard_received(&identity.monitor, &folder);
    }
    let left = match (&mark, &ended.result) {
        (Some(mark), Err(error)) if error.outcome == Outcome::AtSource && mark.end_or_log() => {
            DestinationLeft::Ends
        }
        _ => DestinationLeft::Used,
    };
    let path = ended.journal().path().to_owned();
    ended.report(&path, has_ended, left)
}

/// The machine of a migration that is resumed, or what stands for it if its QEMU has ended.
struct ResumedMachine {
    /// That of a machine that was started for the guest.
    mark: Option<Arc<WaitingMark>>,
    guest: Box<dyn DestinationGuest>,
    reattach_info: SharedReattachInfo,
}

impl ResumedMachine {
    /// Attaches to the machine in the journal. Its mark is locked before, so that no daemon ends
    /// the machine meanwhile.
    fn reattach(file: &JournalFile, entry: &DestinationEntry, folder: &Path) -> Result<Self, Exit> {
        let identity = &entry.qemu.identity;
        let cannot = |error: &dyn std::error::Error| {
            cannot_resume::<DestinationEntry>(Reason::NotAttached, error, file.path())
        };
        let no_mark = |error: std::io::Error| {
            cannot_resume::<DestinationEntry>(Reason::Journal, &error, file.path())
        };
        let mark = WaitingMark::of_journal(&identity.monitor, folder).map_err(no_mark)?;
        let attached = reattach(&entry.qemu, folder).map_err(|error| cannot(&error))?;
        let mark = match mark {
            Some(mark) => mark
                .resumed(attached.is_some(), entry.engine.stage)
                .map_err(no_mark)?,
            None => None,
        };
        let (guest, reattach_info): (Box<dyn DestinationGuest>, _) = match attached {
            Some(guest) => {
                if may_miss_pages(&entry.engine) {
                    guest.check_userfault().map_err(|error| {
                        let path = file.path().display();
                        Exit::caused(ExitStatus::Unfinished, Reason::Memory, &error).with(format!(
                            "nothing was changed, and the journal {path} is unchanged"
                        ))
                    })?;
                }
                let reattach_info = guest.reattach_info();
                (Box::new(guest), reattach_info)
            }
            None if entry.engine.stage == DestinationStage::Running => {
                monitor::discard_received(&identity.monitor, folder);
                return Err(ended_while_running(file, entry));
            }
            // Reports to the source that the guest never ran here, or that no page is needed.
            None => {
                let monitor = monitor::received(&identity.monitor, folder);
                let exited =
                    ExitedDestination::new(&entry.qemu, monitor).map_err(|error| cannot(&error))?;
                let reattach_info = SharedReattachInfo::new(entry.qemu.clone());
                (Box::new(exited), reattach_info)
            }
        };
        Ok(Self {
            mark: mark.map(Arc::new),
            guest,
            reattach_info,
        })
    }
}

/// The guest has run in a QEMU that has ended.
fn ended_while_running(file: &JournalFile, entry: &DestinationEntry) -> Exit {
    let pid = entry.qemu.identity.pid;
    let why = entry.qemu.why_ended();
    let why = why.map(|why| format!(": {why}")).unwrap_or_default();
    let what = format!("the destination's QEMU (process {pid}) has ended{why}");
    let path = file.path().display();
    let left = format!("The journal {path} was kept for inspection: remove it then");
    outcome::qemu_ended(&entry.engine, what, &left)
}

/// Whether pages of the guest may be missing.
fn may_miss_pages(record: &DestinationRecord) -> bool {
    let exists = matches!(
        record.stage,
        DestinationStage::Ready | DestinationStage::Running
    );
    exists && record.postcopy
}
