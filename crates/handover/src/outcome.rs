//! Where the guest is after a migration that failed.

/// Where the guest is after a migration that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// At the source, in the state it was in before; or its process has ended
    /// there.
    AtSource,
    /// At the source and paused: it should run there, but resuming it failed.
    /// Nothing is lost.
    Stopped,
    /// Paused on both hosts. As far as this side knows, it has not run since the
    /// source paused it. Nothing is lost.
    Paused,
    /// At the destination, where it has run since the handover. Pages may be
    /// missing there. Nothing is lost, but only the destination may run it again:
    /// the source has a stale snapshot.
    AtDestination,
    /// At the source: the destination never ran it and never will. The source may
    /// not know that yet, and keeps it paused until it does.
    Declined,
    /// Lost: the destination ran it, and its process ended before all pages were
    /// there. The source has a stale snapshot.
    Lost,
}
