//! How the last pages get to the destination.

use std::sync::Arc;

use hikkoshi_dirty::DirtyLog;
use hikkoshi_link::BackgroundSender;

use crate::source::precopy::{Precopy, RoundRest};

/// How the last pages get to the destination.
#[derive(Debug)]
pub(crate) enum LastPages {
    /// In a last round, with the guest paused.
    Precopy(Box<Precopy>),
    /// After the switchover: the pages in the dirty log, and those that the last round has not
    /// sent. The links are empty.
    Hybrid(Arc<dyn DirtyLog>, Vec<BackgroundSender>, RoundRest),
    /// After the switchover: all pages.
    Postcopy(Vec<BackgroundSender>),
}

impl LastPages {
    /// Whether post-copy follows.
    pub(crate) fn is_postcopy(&self) -> bool {
        !matches!(self, Self::Precopy(_))
    }
}
