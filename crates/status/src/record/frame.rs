//! The map over time.

use hikkoshi_account::Map;
use serde::{Deserialize, Serialize};

/// The map at one time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    /// When.
    pub at_ms: u64,
    /// The map then.
    pub map: Map,
}
