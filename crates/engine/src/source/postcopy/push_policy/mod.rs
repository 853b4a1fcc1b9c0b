//! The right pages first: in what order background links push what is owed.
//!
//! 1. **Read-ahead** (`streams.rs`): what the guest is likely to ask for next.
//! 2. **Hot first** (`heat.rs`): what it wrote often in pre-copy.
//! 3. **Follow** (`walk.rs`): outwards from the last urgent page, onwards
//!    first, then what is before it.
//!
//! The urgent thread says what it has learnt *after* its page has left, in a
//! table of atomics (`ahead.rs`), and rings for a pusher only if all that could
//! help are asleep (`wakeup.rs`). It never waits for a pusher, and nothing here
//! decides who sends a page: that is the claim's business alone, so whatever
//! order these things are seen in, no page is lost or sent twice.
//!
//! Each link finds its way by itself (`route.rs`), with a cursor of its own,
//! and stays out of the others' stretches.

mod access_streams;
mod loom_models;
mod read_ahead;
mod route;
mod wakeup;
mod walk;

pub(crate) use access_streams::{AccessStreams, RequestPosition};
pub(crate) use route::{Next, Route};

use std::time::Duration;

use hikkoshi_pages::Page;

use crate::sync::{AtomicU64, Ordering};
use access_streams::Advice;
use read_ahead::ReadAheadTable;
use wakeup::Wakeup;

/// What the threads of post-copy tell each other about the order.
#[derive(Debug)]
pub(crate) struct PushPolicy {
    read_ahead: ReadAheadTable,
    wakeup: Wakeup,
    /// Where each link is. Read by the others to stay out of its way.
    positions: Box<[AtomicU64]>,
}

/// A link that has not begun.
const NOWHERE: u64 = u64::MAX;

impl PushPolicy {
    pub(crate) fn new(links: usize) -> Self {
        Self {
            read_ahead: ReadAheadTable::new(),
            wakeup: Wakeup::new(links),
            positions: (0..links).map(|_| AtomicU64::new(NOWHERE)).collect(),
        }
    }

    /// The guest has just been sent what is before `next`: where it is likely
    /// to go on. For the urgent thread.
    pub(crate) fn urgent_upto(&self, next: Page) {
        self.read_ahead.urgent_upto(next);
    }

    /// Publishes what to read ahead, and wakes a pusher if one sleeps. For the
    /// urgent thread, after its page has left; never waits.
    pub(crate) fn read_ahead(&self, advice: &Advice) {
        if self.read_ahead.publish(advice) {
            self.wakeup.wake_one();
        }
    }

    /// Pusher `link` has nothing to do: sleeps until there is something to
    /// read ahead, or for `time`.
    pub(crate) fn sleep(&self, link: usize, time: Duration) {
        self.wakeup.sleep(link, time, || self.read_ahead.is_empty());
    }

    /// Wakes everybody, because it is over.
    pub(crate) fn wake_all(&self) {
        self.wakeup.wake_all();
    }

    fn set_position(&self, link: usize, page: Page) {
        if let Some(position) = self.positions.get(link) {
            position.store(page.index(), Ordering::Relaxed);
        }
    }

    /// Whether another link than `link` is in the `pages` from `from` on.
    fn is_taken(&self, link: usize, from: Page, pages: u64) -> bool {
        self.positions.iter().enumerate().any(|(other, position)| {
            let at = position.load(Ordering::Relaxed);
            other != link && at >= from.index() && at - from.index() < pages
        })
    }
}
