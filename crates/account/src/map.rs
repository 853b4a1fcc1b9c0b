//! What has happened to the guest's memory, by cell.

use serde::{Deserialize, Serialize};

/// A number for each cell, in order. A list is empty where nothing is known: then it counts as
/// zeros.
///
/// At the source `missing` are pages that are not sent yet in post-copy. At the destination, they
/// are not installed yet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Map {
    /// Pages that were sent at least once in pre-copy; at the destination, that have arrived in
    /// pre-copy, and from post-copy on those of them that are neither missing nor have arrived
    /// again. At most the pages of the cell.
    pub sent: Vec<u64>,
    /// Source, in pre-copy: an estimate of the pages that are dirty now, from what the dirty log
    /// had when it was last taken, and the time since.
    pub dirty: Vec<u64>,
    /// Source, in pre-copy: pages that the guest dirties per second, as the dirty log that was
    /// taken last says.
    pub dirty_per_second: Vec<u64>,
    /// Pages of the cells of which `dirty` and `dirty_per_second` are known; of others they are
    /// zero.
    pub rated_pages: u64,
    /// Pages that are missing, in post-copy.
    pub missing: Vec<u64>,
    /// Destination: page requests without an answer.
    pub waiting: Vec<u64>,
    /// Pages that were sent or have arrived because they were requested.
    pub by_request: Vec<u64>,
    /// Pages that were sent or have arrived in post-copy without a request.
    pub background: Vec<u64>,
}

impl Map {
    /// Whether the rates of nearly all of so many `pages` are known: nine tenths. Then they are
    /// those of the guest, and can be compared with one another.
    pub fn is_rated(rated: u64, pages: u64) -> bool {
        pages > 0 && u128::from(rated) * 10 >= u128::from(pages) * 9
    }
}
