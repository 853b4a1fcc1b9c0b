//! Pages that were sent more than once.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use hikkoshi_account::{Repeated, Repeats};
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
