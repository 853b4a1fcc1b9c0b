//! The checkpoints of a domain: libvirt's names for dirty bitmaps of its disks, from which backups
//! continue. They do not move.
#![allow(unsafe_code)] // calls libvirt's C library, of which the binding lacks this function

use std::ptr;

use virt::error::Error;
use virt::sys;

use super::Domain;
use crate::DomainError;

impl Domain {
    /// Checks that undefining the domain would not lose checkpoints: libvirt forgets those of a
    /// domain that runs without a question.
    ///
    /// # Errors
    ///
    /// [`DomainError::Checkpoints`], or libvirt does not say.
    pub(super) fn check_no_checkpoints(&self) -> Result<(), DomainError> {
        match self.daemon.ask("its checkpoints", count)? {
            0 => Ok(()),
            checkpoints => Err(DomainError::Checkpoints {
                name: self.name.clone(),
                checkpoints,
            }),
        }
    }
}

fn count(domain: &virt::domain::Domain) -> Result<usize, Error> {
    let domain = domain.as_ptr();
    // SAFETY: the domain is valid as long as its wrapper. Without a place for the list, libvirt
    // only counts (virDomainListAllCheckpoints).
    let count = unsafe { sys::virDomainListAllCheckpoints(domain, ptr::null_mut(), 0) };
    usize::try_from(count).map_err(|_| Error::last_error())
}
