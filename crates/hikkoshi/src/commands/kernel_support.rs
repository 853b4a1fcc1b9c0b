//! What this host's kernel must support.

use hikkoshi_engine::Mode;

use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::Reason;

/// Refuses a mode that this host's kernel does not support, before the destination is
/// contacted.
pub(super) fn require_dirty_log(mode: Mode) -> Result<(), Exit> {
    if mode == Mode::Postcopy {
        return Ok(());
    }
    hikkoshi_qemu::dirty_log_support().map_err(|error| {
        Exit::caused(ExitStatus::AtSource, Reason::Unsupported, &error)
            .with("nothing was changed; --mode postcopy needs no dirty log")
    })
}
