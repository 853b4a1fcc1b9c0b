//! Counters that several threads add to.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{Bytes, Pages};

/// Pages and bytes so far. Each field has one or more writers and is only
/// ever added to; readers want no more than a recent value, so `Relaxed` is
/// enough.
#[derive(Debug, Default)]
pub struct Counters {
    /// See [`Pages::precopy`].
    pub precopy: AtomicU64,
    /// See [`Pages::zero`].
    pub zero: AtomicU64,
    /// See [`Pages::urgent`].
    pub urgent: AtomicU64,
    /// See [`Pages::background`].
    pub background: AtomicU64,
    /// See [`Bytes::precopy`].
    pub precopy_bytes: AtomicU64,
    /// See [`Bytes::urgent`].
    pub urgent_bytes: AtomicU64,
    /// See [`Bytes::background`].
    pub background_bytes: AtomicU64,
    /// See [`Bytes::device_state`].
    pub device_state_bytes: AtomicU64,
    /// See [`Requests::requests_under_way`](super::Requests::requests_under_way).
    pub requests_under_way: AtomicU64,
}

impl Counters {
    /// Content of pages and marks that have come, each in its own unit: more
    /// than before when anything has.
    pub fn received(&self) -> u64 {
        let all = [
            &self.zero,
            &self.precopy_bytes,
            &self.urgent_bytes,
            &self.background_bytes,
        ];
        all.iter()
            .fold(0, |sum, part| sum.wrapping_add(part.load(Relaxed)))
    }

    /// Adds to one of the fields.
    pub fn add(field: &AtomicU64, amount: u64) {
        field.fetch_add(amount, Relaxed);
    }

    /// The page counts, for a guest of `guest` pages.
    pub fn pages(&self, guest: u64) -> Pages {
        Pages {
            precopy: self.precopy.load(Relaxed),
            zero: self.zero.load(Relaxed),
            urgent: self.urgent.load(Relaxed),
            background: self.background.load(Relaxed),
            guest,
        }
    }

    /// Requests that had nothing left to send.
    pub fn requests_under_way(&self) -> u64 {
        self.requests_under_way.load(Relaxed)
    }

    /// The byte counts.
    pub fn bytes(&self) -> Bytes {
        Bytes {
            precopy: self.precopy_bytes.load(Relaxed),
            urgent: self.urgent_bytes.load(Relaxed),
            background: self.background_bytes.load(Relaxed),
            device_state: self.device_state_bytes.load(Relaxed),
        }
    }
}
