//! Working sets from the time of each page's last write.

/// The working set of each window that ends now, and the pages by their last interval.
///
/// A window of `m` intervals that ends with interval `k` has as many different pages as there are
/// pages whose last write was in an interval later than `k - m`. So it is enough to know, for each
/// interval, how many pages were written in it *last*. This is the working set of Denning's model
/// (P. J. Denning, "The Working Set Model for Program Behavior", CACM 11(5), 1968).
#[derive(Debug, Clone)]
pub(crate) struct Recency {
    /// The number of pages whose last interval this is, by interval; number 0 is not used.
    by_last: Vec<u64>,
    /// For each length of a window: the number of different pages in it.
    different: Vec<u64>,
}

impl Recency {
    /// For so many lengths.
    pub(crate) fn new(lengths: usize) -> Self {
        Self {
            by_last: vec![0],
            different: vec![0; lengths],
        }
    }

    /// Begins interval number `now`: 1, then 2, and so on. Every window moves by one interval.
    pub(crate) fn begin(&mut self, now: u16, lengths: &[u32]) {
        self.by_last.push(0);
        for (different, length) in self.different.iter_mut().zip(lengths) {
            let leaves = u32::from(now).checked_sub(*length);
            let leaves = leaves.and_then(|last| self.by_last.get(usize::try_from(last).ok()?));
            *different -= leaves.copied().unwrap_or(0);
        }
    }

    /// A page was written in interval `now`, and before in interval `last` (0: never). Once for
    /// each page and interval.
    pub(crate) fn written(&mut self, last: u16, now: u16, lengths: &[u32]) {
        let gap = match last {
            0 => u32::MAX,
            last => u32::from(now.saturating_sub(last)),
        };
        if last > 0
            && let Some(before) = self.by_last.get_mut(usize::from(last))
        {
            *before -= 1;
        }
        if let Some(pages) = self.by_last.get_mut(usize::from(now)) {
            *pages += 1;
        }
        // A window that has the write before counts this page already.
        for (different, length) in self.different.iter_mut().zip(lengths) {
            if *length > gap {
                break;
            }
            *different += 1;
        }
    }

    /// The number of different pages in the window with the length of this number.
    pub(crate) fn different(&self, length: usize) -> u64 {
        self.different.get(length).copied().unwrap_or(0)
    }
}
