//! Drains the guest's block devices. `attach/preflight/pinning.rs` decides whether this is
//! necessary.
//!
//! A block node with `cache.direct` reads by DMA into guest pages that are pinned when
//! the request is submitted: the kernel's dirty log sees the pinning, not the data. A
//! buffered read is copied by a processor, through the page tables of QEMU's process,
//! and is tracked.

use hikkoshi_engine::CancelFlag;
use thiserror::Error;

use crate::attach::preflight::DRAIN;
use crate::qmp::{Client, QmpError};

/// The guest's block devices were not drained. Nothing is lost, but the engine must
/// not copy the pages that it took from the dirty log before.
#[derive(Debug, Error)]
pub(crate) enum DrainError {
    /// The QMP command failed.
    #[error(
        "draining the guest's disks (check that their storage responds, or use --mode postcopy, \
         which does not drain)"
    )]
    Qmp(#[from] QmpError),
}

/// Waits until no block request is in progress. The processors continue to run, but
/// wait where they need QEMU: its main loop holds the big QEMU lock during the drain.
///
/// It takes 1.1 ms on an idle disk with QEMU 7.2 and 10.0.
pub(crate) fn drain(client: &mut Client, cancel: &CancelFlag) -> Result<(), DrainError> {
    client.set_cancel(Some(cancel.clone()));
    let (command, arguments) = DRAIN;
    let drained = client.execute(command, arguments());
    client.set_cancel(None);
    drained?;
    Ok(())
}
