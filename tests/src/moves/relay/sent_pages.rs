//! What has passed the relay of the guest's memory: a count of the pages that were sent more than
//! once, beside the source's own.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hikkoshi_account::{Repeated, Repeats};
use hikkoshi_wire::{Frame, HEADER_LEN, ToDestination};

/// Bytes of a page.
const PAGE_BYTES: u64 = 4096;

/// The pages that a source has sent, as far as they have reached the relay.
#[derive(Clone, Debug, Default)]
pub struct SentPages(Arc<Mutex<Passed>>);

#[derive(Debug, Default)]
struct Passed {
    /// A list of stale pages has ended: what follows is sent in post-copy.
    is_postcopy: bool,
    /// The source has connected again.
    is_resumed: bool,
    pages: Vec<Page>,
    repeats: Repeats,
    /// Pages that were sent with their content when they were sent first.
    first_with_content: u64,
    precopy_bytes: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Page {
    in_precopy: bool,
    in_postcopy: bool,
}

impl SentPages {
    /// Counts a frame of the source.
    pub(super) fn add(&self, frame: &Frame, control: Option<&ToDestination>) {
        let mut passed = self.lock();
        match control {
            Some(ToDestination::DiscardEnd) => passed.is_postcopy = true,
            Some(ToDestination::ResumeRequest { .. }) => passed.is_resumed = true,
            _ => {}
        }
        let (range, with_content) = match *frame {
            Frame::Pages { range } | Frame::Compressed { range, .. } => (range, true),
            Frame::Zeros { range } => (range, false),
            _ => return,
        };
        for page in range {
            passed.page(usize::try_from(page.index()).unwrap(), with_content);
        }
        if !passed.is_postcopy {
            passed.precopy_bytes += (HEADER_LEN + frame.payload_len()) as u64;
        }
    }

    /// Pages that were sent more than once. In a post-copy whose links were lost, the source has
    /// sent some pages that have not arrived here.
    pub fn repeats(&self) -> Repeats {
        self.lock().repeats
    }

    /// Pages that were sent with their content when they were sent first.
    pub fn first_with_content(&self) -> u64 {
        self.lock().first_with_content
    }

    /// Bytes of pages and marks in pre-copy, with the headers of frames.
    pub fn precopy_bytes(&self) -> u64 {
        self.lock().precopy_bytes
    }

    fn lock(&self) -> MutexGuard<'_, Passed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Passed {
    fn page(&mut self, number: usize, with_content: bool) {
        if self.pages.len() <= number {
            self.pages.resize(number + 1, Page::default());
        }
        let page = &mut self.pages[number];
        let before = *page;
        match self.is_postcopy {
            false => page.in_precopy = true,
            true => page.in_postcopy = true,
        }
        let repeated: &mut Repeated = match (before.in_precopy, before.in_postcopy) {
            (_, true) if self.is_resumed => &mut self.repeats.resent,
            (_, true) => &mut self.repeats.requested,
            (true, false) if self.is_postcopy => &mut self.repeats.stale,
            (true, false) => &mut self.repeats.precopy,
            (false, false) => {
                self.first_with_content += u64::from(with_content);
                return;
            }
        };
        repeated.pages += 1;
        repeated.bytes += if with_content { PAGE_BYTES } else { 0 };
    }
}
