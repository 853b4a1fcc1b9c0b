//! Whether libvirt has a job under way with a domain: a save, a dump, a backup, a migration.
#![allow(unsafe_code)] // calls libvirt's C library, because the binding's result is not valid long enough

use std::mem::MaybeUninit;

use virt::domain::Domain;
use virt::error::Error;
use virt::sys;

/// Whether there is one.
///
/// # Errors
///
/// libvirt's error.
pub(crate) fn is_under_way(domain: &Domain) -> Result<bool, Error> {
    let mut info = MaybeUninit::<sys::virDomainJobInfo>::zeroed();
    // SAFETY: the domain is valid as long as its wrapper, and `info` is a place for the structure.
    let returned = unsafe { sys::virDomainGetJobInfo(domain.as_ptr(), info.as_mut_ptr()) };
    if returned < 0 {
        return Err(Error::last_error());
    }
    // SAFETY: a structure of numbers, which was zeroed, and then written by libvirt.
    let info = unsafe { info.assume_init() };
    // A job that has ended is reported by flags only that are not given here.
    Ok(u32::try_from(info.type_).is_ok_and(|kind| {
        kind == sys::VIR_DOMAIN_JOB_BOUNDED || kind == sys::VIR_DOMAIN_JOB_UNBOUNDED
    }))
}
