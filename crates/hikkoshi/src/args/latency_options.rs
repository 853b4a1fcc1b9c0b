//! Options of both sides about the threads on the path from a page fault to the page.

use clap::Args;
use hikkoshi_engine::Priority;

/// How these threads wait, and before which others they run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(crate) struct LatencyOptions {
    /// Spin instead of sleeping on the path from a page fault to the page
    #[arg(long, hide = true)]
    pub poll: bool,

    /// Do not raise the priority of the threads that handle page faults and requests
    #[arg(long, hide = true)]
    pub no_priority: bool,
}

impl LatencyOptions {
    /// These options, and where one was not given, that of `earlier`.
    #[must_use]
    pub(crate) fn or(&self, earlier: &Self) -> Self {
        Self {
            poll: self.poll || earlier.poll,
            no_priority: self.no_priority || earlier.no_priority,
        }
    }

    /// The priorities of the engine's threads.
    pub(crate) fn priority(&self) -> Priority {
        match self.no_priority {
            true => Priority::OFF,
            false => Priority::ON,
        }
    }
}
