//! The monitor of the guest that a command is about.

use std::path::Path;
use std::sync::Arc;

use hikkoshi_libvirt::{Domain, DomainError, resumed_owner};
use hikkoshi_qemu::qmp::{Monitor, MonitorAddress, MonitorSocket};
use hikkoshi_qemu::{MachineOwner, QemuIdentity, RESUME_BY_HAND};

use crate::args::{DomainOptions, NamedGuest, Receive};
use crate::commands::resume_command::quoted;
use crate::journal::absolute;
use crate::machines;
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::Reason;

/// The QEMU that the options of `receive` name, if they do.
pub(crate) fn named_destination(args: &Receive) -> Option<NamedGuest> {
    // With --template, the machine is started first.
    let of_template = || {
        let name = args
            .template
            .name
            .as_deref()
            .filter(|_| args.recovery.resume.is_some())?;
        Some(machines::socket(
            &absolute(&args.recovery.journals.path()),
            name,
        ))
    };
    let socket = args.guest.qmp.clone().or_else(of_template);
    socket.map(NamedGuest::Socket)
}

/// The monitor of a guest. Looks for a domain, but does not connect to a socket yet.
///
/// # Errors
/// There is no such domain that runs.
pub(crate) fn find(
    guest: &NamedGuest,
    options: &DomainOptions,
) -> Result<Arc<dyn Monitor>, DomainError> {
    Ok(match guest {
        NamedGuest::Socket(path) => Arc::new(MonitorSocket::new(path)),
        NamedGuest::Domain { name, uri } => {
            let domain = Domain::open(uri, name)?;
            Arc::new(domain.with(options.move_options()))
        }
    })
}

/// The monitor of the guest that the options name.
///
/// # Errors
/// They name none, or no domain that runs.
pub(crate) fn named(
    guest: Option<NamedGuest>,
    options: &DomainOptions,
) -> Result<Arc<dyn Monitor>, Exit> {
    let guest = guest.ok_or_else(|| {
        // The command line requires it.
        Exit::new(ExitStatus::Usage, Reason::Usage, "--qmp PATH is missing")
    })?;
    find(&guest, options).map_err(|error| {
        Exit::caused(ExitStatus::AtSource, Reason::NotAttached, &error).with("nothing was changed")
    })
}

/// The guest whose monitor is at this address, for people: a domain's name, or the socket.
pub(crate) fn shown(address: &MonitorAddress) -> String {
    match address {
        MonitorAddress::Socket(path) => path.display().to_string(),
        MonitorAddress::Domain { name, .. } => name.clone(),
    }
}

/// How people call the guest of this QEMU: by the name that its owner has given it, or by the
/// socket of one without a name.
pub(crate) fn guest_name(qemu: &QemuIdentity) -> String {
    let name = qemu.name.clone();
    name.unwrap_or_else(|| shown(&qemu.monitor))
}

/// The monitor at the address in a journal. Does not connect yet.
pub(crate) fn at_address(address: &MonitorAddress) -> Arc<dyn Monitor> {
    at_source(address, &DomainOptions::default())
}

/// The monitor of a source with these options, at the address in its journal. Does not connect yet.
pub(crate) fn at_source(address: &MonitorAddress, options: &DomainOptions) -> Arc<dyn Monitor> {
    match address {
        MonitorAddress::Socket(path) => Arc::new(MonitorSocket::new(path)),
        MonitorAddress::Domain { uri, uuid, name } => {
            let domain = Domain::known(uri, uuid, name);
            Arc::new(domain.with(options.move_options()))
        }
    }
}

/// The monitor of a destination whose journal is in `folder`, at the address in it. Does not
/// connect yet.
pub(crate) fn received(address: &MonitorAddress, folder: &Path) -> Arc<dyn Monitor> {
    match address {
        MonitorAddress::Socket(path) => Arc::new(MonitorSocket::new(path)),
        MonitorAddress::Domain { uri, uuid, name } => {
            Arc::new(Domain::known(uri, uuid, name).received_in(folder))
        }
    }
}

/// Removes the files in `folder` that are left of a destination that is a domain: its guest does
/// not run here and will not, because its migration was given up, or it was lost.
pub(crate) fn discard_received(address: &MonitorAddress, folder: &Path) {
    if let MonitorAddress::Domain { uuid, .. } = address {
        hikkoshi_libvirt::discard(uuid, folder);
    }
}

/// How a person resumes a guest that is paused at the source.
pub(crate) fn resume_by_hand(address: &MonitorAddress) -> String {
    match address {
        MonitorAddress::Socket(_) => RESUME_BY_HAND.to_owned(),
        MonitorAddress::Domain { uri, uuid, .. } => {
            format!(
                "'virsh --connect {} resume {}'",
                quoted(uri.as_ref()),
                quoted(uuid.as_ref())
            )
        }
    }
}

/// What continues to create this domain from the pipe at `path`.
pub(crate) fn owner(qemu: &QemuIdentity, path: &Path) -> Option<Box<dyn MachineOwner>> {
    let running = qemu.description.running;
    match &qemu.monitor {
        MonitorAddress::Socket(_) => None,
        MonitorAddress::Domain { uri, uuid, .. } => resumed_owner(uri, uuid, path, running)
            .map_err(|error| tracing::warn!(%error, "continuing to create the domain"))
            .ok(),
    }
}
