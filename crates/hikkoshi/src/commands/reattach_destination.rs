//! Reattaches to the destination's machine of a journal.

use std::path::Path;

use hikkoshi_qemu::{DestinationReattachInfo, QemuDestination, ReattachError};

use super::monitor;

/// The machine; `None` if its QEMU has ended. `folder` is that of its journal.
///
/// # Errors
/// See [`ReattachError`].
pub(super) fn reattach(
    info: &DestinationReattachInfo,
    folder: &Path,
) -> Result<Option<QemuDestination>, ReattachError> {
    let address = &info.identity.monitor;
    let owner = |pipe: &_| monitor::owner(&info.identity, pipe);
    QemuDestination::reattach(info, monitor::received(address, folder), owner)
}
