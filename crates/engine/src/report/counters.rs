//! Counters that several threads add to.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use hikkoshi_account::{Bytes, Compressed, Compression, Drains, Pages};
use hikkoshi_link::{CompressionCounters, MethodCounters};
use hikkoshi_wire::CompressionMethod;

use crate::report::RepeatCounters;

/// Pages and bytes so far. Each field has one or more writers and only grows; readers need a recent
/// value only, so `Relaxed` is enough.
#[derive(Debug, Default)]
pub struct Counters {
    /// See [`Pages::precopy`].
    pub precopy: AtomicU64,
    /// See [`Pages::zero`].
    pub zero: AtomicU64,
    /// Pages that were sent more than once (source).
    pub repeats: RepeatCounters,
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
    /// See [`Compression`].
    pub compression: Arc<CompressionCounters>,
    /// See [`Bytes::device_state`].
    pub device_state_bytes: AtomicU64,
    /// See
    /// [`RequestStatistics::requests_under_way`](crate::report::RequestStatistics::requests_under_way).
    pub requests_under_way: AtomicU64,
    /// Bytes of the disks' connections, from the source to the destination, without framing.
    pub disk_bytes: AtomicU64,
    /// Bytes of the disks' connections, from the destination to the source: answers of its machine.
    pub disk_answer_bytes: AtomicU64,
    /// See [`Drains::count`].
    drains: AtomicU64,
    /// Nanoseconds in all drains.
    drain_total: AtomicU64,
    /// Nanoseconds in the longest drain.
    drain_max: AtomicU64,
}

impl Counters {
    /// Received pages and marks, each in its own unit: grows whenever anything has arrived.
    pub fn received(&self) -> u64 {
        let all = [
            &self.zero,
            &self.precopy_bytes,
            &self.urgent_bytes,
            &self.background_bytes,
            &self.disk_bytes,
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

    /// Adds a drain that took `time`.
    pub(crate) fn add_drain(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.drains.fetch_add(1, Relaxed);
        self.drain_total.fetch_add(nanos, Relaxed);
        self.drain_max.fetch_max(nanos, Relaxed);
    }

    /// The drains; `None` if there were none.
    pub fn drains(&self) -> Option<Drains> {
        let millis =
            |nanos: &AtomicU64| Duration::from_nanos(nanos.load(Relaxed)).as_secs_f64() * 1e3;
        let count = self.drains.load(Relaxed);
        (count > 0).then(|| Drains {
            count,
            total_ms: millis(&self.drain_total),
            max_ms: millis(&self.drain_max),
        })
    }

    /// Bytes of the disks' connections, from the source to the destination; `None`: none.
    pub fn disk_bytes(&self) -> Option<u64> {
        Some(self.disk_bytes.load(Relaxed)).filter(|bytes| *bytes > 0)
    }

    /// What was compressed; `None`: nothing.
    pub fn compression(&self) -> Option<Compression> {
        let of = |method| {
            let counters: &MethodCounters = self.compression.of(method);
            let content_bytes = counters.content();
            (content_bytes > 0).then(|| Compressed {
                content_bytes,
                sent_bytes: counters.compressed(),
            })
        };
        let compression = Compression {
            lz4: of(CompressionMethod::Lz4),
            zstd: of(CompressionMethod::Zstd),
        };
        (compression != Compression::default()).then_some(compression)
    }

    /// Requests for which nothing was left to send.
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
            disks: None,
        }
    }
}
