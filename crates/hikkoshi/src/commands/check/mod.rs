//! `hikkoshi check`: whether a guest can be moved, and how. Changes nothing.

mod unfinished;

use std::error::Error;
use std::path::Path;

use error_reporter::Report;
use hikkoshi_engine::{CancelFlag, Comparison, OfferedGuest};
use hikkoshi_libvirt::Domain;
use hikkoshi_link::Remote;
use hikkoshi_qemu::qmp::Monitor;
use hikkoshi_qemu::{Checked, DestinationLine, DiskSelection, OfferedMachine};

use crate::args::{AllowSource, Check, DomainArgs};
use crate::commands::cluster_guest;
use crate::commands::print_result::write_result;
use crate::output::check::{CheckReport, readable};
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::Reason;
use crate::output::streams;
use crate::security;

const UNCHANGED: &str = "nothing was changed";

pub(crate) fn run(args: &Check) -> Result<ExitStatus, Exit> {
    if let (true, Some(qmp)) = (args.print_destination, &args.qmp) {
        let line = DestinationLine::for_guest_at(qmp).map_err(|error| not_found(&error))?;
        streams::to_stdout(&line.for_shell());
        return Ok(ExitStatus::Done);
    }
    let remote = args.to.as_ref().map(security::invited).transpose()?;
    let checked = check(&CheckedGuestOf {
        domain: &args.domain,
        qmp: args.qmp.as_deref(),
        allow: &args.allow,
        disks: args.disks.selection(),
    })?;
    let destination = match (&remote, &checked.offer) {
        (None, _) => None,
        (Some(remote), Some(offer)) => {
            let cancel = CancelFlag::new();
            Some(ask(remote, offer, args.allow_cpu_mismatch, &cancel))
        }
        (Some(_), None) => Some(Err(
            "the destination was not asked: the guest's memory cannot be described".to_owned(),
        )),
    };
    let mut obstacles = unfinished::obstacles(args, checked.guest.pid);
    if !args.allow.allow_managed {
        let domain = args.domain.domain.as_deref().unwrap_or_default();
        let (run, qmp) = (args.journals.path(), args.qmp.as_deref());
        obstacles.extend(cluster_guest::obstacle(&run, qmp, domain));
    }
    let written = CheckReport::new(&checked, obstacles, destination.as_ref());
    if args.json.as_deref() != Some("-".as_ref()) {
        streams::to_stdout(&readable(&written));
    }
    if let Some(path) = &args.json {
        write_result(&written, path)?;
    }
    Ok(if written.can_be_moved() {
        ExitStatus::Done
    } else {
        ExitStatus::Failed
    })
}

/// Which guest is checked.
#[derive(Debug)]
pub(crate) struct CheckedGuestOf<'a> {
    pub(crate) domain: &'a DomainArgs,
    pub(crate) qmp: Option<&'a Path>,
    pub(crate) allow: &'a AllowSource,
    /// What is to be done with its disks.
    pub(crate) disks: DiskSelection,
}

/// Checks a guest.
///
/// # Errors
/// Nothing can be found out about it.
pub(crate) fn check(guest: &CheckedGuestOf<'_>) -> Result<Checked, Exit> {
    let allowed = guest.allow.allowed();
    let checked = match (&guest.domain.domain, guest.qmp) {
        (Some(name), _) => {
            let domain = Domain::open(&guest.domain.connect, name).map_err(|e| not_found(&e))?;
            let monitor = domain.monitor().map_err(|error| not_found(&error))?;
            hikkoshi_qemu::check_by(monitor, &allowed, &guest.disks).map(|mut checked| {
                // A domain that cannot be described is one obstacle among others.
                match Monitor::domain(&domain) {
                    Ok(domain) => checked.set_domain(domain, &guest.disks),
                    Err(error) => checked.obstacles.push(error.into()),
                }
                let refused = domain.check_unchanged(None).err();
                checked.obstacles.extend(refused.map(Into::into));
                checked
            })
        }
        (None, Some(qmp)) => hikkoshi_qemu::check(qmp, &allowed, &guest.disks),
        (None, None) => {
            let missing = "--qmp PATH or --domain NAME is missing";
            return Err(Exit::new(ExitStatus::Usage, Reason::Usage, missing));
        }
    };
    checked.map_err(|error| not_found(&error))
}

/// Lets the destination compare.
///
/// # Errors
/// It does not answer, or the disks cannot be offered: for people.
pub(crate) fn ask(
    remote: &Remote,
    offer: &OfferedMachine,
    allow_cpu_mismatch: bool,
    cancel: &CancelFlag,
) -> Result<Comparison, String> {
    // Their marks are removed when the destination has answered.
    let offered = offer
        .disks()
        .map_err(|error| Report::new(&error).to_string())?;
    let guest = OfferedGuest {
        domain: offer.domain.clone(),
        description: offer.description.clone(),
        machine: offer.machine.clone(),
        processors: offer.processors.clone(),
        allow_cpu_mismatch,
        disks: offered.disks.clone(),
    };
    hikkoshi_engine::compare(remote, guest, cancel).map_err(|error| Report::new(&error).to_string())
}

fn not_found(error: &dyn Error) -> Exit {
    Exit::caused(ExitStatus::AtSource, Reason::NotAttached, error).with(UNCHANGED)
}
