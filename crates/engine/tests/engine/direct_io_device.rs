//! A device that writes by direct I/O: its pages are marked in the dirty log
//! when a request is submitted, and not when the data lands.
//!
//! Its requests are as slow as possible: they end only when the device is drained. So a page that
//! is copied without a drain is always stale.

use std::sync::Arc;

use crate::machine::{Machine, Side, stamp};

/// Pages of a request.
const PAGES: u64 = 7;

#[derive(Debug)]
pub(crate) struct DirectDevice {
    machine: Arc<Machine>,
    /// Its first page, and the number of pages.
    first: u64,
    pages: u64,
    /// Pinned, and not written yet.
    pinned: Vec<u64>,
    generation: u64,
}

impl DirectDevice {
    /// A device that reads into the last `pages` pages at the source, with requests for all of them
    /// in flight.
    pub(crate) fn new(machine: &Arc<Machine>, pages: u64) -> Self {
        let all = machine.memory(Side::Source).layout().pages();
        let mut device = Self {
            machine: Arc::clone(machine),
            first: all - pages,
            pages,
            pinned: Vec::new(),
            generation: 1,
        };
        device.pin(0..pages);
        device
    }

    /// Submits a few more requests.
    pub(crate) fn submit(&mut self) {
        let begin = self.generation * PAGES;
        self.pin(begin..begin + PAGES);
    }

    fn pin(&mut self, pages: impl Iterator<Item = u64>) {
        let memory = self.machine.memory(Side::Source);
        for page in pages {
            let page = self.first + page % self.pages;
            memory.pin(page);
            self.pinned.push(page);
        }
    }

    /// Completes all requests.
    pub(crate) fn land(&mut self) {
        let memory = self.machine.memory(Side::Source);
        for page in self.pinned.drain(..) {
            self.generation += 1;
            memory.write_through_file(page, &stamp(page, self.generation));
            self.machine.written_by_device(page, self.generation);
        }
    }
}
