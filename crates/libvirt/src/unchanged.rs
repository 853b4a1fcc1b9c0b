//! Checks that libvirt does nothing to a domain while it is moved.
//!
//! libvirt does not know of the move, so it refuses nothing. It can save the domain, take a
//! snapshot or plug a device, as at any time. The destination has the domain as it was when the
//! move began.

use std::sync::Mutex;
use std::sync::PoisonError;

use virt::domain::Domain;

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
}

/// The domain as it was when the move began, once that is known.
#[derive(Debug, Default)]
pub(crate) struct Unchanged(Mutex<Option<Beginning>>);

impl Unchanged {
    /// The first call looks at the domain, and refuses what `virsh migrate` refuses. (That also
    /// refuses devices which QEMU cannot move: the QEMU adapter does this.) Later ones compare.
    ///
    /// # Errors
    ///
    /// [`DomainError::Busy`], [`DomainError::Snapshots`], [`DomainError::Changed`], or libvirt does
    /// not answer.
    pub(crate) fn check(&self, daemon: &Daemon, name: &str) -> Result<(), DomainError> {
        let name = name.to_owned();
        if daemon.ask("its jobs", job::is_under_way)? {
            return Err(DomainError::Busy { name });
        }
        // Their metadata is the source's, and would not be at the destination: libvirt 9.0 says
        // "cannot migrate domain with N snapshots".
        let snapshots = daemon.ask("its snapshots", |domain| domain.list_all_snapshots(0))?;
        let snapshots = snapshots.len();
        if snapshots > 0 {
            return Err(DomainError::Snapshots { name, snapshots });
        }
        let now = Beginning {
            id: daemon.ask("its number", |domain| Ok(Domain::get_id(domain)))?,
            xml: daemon.xml(virt::sys::VIR_DOMAIN_XML_MIGRATABLE)?,
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
            None => Ok(()),
            Some(what) => Err(DomainError::Changed { name, what }),
        }
    }
}
