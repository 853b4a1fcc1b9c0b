//! Draining the guest's block devices. Whether they need it: `preflight/block.rs`.
//!
//! A block node that is open with `cache.direct` reads by DMA into guest memory
//! whose pages were pinned when the request was submitted: the kernel's dirty
//! log sees the pinning, not the data. A buffered read is copied by a processor,
//! through the page tables of QEMU's process, and is seen.

use hikkoshi_engine::Cancel;
use serde_json::json;
use thiserror::Error;

use crate::qmp::{Client, QmpError};

/// The guest's block devices were not drained. Nothing is lost, but pages that
/// were taken from the dirty log meanwhile must not be copied.
#[derive(Debug, Error)]
pub enum DrainError {
    /// QEMU.
    #[error(
        "draining the guest's disks: {0}; check that the storage behind them answers, or use \
         --mode postcopy, which needs no drain"
    )]
    Qmp(#[from] QmpError),
}

/// Waits until no block request is under way. The processors run on, until they
/// need QEMU: its main loop waits here with the big lock held.
///
/// An empty `transaction` drains all block devices before it does nothing
/// (`qmp_transaction` in QEMU's `blockdev.c`; 1.1 ms on an idle disk with QEMU
/// 7.2 and 10.0).
pub(crate) fn drain(client: &mut Client, cancel: &Cancel) -> Result<(), DrainError> {
    client.set_cancel(Some(cancel.clone()));
    let drained = client.execute("transaction", json!({ "actions": [] }));
    client.set_cancel(None);
    drained?;
    Ok(())
}
