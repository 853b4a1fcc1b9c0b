//! A limited number of things at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts what is in progress.
#[derive(Debug, Clone, Default)]
pub(super) struct Places(Arc<AtomicUsize>);

/// One of the places. Dropping it frees it.
#[derive(Debug)]
pub(super) struct Place(Arc<AtomicUsize>);

impl Places {
    /// Takes a place, if fewer than `most` are taken.
    pub(super) fn take(&self, most: usize) -> Option<Place> {
        let place = Place(Arc::clone(&self.0));
        // Dropping the place frees it, also here.
        (self.0.fetch_add(1, Ordering::Relaxed) < most).then_some(place)
    }

    /// Whether no place is taken.
    pub(super) fn are_free(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_free_again() {
        let places = Places::default();
        let first = places.take(2).unwrap();
        let _second = places.take(2).unwrap();
        assert!(places.take(2).is_none());
        drop(first);
        let _third = places.clone().take(2).unwrap();
        assert!(places.take(2).is_none());
    }
}
