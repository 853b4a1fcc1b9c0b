//! What the threads of a session report to the main thread.

use std::io;

use hikkoshi_link::LinkError;
use hikkoshi_linux::CancelFlag;
use hikkoshi_wire::ToSource;

/// The name of the control link, for events.
pub(crate) const CONTROL: &str = "the control link";

/// An event for the main thread.
#[derive(Debug)]
pub(crate) enum SourceSessionEvent {
    /// The destination sent a control message.
    Message(ToSource),
    /// A link ended.
    LinkEnded(&'static str, LinkError),
    /// Guest memory could not be read.
    RamFailed(io::Error),
    /// A thread that sends pages panicked.
    ThreadDied,
}

/// Whether a migration can still be cancelled.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CommitState<'a> {
    /// It can, by either side; here, with this flag.
    BeforeCommit(&'a CancelFlag),
    /// It cannot.
    AfterCommit,
}
