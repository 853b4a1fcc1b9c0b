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
//! Each link chooses its pages itself (`next_pages/`), with a separate cursor, and leaves a huge
//! page to the link that has begun it.

mod access_streams;
mod loom_models;
mod next_pages;
mod outward_cursor;
mod read_ahead;
mod wakeup;

pub(crate) use access_streams::{AccessStreams, RequestPosition};
pub(crate) use next_pages::{Next, NextPages};

use std::time::Duration;

use hikkoshi_pages::PageRange;

use crate::sync::{AtomicU64, Ordering};
use access_streams::Advice;
use read_ahead::ReadAheadTable;
use wakeup::Wakeup;

/// The hints that the threads of post-copy share.
#[derive(Debug)]
pub(crate) struct PushPolicy {
    read_ahead: ReadAheadTable,
    wakeup: Wakeup,
    /// The first page of the huge page that each link has begun last.
    begun: Box<[AtomicU64]>,
}

/// That of a link that has begun none.
const NOWHERE: u64 = u64::MAX;

impl PushPolicy {
    pub(crate) fn new(links: usize) -> Self {
        Self {
            read_ahead: ReadAheadTable::new(),
            wakeup: Wakeup::new(links),
            begun: (0..links).map(|_| AtomicU64::new(NOWHERE)).collect(),
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

    fn begin(&self, link: usize, huge: PageRange) {
        if let Some(begun) = self.begun.get(link) {
            begun.store(huge.start().index(), Ordering::Relaxed);
        }
    }

    /// Whether another link than `link` has begun that huge page.
    fn is_taken(&self, link: usize, huge: PageRange) -> bool {
        let mut others = self.begun.iter().enumerate();
        others.any(|(other, begun)| {
            other != link && begun.load(Ordering::Relaxed) == huge.start().index()
        })
    }
}
