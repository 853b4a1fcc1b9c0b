//! Errors of adapters that leave a part out.

use thiserror::Error;

/// The adapter copies no disks.
#[derive(Debug, Error)]
#[error("copying the guest's disks: this adapter does not copy disks")]
pub(crate) struct NoDisks;
