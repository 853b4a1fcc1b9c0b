//! Pages that were sent more than once.

use serde::{Deserialize, Serialize};

/// Pages that were sent more than once, by the reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repeats {
    /// Sent again in pre-copy: the guest had written to them.
    pub precopy: Repeated,
    /// Sent in pre-copy, and again in post-copy: the guest had written to them.
    pub stale: Repeated,
    /// Sent in pre-copy, and again in post-copy: the guest had written to another page of the same
    /// host page of the destination.
    pub host_page: Repeated,
    /// Sent in post-copy, and again after the links were lost.
    pub resent: Repeated,
    /// Pages of firmware and devices that were sent before *commit*, and also requested.
    pub requested: Repeated,
}

/// Pages that were sent again for one reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repeated {
    /// Every sending of a page but its first one, with its content or as a mark.
    pub pages: u64,
    /// Bytes of content in these, without frame headers.
    pub bytes: u64,
}
