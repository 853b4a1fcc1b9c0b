//! One monitor command through libvirt's library.
#![allow(unsafe_code)] // calls libvirt's C library

use std::ffi::{CStr, CString, c_int};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;

use virt::domain::Domain;
use virt::sys;

/// Lets libvirt execute `json`, and passes QEMU copies of `descriptors`. Returns QEMU's answer,
/// which may be an error of QEMU.
///
/// # Errors
///
/// libvirt's message: the domain does not run, or libvirt is busy with it.
pub(crate) fn execute(
    domain: &Domain,
    json: &str,
    descriptors: &[OwnedFd],
) -> Result<String, String> {
    let json = CString::new(json).map_err(|_| "the command contains a zero byte".to_owned())?;
    let mut numbers: Vec<c_int> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let count = u32::try_from(numbers.len()).map_err(|_| "too many descriptors".to_owned())?;
    let mut result = ptr::null_mut();
    // SAFETY: the domain is valid as long as its wrapper. `json` ends with a zero byte, and
    // `numbers` has `count` open descriptors; libvirt keeps none of these. It writes a string to
    // `result` if it returns 0. Without places for them it returns no descriptors.
    let returned = unsafe {
        sys::virDomainQemuMonitorCommandWithFiles(
            domain.as_ptr(),
            json.as_ptr(),
            count,
            numbers.as_mut_ptr(),
            ptr::null_mut(),
            ptr::null_mut(),
            &raw mut result,
            0,
        )
    };
    if returned < 0 || result.is_null() {
        return Err(virt::error::Error::last_error().message().to_owned());
    }
    // SAFETY: the call succeeded, so this is a string that ends with a zero byte and is ours.
    let answer = unsafe { CStr::from_ptr(result) }
        .to_string_lossy()
        .into_owned();
    // SAFETY: libvirt allocates by malloc, and asks its callers to free the string. It is not used
    // any more.
    unsafe { libc::free(result.cast()) };
    Ok(answer)
}
