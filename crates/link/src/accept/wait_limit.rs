//! When a listener stops waiting for a source that has not come.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Why a source is not waited for any longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WaitEnded {
    /// It took too long.
    #[error("no source has come within {} s", .0.as_secs())]
    Late(Duration),
    /// Nobody can come: the invitation's reader is gone.
    #[error(
        "whoever read the invitation on standard output is gone, and no source has come: keep the \
         pipe open until it has"
    )]
    NobodyInvited,
}

/// Asked again and again while no source has come: whether to stop, and why.
#[derive(Clone)]
pub struct WaitLimit(Arc<dyn Fn() -> Option<WaitEnded> + Send + Sync>);

impl WaitLimit {
    /// Stops when `over` says so. It must not block.
    pub fn until(over: impl Fn() -> Option<WaitEnded> + Send + Sync + 'static) -> Self {
        Self(Arc::new(over))
    }

    /// Whether it is over.
    pub(crate) fn over(&self) -> Option<WaitEnded> {
        (self.0)()
    }
}

impl Default for WaitLimit {
    fn default() -> Self {
        Self::until(|| None)
    }
}

impl fmt::Debug for WaitLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WaitLimit")
    }
}
