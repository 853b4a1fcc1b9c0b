//! Options of both sides about the threads on the path from a page fault to the page.

use clap::Args;
use hikkoshi_engine::Priority;

/// How these threads wait, and before which others they run.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct LatencyOptions {
    /// Spin instead of sleeping on the path from a page fault to the page
    #[arg(long, hide = true)]
    pub poll: bool,

    /// Do not raise the priority of the threads that handle page faults and requests
    #[arg(long, hide = true)]
    pub no_priority: bool,
}

impl LatencyOptions {
    /// The priorities of the engine's threads.
    pub(crate) fn priority(&self) -> Priority {
        match self.no_priority {
            true => Priority::OFF,
            false => Priority::ON,
        }
    }
}
