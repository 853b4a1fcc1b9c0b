//! What the caller passes to control and observe the destination.

use std::fmt;
use std::sync::Arc;

use crate::report::Observer;
use hikkoshi_handover::{DestinationRecord, Journal};
use hikkoshi_linux::CancelFlag;

/// How the caller controls and observes the destination.
#[derive(Clone)]
pub struct ReceiveControl {
    /// Requests to stop.
    pub cancel: CancelFlag,
    /// Receives progress and notices.
    pub observer: Arc<dyn Observer>,
    /// Where the record of the handover is kept.
    pub journal: Arc<dyn Journal<DestinationRecord>>,
}

impl fmt::Debug for ReceiveControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiveControl").finish_non_exhaustive()
    }
}
