//! Starts a migration: checks the guest, and finds what it is sent to.

use std::io;
use std::sync::Arc;

use error_reporter::Report;
use hikkoshi_engine::{CancelFlag, Mode, migrate};
use hikkoshi_link::tls::TlsClient;
use hikkoshi_link::{Address, KeptRequest, Remote};
use hikkoshi_qemu::qmp::{Monitor, MonitorAddress};
use hikkoshi_qemu::{AttachError, Excludes, QemuIdentity, QemuSource};

use super::run::{AttachedGuest, AttachedSource};
use super::{auto, unfinished};
use crate::args::{Migrate, NamedGuest, RequestedMode};
use crate::commands::cluster_guest;
use crate::commands::find_journal::may_exist;
use crate::commands::journal_link;
use crate::commands::kernel_support::require_dirty_log;
use crate::commands::monitor;
use crate::journal::{JournalFile, SourceEntry};
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::{Holder, Reason};
use crate::security;
use crate::status::RunPublisher;

/// The guest does what it did, whatever that was.
pub(super) const UNCHANGED: &str = "nothing was changed";

/// Where the guest is to go.
pub(super) enum Destination<'a> {
    /// To this receiver.
    Receiver(Remote),
    /// To the one that a `hikkoshi daemon` starts for this name, because of a certificate.
    Named {
        name: &'a str,
        daemon: &'a Address,
        /// With this side's certificate.
        client: TlsClient,
    },
}

/// The destination on the command line.
pub(super) fn destination(args: &Migrate) -> Result<Destination<'_>, Exit> {
    if let (Some(name), Some(daemon)) = (&args.name, &args.address) {
        return Ok(Destination::Named {
            name,
            daemon,
            client: security::certified(daemon, &args.security)?,
        });
    }
    security::remote(args.to.as_ref(), args.address.as_ref(), &args.security)
        .map(Destination::Receiver)
}

/// What the guest is sent to.
struct Receiver {
    remote: Remote,
    /// How the daemon was asked for it. It ends with this, unless the guest is on its way.
    _request: Option<KeptRequest>,
}

impl Destination<'_> {
    /// The receiver. A daemon starts it now.
    fn receiver(&self, cancel: &CancelFlag) -> Result<Receiver, Exit> {
        let (remote, request) = match self {
            Self::Receiver(remote) => (remote.clone(), None),
            Self::Named {
                name,
                daemon,
                client,
            } => {
                let (remote, request) =
                    security::invited_by_certificate(name, daemon, client, cancel)?;
                (remote, Some(request))
            }
        };
        Ok(Receiver {
            remote,
            _request: request,
        })
    }
}

/// Starts a migration.
pub(super) fn start(
    args: &Migrate,
    destination: &Destination<'_>,
    cancel: CancelFlag,
    publisher: &RunPublisher,
) -> Result<ExitStatus, Exit> {
    let monitor = monitor::named(NamedGuest::source(args), &args.moved_domain)?;
    let folder = args.recovery.journals.path();
    if !args.allow.allow_managed {
        let (qmp, domain) = match monitor.address() {
            MonitorAddress::Socket(path) => (Some(path.as_path()), ""),
            MonitorAddress::Domain { name, .. } => (None, name.as_str()),
        };
        cluster_guest::refuse(&folder, qmp, domain)?;
    }
    let observer = publisher.observer();
    unfinished::check_folder(&folder, &*monitor, &*observer)?;
    // A daemon starts a machine for the guest, so it is asked when it is known that the guest can
    // be moved. But measuring the line to it comes before the mode, and that before attaching.
    let mut receiver = None;
    let mut chosen = None;
    if args.mode == Some(RequestedMode::Auto) {
        if matches!(destination, Destination::Named { .. }) {
            check_movable(args, &monitor)?;
        }
        let found = receiver.insert(destination.receiver(&cancel)?);
        chosen = auto::choose(args, &found.remote, &cancel, &*observer)?;
    }
    let args = chosen.as_ref().map_or(args, |chosen| &chosen.args);
    if let Some(measured) = chosen
        .as_ref()
        .and_then(|chosen| chosen.working_set.clone())
    {
        publisher.set_working_set(measured);
    }
    let options = args.options();
    let phases = args.engine_options(&options).phases();
    let mut guest = QemuSource::attach_for(Arc::clone(&monitor), &args.allow.allowed(), phases)
        .map_err(|error| not_attached(&error))?;
    // After attaching, which reports a missing right to trace. The check fails without it.
    require_dirty_log(phases)?;
    let notices = guest.choose_disks(&args.disks.selection());
    let notices = notices.map_err(|error| {
        Exit::caused(ExitStatus::AtSource, Reason::NotAttached, &error).with(UNCHANGED)
    })?;
    for notice in notices {
        observer.notice(&notice);
    }
    let info = guest.reattach_info();
    let file = journal_file(args, &info.identity)?;
    let receiver = match receiver {
        Some(receiver) => receiver,
        None => destination.receiver(&cancel)?,
    };
    args.allow.warn(&*observer);
    if let Some(note) = guest.vlan_note() {
        observer.notice(&note);
    }
    let attached = AttachedSource {
        args,
        publisher,
        options,
        remote: receiver.remote.clone(),
        security: args.security.clone(),
        monitor,
        guest: AttachedGuest::Qemu(Box::new(guest)),
        info,
        file,
        record: None,
        auto: chosen.as_ref().map(|chosen| &chosen.report),
    };
    let failed =
        |reason, error: &io::Error| Exit::new(ExitStatus::AtSource, reason, error).with(UNCHANGED);
    attached.begin(failed)?.run(cancel, migrate)
}

/// The locked journal of a new migration.
fn journal_file(args: &Migrate, identity: &QemuIdentity) -> Result<JournalFile, Exit> {
    let keeping = |error: io::Error| {
        let what = format!("creating the journal: {}", Report::new(&error));
        Exit::new(ExitStatus::AtSource, Reason::Journal, what).with(UNCHANGED)
    };
    let folder = args.recovery.journals.path();
    let file = JournalFile::for_qemu::<SourceEntry>(&folder, identity).map_err(keeping)?;
    // The journal is found by the process: the socket may have had another name then.
    let entry = file.read::<SourceEntry>();
    if let Some(entry) = entry.map_err(|error| unfinished::cannot_tell(&error, file.path()))?
        && may_exist(&entry.qemu.identity)
            .map_err(|error| unfinished::cannot_tell(&error, file.path()))?
    {
        return Err(unfinished::refuse(&entry, file.path()));
    }
    if let Some(link) = &args.recovery.journal_link {
        journal_link::make::<SourceEntry>(link, &file).map_err(keeping)?;
    }
    Ok(file)
}

/// Checks that the guest can be moved in some mode.
fn check_movable(args: &Migrate, monitor: &Arc<dyn Monitor>) -> Result<(), Exit> {
    let allowed = args.allow.allowed();
    match QemuSource::attach_for(Arc::clone(monitor), &allowed, Mode::Hybrid) {
        Err(error) if error.excludes() == Excludes::AllModes => Err(not_attached(&error)),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Where the guest is if it could not be attached to.
fn not_attached(error: &AttachError) -> Exit {
    if error.has_moved() {
        return Exit::caused(ExitStatus::Usage, Reason::NotAttached, error)
            .with(UNCHANGED)
            .held_by(Holder::Destination);
    }
    let status = if error.may_be_handed_over() {
        ExitStatus::Unfinished
    } else {
        ExitStatus::AtSource
    };
    let of_mode = |obstacle: &AttachError| obstacle.excludes() != Excludes::AllModes;
    let reason = if error.all().iter().all(of_mode) {
        Reason::Unsupported
    } else {
        Reason::NotAttached
    };
    Exit::caused(status, reason, error).with(UNCHANGED)
}
