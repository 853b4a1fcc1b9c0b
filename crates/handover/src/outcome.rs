//! Where the guest is when a migration did not succeed.

/// Where the guest is after a migration that did not succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// At the source, as it was before; or ended with its machine there.
    AtSource,
    /// At the source, and it should run there, but could not be made to. Nothing
    /// is lost.
    Stopped,
    /// Paused on both hosts, and it has run nowhere since the source stopped
    /// it, as far as this side can tell. Nothing is lost.
    Paused,
    /// At the destination, which has run it since and may lack pages of it: it
    /// runs there on what it has. Nothing is lost, but only the destination may
    /// ever run it again: what the source has is a moment of the past.
    AtDestination,
    /// At the source: the destination never ran it and never will. But the source
    /// may not have heard that, and keeps it paused until it has.
    Declined,
    /// Nowhere: the destination has run it, and its machine ended before all
    /// pages were there. What the source has is a moment of the past.
    Lost,
}
