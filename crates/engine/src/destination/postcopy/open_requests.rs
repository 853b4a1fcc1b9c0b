//! What is requested from the source: each missing host page once, huge pages a bounded number at
//! a time, and how long each request takes.

use hikkoshi_linux::monotonic_ns;
use hikkoshi_pages::{Page, PageBitmap, PageRange, RamLayout};

use crate::destination::error::DestinationFailure;
use crate::destination::postcopy::huge::HugePages;
use crate::destination::postcopy::missing_pages::MissingPages;
use crate::destination::postcopy::request_times::{RequestTime, RequestTimes};
use crate::report::RequestTimeline;

/// The requests of a migration. Shared by the fault threads and the links' receivers.
#[derive(Debug)]
pub(crate) struct OpenRequests {
    /// Host pages that have been requested (or wait for admission), by their first page.
    requested: PageBitmap,
    times: RequestTimes,
    huge: HugePages,
}

impl OpenRequests {
    /// No requests yet, of a guest with this layout whose source sends over `links` background
    /// links.
    pub(crate) fn new(layout: &RamLayout, links: u16) -> Result<Self, DestinationFailure> {
        Ok(Self {
            requested: PageBitmap::empty(layout.pages()),
            times: RequestTimes::new(),
            huge: HugePages::new(layout, links)?,
        })
    }

    /// The huge pages of the guest.
    pub(crate) fn huge(&self) -> &HugePages {
        &self.huge
    }

    /// Nanoseconds on the clock that requests are measured by.
    pub(crate) fn now(&self) -> u64 {
        monotonic_ns()
    }

    /// Requests without a measured latency.
    pub(crate) fn unmeasured(&self) -> u64 {
        self.times.unmeasured()
    }

    /// Whether the missing host page `range`, whose fault was read at `fault_read`, is to be
    /// requested now. If not, it has been requested, waits for admission, or has just arrived.
    pub(crate) fn begin(&self, range: PageRange, fault_read: u64, missing: &MissingPages) -> bool {
        if !self.requested.set(range.start()) {
            return false;
        }
        let Some(huge) = self.huge.size_of(range) else {
            return true;
        };
        let admitted = huge.admission.begin(range.start(), fault_read);
        if !missing.any(range) {
            // It arrived in between, and its receiver may have ended the admission before it began.
            huge.admission.end(range.start());
            return false;
        }
        admitted
    }

    /// The next huge page that is admitted and still missing, and when its fault was read.
    pub(crate) fn next_admitted(
        &self,
        layout: &RamLayout,
        missing: &MissingPages,
    ) -> Option<(PageRange, u64)> {
        self.huge.sizes().find_map(|huge| {
            while let Some((page, fault_read)) = huge.admission.next() {
                let range = layout.host_page_range(page);
                if missing.any(range) {
                    return Some((range, fault_read));
                }
                huge.admission.end(page);
            }
            None
        })
    }

    /// Calls `each` with the ranges to request of a host page: all of it, or what is missing of a
    /// huge page.
    pub(crate) fn ranges(&self, range: PageRange, mut each: impl FnMut(PageRange)) {
        match self.huge.size_of(range) {
            Some(huge) => huge.staging.gaps(range, each),
            None => each(range),
        }
    }

    /// Records when a host page is requested. Call it right before the request is sent.
    pub(crate) fn sent(
        &self,
        range: PageRange,
        fault_read: u64,
        request_sent: u64,
        missing: &MissingPages,
    ) {
        let time = RequestTime {
            fault_read,
            request_sent,
        };
        self.times.note(range.start(), time, missing.bitmap());
    }

    /// Records the latencies of the requested host pages of `pages` pages each in `range`, which
    /// have left the missing set.
    pub(crate) fn answered(
        &self,
        range: PageRange,
        pages: u64,
        page_received: u64,
        installed: u64,
        mut record: impl FnMut(&RequestTimeline),
    ) {
        let lost = self.times.has_lost_requests();
        for host_page in range.chunks(pages) {
            if !self.requested.get(host_page.start()) && !lost {
                continue;
            }
            if let Some(time) = self.times.answered(host_page.start()) {
                let times = RequestTimeline {
                    fault_read: time.fault_read,
                    request_sent: time.request_sent,
                    page_received,
                    installed,
                };
                tracing::trace!(
                    page = host_page.start().index(),
                    fault_read = times.fault_read,
                    request_sent = times.request_sent,
                    page_received,
                    installed,
                    "page requested"
                );
                record(&times);
            }
        }
    }

    /// Calls `each` with the first page of each host page that is requested and has not arrived; a
    /// huge page that waits for admission is not one of them.
    pub(crate) fn each_outstanding(&self, each: &mut dyn FnMut(Page)) {
        self.times.each(each);
    }

    /// All requests were lost with their link, and are made again. When they were made first is
    /// kept: the guest has been waiting since then.
    pub(crate) fn restart(&self, missing: &MissingPages) {
        self.times.lose(missing.bitmap());
        for huge in self.huge.sizes() {
            huge.admission.start_over(|page, fault_read| {
                let time = RequestTime {
                    fault_read,
                    request_sent: fault_read,
                };
                self.times.note(page, time, missing.bitmap());
            });
        }
        self.requested.clear_range(self.requested.all());
    }
}
