//! Limits how many huge pages are requested at once.
//!
//! A huge page that is requested takes memory until it is complete. So the number is limited, and
//! further requests wait for admission, in order.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use hikkoshi_pages::Page;
use rustix::event::{EventfdFlags, eventfd};

/// Huge pages that are requested, and those that wait. Each is identified by its first page.
#[derive(Debug)]
pub(crate) struct Admission {
    state: Mutex<State>,
    event: Arc<AdmissionEventFd>,
}

/// Readable when a page may have been admitted.
#[derive(Debug)]
pub(crate) struct AdmissionEventFd(OwnedFd);

impl AdmissionEventFd {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(
            0,
            EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
        )?))
    }

    fn signal(&self) {
        // Can only fail when the counter is full, and then it is readable.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Not readable any more, until the next admission.
    pub(crate) fn clear(&self) {
        let mut counter = [0; 8];
        // Nothing to read: another thread has read it.
        let _ = rustix::io::read(&self.0, &mut counter);
    }
}

impl AsFd for AdmissionEventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[derive(Debug)]
struct State {
    most: usize,
    requested: Vec<Page>,
    /// With the times at which their faults were read, on the caller's clock.
    waiting: VecDeque<(Page, u64)>,
}

impl Admission {
    /// Admits up to `most` pages at once, at least one; `event` becomes readable when a waiting
    /// page is admitted.
    pub(crate) fn new(most: usize, event: Arc<AdmissionEventFd>) -> Self {
        let most = most.max(1);
        Self {
            state: Mutex::new(State {
                most,
                requested: Vec::with_capacity(most),
                // Each waiting page is a waiting thread of the guest: more than this many are
                // possible, but cost an allocation.
                waiting: VecDeque::with_capacity(1024),
            }),
            event,
        }
    }

    /// Whether `page`, whose fault was read at `read`, is admitted now; otherwise it waits. The
    /// caller must check afterwards whether the page has arrived meanwhile, and then call
    /// [`end`](Self::end).
    pub(crate) fn begin(&self, page: Page, read: u64) -> bool {
        let Ok(mut state) = self.state.lock() else {
            return true;
        };
        let now = state.requested.len() < state.most && state.waiting.is_empty();
        if now {
            state.requested.push(page);
        } else {
            state.waiting.push_back((page, read));
        }
        now
    }

    /// `page` has arrived, whether it was requested or not.
    pub(crate) fn end(&self, page: Page) {
        let Ok(mut state) = self.state.lock() else {
            return;
        };
        if let Some(at) = state
            .requested
            .iter()
            .position(|&requested| requested == page)
        {
            state.requested.swap_remove(at);
        } else {
            state.waiting.retain(|&(waiting, _)| waiting != page);
        }
        let turn = state.requested.len() < state.most && !state.waiting.is_empty();
        drop(state);
        if turn {
            self.event.signal();
        }
    }

    /// Removes all pages, requested and waiting. Calls `waited` with those that waited, and when
    /// their faults were read.
    pub(crate) fn start_over(&self, mut waited: impl FnMut(Page, u64)) {
        if let Ok(mut state) = self.state.lock() {
            state.requested.clear();
            for (page, read) in state.waiting.drain(..) {
                waited(page, read);
            }
        }
    }

    /// The next admitted page, and when its fault was read; it counts as requested.
    pub(crate) fn next(&self) -> Option<(Page, u64)> {
        let mut state = self.state.lock().ok()?;
        if state.requested.len() >= state.most {
            return None;
        }
        let (page, read) = state.waiting.pop_front()?;
        state.requested.push(page);
        Some((page, read))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn readable(admission: &Admission) -> bool {
        let mut set = [PollFd::new(&*admission.event, PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut set, Some(&now)).unwrap() == 1
    }

    #[test]
    fn in_order_and_no_more_than_allowed() {
        let admission = Admission::new(2, Arc::new(AdmissionEventFd::new().unwrap()));
        let page = Page::new;
        assert!(admission.begin(page(10), 1) && admission.begin(page(20), 2));
        for (waiting, read) in [(30, 3), (40, 4), (50, 5)] {
            assert!(!admission.begin(page(waiting), read));
        }
        assert_eq!(admission.next(), None);
        assert!(!readable(&admission));
        admission.end(page(20));
        assert!(readable(&admission));
        // Another page is first, although there is room.
        assert!(!admission.begin(page(60), 6));
        admission.event.clear();
        assert!(!readable(&admission));
        // A waiting page arrives without a request.
        admission.end(page(40));
        assert_eq!(admission.next(), Some((page(30), 3)));
        assert_eq!(admission.next(), None);
        admission.end(page(99));
        admission.end(page(10));
        admission.end(page(30));
        assert_eq!(admission.next(), Some((page(50), 5)));
        assert_eq!(admission.next(), Some((page(60), 6)));
        assert_eq!(admission.next(), None);
        admission.end(page(50));
        admission.end(page(60));
        assert!(admission.begin(page(70), 7));
    }
}
