//! Which guests are meant, and how each is reached.

use std::ffi::OsString;
use std::path::Path;

use hikkoshi_libvirt::{DEFAULT_URI, Domain};
use hikkoshi_linux::is_served;
use hikkoshi_qemu::GuestState;
use hikkoshi_qemu::qmp::MonitorSocket;
use hikkoshi_status::ReachedBy;

use crate::args::{DomainArgs, Evacuate, EvacuatedGuest, parse_guest_name};
use crate::journal::absolute;
use crate::machines;
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::Reason;

/// A guest that is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NamedGuest {
    pub(super) name: String,
    pub(super) at: ReachedBy,
}

impl NamedGuest {
    /// Its QMP socket, if it has one.
    pub(super) fn qmp(&self) -> Option<&Path> {
        match &self.at {
            ReachedBy::Qmp(path) => Some(path),
            ReachedBy::Domain(_) => None,
        }
    }

    /// As other commands name a domain.
    pub(super) fn domain(&self) -> DomainArgs {
        match &self.at {
            ReachedBy::Qmp(_) => DomainArgs {
                domain: None,
                connect: DEFAULT_URI.to_owned(),
            },
            ReachedBy::Domain(uri) => DomainArgs {
                domain: Some(self.name.clone()),
                connect: uri.clone(),
            },
        }
    }

    /// The words that name it for `migrate`.
    pub(super) fn words(&self) -> Vec<OsString> {
        match &self.at {
            ReachedBy::Qmp(path) => vec!["--qmp".into(), path.into()],
            ReachedBy::Domain(uri) => vec![
                "--domain".into(),
                self.name.clone().into(),
                "--connect".into(),
                uri.into(),
            ],
        }
    }
}

/// The guests that the command line means, each once, without those for which `has_left` says so:
/// they need not be here any more.
pub(super) fn find(
    args: &Evacuate,
    has_left: impl Fn(&str) -> bool,
) -> Result<Vec<NamedGuest>, Exit> {
    let run = absolute(&args.journals.path());
    let mut found: Vec<NamedGuest> = Vec::new();
    for guest in &args.guests {
        if !has_left(&guest.name) {
            add(&mut found, named(args, &run, guest)?);
        }
    }
    if args.all {
        for name in machines::running(&run).map_err(|error| {
            let what = format!("looking for machines in {}: {error}", run.display());
            failed(&what)
        })? {
            let at = ReachedBy::Qmp(machines::socket(&run, &name));
            add(&mut found, NamedGuest { name, at });
        }
        if let Some(uri) = &args.connect {
            let names = Domain::running(uri)
                .map_err(|error| Exit::caused(ExitStatus::Usage, Reason::NotAttached, &error))?;
            for name in names {
                parse_guest_name(&name)
                    .map_err(|why| failed(&format!("the domain '{name}': {why}")))?;
                let at = ReachedBy::Domain(uri.clone());
                add(&mut found, NamedGuest { name, at });
            }
        }
    }
    found.retain(|guest| !has_left(&guest.name));
    Ok(found)
}

/// Whether a guest that was reached so runs on this host.
pub(super) fn runs_here(name: &str, at: &ReachedBy) -> bool {
    let state = match at {
        ReachedBy::Qmp(path) => GuestState::query(&MonitorSocket::new(path)),
        ReachedBy::Domain(uri) => match Domain::open(uri, name) {
            Ok(domain) => GuestState::query(&domain),
            Err(_) => return false,
        },
    };
    state.is_ok_and(|state| state.running)
}

fn add(found: &mut Vec<NamedGuest>, guest: NamedGuest) {
    if !found.iter().any(|known| known.name == guest.name) {
        found.push(guest);
    }
}

fn named(args: &Evacuate, run: &Path, guest: &EvacuatedGuest) -> Result<NamedGuest, Exit> {
    let name = guest.name.clone();
    let machine = machines::socket(run, &name);
    let at = match (&guest.qmp, &args.connect) {
        (Some(path), _) => ReachedBy::Qmp(absolute(path)),
        (None, _) if is_served(&machine).unwrap_or(false) => ReachedBy::Qmp(machine),
        (None, Some(uri)) => ReachedBy::Domain(uri.clone()),
        (None, None) => {
            return Err(failed(&format!(
                "there is no guest '{name}': no QEMU serves {}; a domain needs --connect URI, and \
                 another QEMU is named as {name}=PATH",
                machine.display()
            )));
        }
    };
    Ok(NamedGuest { name, at })
}

fn failed(what: &str) -> Exit {
    Exit::new(ExitStatus::Usage, Reason::Usage, what).with("nothing was tried")
}
