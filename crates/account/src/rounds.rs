//! Rounds of pre-copy, and times without links. Times are milliseconds since the migration began on
//! this side.

use serde::{Deserialize, Serialize};

/// A round of pre-copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Round {
    /// From 1.
    pub round: u32,
    /// When it began.
    pub begun_ms: u64,
    /// When everything had arrived. `None`: it is in progress.
    pub ended_ms: Option<u64>,
    /// Pages that were sent with their content.
    pub pages: u64,
    /// Pages that were sent as a mark.
    pub zero: u64,
    /// Bytes on the links.
    pub bytes: u64,
    /// Pages that were dirty at its end, as it was estimated. `None`: it is in progress.
    pub dirty_pages: Option<u64>,
}

/// A time without links, after the handover.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outage {
    /// When the last sign of the other side arrived, which is before the loss was noticed: data, or
    /// at the source also an acknowledgement of the kernel there. On unix sockets: when this engine
    /// noticed it.
    pub from_ms: u64,
    /// If it began before this engine did, so that `from_ms` is 0: how long before. The engine
    /// before was killed or had given up, and has recorded ten times a second that pages were sent
    /// or arrived, so that this is at most about a tenth of a second too long. 0 with `from_ms` 0:
    /// it has left no recording, and the outage is counted from this engine's start.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub before_ms: u64,
    /// When the links were up again. `None`: they are not.
    pub to_ms: Option<u64>,
    /// While they are not: until when this engine tries to replace them. `None`: without a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<u64>,
}

impl Outage {
    /// How long it lasted, in milliseconds. `None`: it lasts.
    pub fn lasted_ms(&self) -> Option<u64> {
        self.to_ms.map(|to| self.lasts_ms(to))
    }

    /// How long it lasted, in milliseconds; if it lasts, how long until `at_ms`.
    pub fn lasts_ms(&self, at_ms: u64) -> u64 {
        let own = self.to_ms.unwrap_or(at_ms).saturating_sub(self.from_ms);
        own.saturating_add(self.before_ms)
    }
}

#[allow(clippy::trivially_copy_pass_by_ref)] // As serde calls it.
fn is_zero(value: &u64) -> bool {
    *value == 0
}
