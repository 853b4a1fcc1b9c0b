//! What the threads of a session report to the main thread.

use std::io;

use hikkoshi_link::LinkError;
use hikkoshi_linux::Cancel;
use hikkoshi_wire::ToSource;

/// The name of the control link, for events.
pub(crate) const CONTROL: &str = "the control link";

/// What the main thread waits for.
#[derive(Debug)]
pub(crate) enum Event {
    /// The destination said something.
    Message(ToSource),
    /// A link's thread ended.
    LinkEnded(&'static str, LinkError),
    /// Guest memory could not be read.
    RamFailed(io::Error),
    /// A thread that sends pages panicked.
    ThreadDied,
}

/// Whether a migration can still be called off.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CommitState<'a> {
    /// By either side; here, by this flag.
    BeforeCommit(&'a Cancel),
    /// By nobody.
    AfterCommit,
}
