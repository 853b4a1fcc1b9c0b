//! The order in which background links push unsent pages.
//!
//! 1. **Read-ahead** (`access_streams/`): pages that the guest will probably request
//!    next.
//! 2. **Hot first** (`unsent/write_counts.rs`): pages that were written often in
//!    pre-copy.
//! 3. **The rest** (`outward_cursor.rs`): outwards from the link's first page, first the pages
//!    after it, then those before it.
//!
//! The urgent thread publishes its hints *after* it has sent its page, in a table of
//! atomics (`read_ahead.rs`), and wakes a pusher that sleeps (`wakeup.rs`). It never
//! waits for a pusher. Nothing here decides which thread sends a page; only the claim
//! does. So in whatever order threads see the hints, no page is lost or sent twice.
//!
//! Each link chooses its pages itself (`next_pages/`), with a separate cursor, and avoids
//! the positions of the other links.

mod access_streams;
mod loom_models;
mod next_pages;
mod outward_cursor;
mod read_ahead;
mod wakeup;

pub(crate) use access_streams::{AccessStreams, RequestPosition};
pub(crate) use next_pages::{Next, NextPages};

use std::time::Duration;

use hikkoshi_pages::Page;

use crate::sync::{AtomicU64, Ordering};
use access_streams::Advice;
use read_ahead::ReadAheadTable;
use wakeup::Wakeup;

/// The hints that the threads of post-copy share.
#[derive(Debug)]
pub(crate) struct PushPolicy {
    read_ahead: ReadAheadTable,
    wakeup: Wakeup,
    /// The position of each link, which the other links avoid.
    positions: Box<[AtomicU64]>,
}

/// The position of a link that has not begun.
const NOWHERE: u64 = u64::MAX;

impl PushPolicy {
    pub(crate) fn new(links: usize) -> Self {
        Self {
            read_ahead: ReadAheadTable::new(),
            wakeup: Wakeup::new(links),
            positions: (0..links).map(|_| AtomicU64::new(NOWHERE)).collect(),
        }
    }

    /// Publishes pages to read ahead, and wakes a pusher if one sleeps. For the
    /// urgent thread, after it has sent its page. Never waits.
    pub(crate) fn read_ahead(&self, advice: &Advice) {
        if self.read_ahead.publish(advice) {
            self.wakeup.wake_one();
        }
    }

    /// Sleeps until there are pages to read ahead, or for `time`. For pusher `link`.
    pub(crate) fn sleep(&self, link: usize, time: Duration) {
        self.wakeup.sleep(link, time, || self.read_ahead.is_empty());
    }

    /// Wakes all pushers, because the migration has ended.
    pub(crate) fn wake_all(&self) {
        self.wakeup.wake_all();
    }

    fn set_position(&self, link: usize, page: Page) {
        if let Some(position) = self.positions.get(link) {
            position.store(page.index(), Ordering::Relaxed);
        }
    }

    /// Whether a link other than `link` is in the `pages` from `from` on.
    fn is_taken(&self, link: usize, from: Page, pages: u64) -> bool {
        self.positions.iter().enumerate().any(|(other, position)| {
            let at = position.load(Ordering::Relaxed);
            other != link && at >= from.index() && at - from.index() < pages
        })
    }
}
