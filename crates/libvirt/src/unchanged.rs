//! Checks that libvirt does nothing to a domain while it is moved.
//!
//! libvirt does not know of the move, so it refuses nothing. It can save the domain, take a
//! snapshot or plug a device, as at any time. The destination has the domain as it was when the
//! move began.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use virt::domain::Domain;
use virt::domain_snapshot::DomainSnapshot;
use virt::error::Error;

use crate::DomainError;
use crate::changes;
use crate::daemon::Daemon;
use crate::job;

/// What a domain was like when its move began.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Beginning {
    /// Another one after each start.
    id: Option<u32>,
    /// The migratable XML.
    xml: String,
    /// The names of its snapshots.
    snapshots: Vec<String>,
}

/// The domain as it was when the move began, once that is known.
#[derive(Debug, Default)]
pub(crate) struct Unchanged(Mutex<Option<Beginning>>);

impl Unchanged {
    /// The first call looks at the domain, and refuses what `virsh migrate` refuses. (That also
    /// refuses devices which QEMU cannot move: the QEMU adapter does this. And it refuses domains
    /// with snapshots, which are moved here.) Later ones compare. A
    /// daemon that is being restarted may take as long as `patience`; zero: it is an error.
    ///
    /// # Errors
    ///
    /// [`DomainError::Busy`], [`DomainError::Changed`], or libvirt does not answer.
    pub(crate) fn check(
        &self,
        daemon: &Daemon,
        name: &str,
        patience: Duration,
    ) -> Result<(), DomainError> {
        let name = name.to_owned();
        if ask(daemon, patience, "its jobs", job::is_under_way)? {
            return Err(DomainError::Busy { name });
        }
        let names = |domain: &Domain| {
            let snapshots = domain.list_all_snapshots(0)?;
            let names = snapshots.iter().map(DomainSnapshot::get_name);
            let mut names = names.collect::<Result<Vec<_>, _>>()?;
            names.sort_unstable();
            Ok(names)
        };
        let now = Beginning {
            id: ask(daemon, patience, "its number", |domain| {
                Ok(Domain::get_id(domain))
            })?,
            xml: ask(daemon, patience, "its XML", |domain| {
                domain.get_xml_desc(virt::sys::VIR_DOMAIN_XML_MIGRATABLE)
            })?,
            snapshots: ask(daemon, patience, "its snapshots", names)?,
        };
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(before) = &*kept else {
            *kept = Some(now);
            return Ok(());
        };
        if before.id != now.id {
            let what = "it was started again".to_owned();
            return Err(DomainError::Changed { name, what });
        }
        match changes::first(&before.xml, &now.xml) {
            None if before.snapshots != now.snapshots => {
                let what = "a snapshot was taken or deleted".to_owned();
                Err(DomainError::Changed { name, what })
            }
            None => Ok(()),
            Some(what) => Err(DomainError::Changed { name, what }),
        }
    }
}

fn ask<T: Send + 'static>(
    daemon: &Daemon,
    patience: Duration,
    what: &str,
    question: impl Fn(&Domain) -> Result<T, Error> + Send + Sync + 'static,
) -> Result<T, DomainError> {
    daemon.ask_or(what, patience, question, || None)
}
