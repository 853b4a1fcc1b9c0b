//! Pages that were sent more than once.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use hikkoshi_pages::PAGE_BYTES;

/// Why a page is sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// See [`Repeats::precopy`].
    Precopy,
    /// See [`Repeats::stale`].
    Stale,
    /// See [`Repeats::host_page`].
    HostPage,
    /// See [`Repeats::resent`].
    Resent,
    /// See [`Repeats::requested`].
    Requested,
}

/// Pages that were sent again for one reason: every sending of a page but its first one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Repeated {
    /// Pages, with their content or as a mark.
    pub pages: u64,
    /// Bytes of their content, without frame headers.
    pub bytes: u64,
}

/// Pages that were sent more than once, by the reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Repeats {
    /// Sent again in pre-copy: the guest had written to them, as the dirty log reported.
    pub precopy: Repeated,
    /// Sent in pre-copy, and again in post-copy, because the guest had written to them.
    pub stale: Repeated,
    /// Sent in pre-copy, and again in post-copy, because the guest had written to another page of
    /// the same host page of the destination, which was dropped as a whole.
    pub host_page: Repeated,
    /// Sent in post-copy, and again after the links were lost: they had not arrived.
    pub resent: Repeated,
    /// Pages of firmware and devices that were sent before *commit*, and also requested.
    pub requested: Repeated,
}

/// Counts [`Repeats`].
#[derive(Debug, Default)]
pub struct RepeatCounters {
    precopy: Counter,
    stale: Counter,
    host_page: Counter,
    resent: Counter,
    requested: Counter,
}

#[derive(Debug, Default)]
struct Counter {
    pages: AtomicU64,
    with_content: AtomicU64,
}

impl RepeatCounters {
    /// Adds `pages` that are sent again, `with_content` of them with their content.
    pub(crate) fn add(&self, why: Repeat, pages: u64, with_content: u64) {
        let counter = match why {
            Repeat::Precopy => &self.precopy,
            Repeat::Stale => &self.stale,
            Repeat::HostPage => &self.host_page,
            Repeat::Resent => &self.resent,
            Repeat::Requested => &self.requested,
        };
        counter.pages.fetch_add(pages, Relaxed);
        counter.with_content.fetch_add(with_content, Relaxed);
    }

    /// The counts so far.
    pub fn all(&self) -> Repeats {
        let of = |counter: &Counter| Repeated {
            pages: counter.pages.load(Relaxed),
            bytes: counter
                .with_content
                .load(Relaxed)
                .saturating_mul(PAGE_BYTES),
        };
        Repeats {
            precopy: of(&self.precopy),
            stale: of(&self.stale),
            host_page: of(&self.host_page),
            resent: of(&self.resent),
            requested: of(&self.requested),
        }
    }
}
