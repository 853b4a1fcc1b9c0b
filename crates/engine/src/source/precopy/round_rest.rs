//! What a round that was ended early leaves.

use hikkoshi_pages::PageRange;

/// What a round that was ended early has not sent; nothing of others.
#[derive(Debug, Default)]
pub(crate) struct RoundRest {
    /// Pages whose log was taken.
    pub(crate) pages: Vec<PageRange>,
    /// Memory whose log was not taken in this round. In the first round, the destination has none
    /// of it.
    pub(crate) unvisited: PageRange,
}
