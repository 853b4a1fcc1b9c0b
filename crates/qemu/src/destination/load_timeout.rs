//! How long a device state may take to load.

use std::time::Duration;

/// Longest time for loading the device state. QEMU reads guest memory while it
/// loads. In post-copy each of those pages may have to come over the network
/// first, and QEMU answers no QMP command meanwhile.
pub(super) const LOAD_TIMEOUT: Duration = Duration::from_secs(300);
