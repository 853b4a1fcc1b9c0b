//! How the last pages get to the destination.

use std::sync::Arc;

use hikkoshi_dirty::DirtyLog;
use hikkoshi_link::BackgroundSender;

use crate::source::precopy::Precopy;

/// How the last pages get to the destination.
#[derive(Debug)]
pub(crate) enum LastPages {
    /// With the guest stopped.
    Precopy(Box<Precopy>),
    /// After the switch; what the log holds is owed. The links are empty.
    Hybrid(Arc<dyn DirtyLog>, Vec<BackgroundSender>),
    /// After the switch; everything is owed.
    Postcopy(Vec<BackgroundSender>),
}

impl LastPages {
    /// Whether post-copy follows.
    pub(crate) fn is_postcopy(&self) -> bool {
        !matches!(self, Self::Precopy(_))
    }
}
