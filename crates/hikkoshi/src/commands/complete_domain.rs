//! What libvirt is asked for when a domain has its guest with all pages.

use std::path::Path;

use hikkoshi_qemu::QemuIdentity;
use hikkoshi_qemu::qmp::MonitorAddress;

use crate::output::streams;

/// Completes the move of a domain, whose guest is here with all of its pages.
pub(crate) fn complete_domain(identity: &QemuIdentity, folder: &Path) {
    if let MonitorAddress::Domain { uri, uuid, .. } = &identity.monitor
        && let Err(error) = hikkoshi_libvirt::complete(uri, uuid, folder)
    {
        streams::notice(&error);
    }
}
