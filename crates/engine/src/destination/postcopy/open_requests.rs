//! What is requested from the source: each missing host page once, huge pages a bounded number at
//! a time, and how long each request takes.

use std::time::Instant;

use hikkoshi_linux::monotonic_ns;
use hikkoshi_pages::{Page, PageBitmap, PageRange, RamLayout};

use crate::destination::error::DestinationFailure;
use crate::destination::postcopy::huge::HugePages;
use crate::destination::postcopy::missing_pages::MissingPages;
use crate::destination::postcopy::request_times::{RequestTime, RequestTimes};
use crate::report::RequestTimeline;
use crate::sync::{AtomicU64, Ordering};

/// How long threads take at most that were woken until their fault is read again, in nanoseconds.
const REFAULT_NS: u64 = 100_000_000;

/// The requests of a migration. Shared by the fault threads and the links' receivers.
#[derive(Debug)]
pub(crate) struct OpenRequests {
    /// Host pages that have been requested (or wait for admission), by their first page.
    requested: PageBitmap,
    times: RequestTimes,
    huge: HugePages,
    /// See [`waited_since`](Self::waited_since), in nanoseconds of [`now`](Self::now).
    waited_since: AtomicU64,
    /// Faults that are read until then count from `waited_since`.
    waited_until: AtomicU64,
}

impl OpenRequests {
    /// No requests yet, of a guest with this layout whose source sends over `links` background
    /// links.
    pub(crate) fn new(layout: &RamLayout, links: u16) -> Result<Self, DestinationFailure> {
        Ok(Self {
            requested: PageBitmap::empty(layout.pages()),
            times: RequestTimes::new(),
            huge: HugePages::new(layout, links)?,
            waited_since: AtomicU64::new(0),
            waited_until: AtomicU64::new(0),
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

    /// The guest's threads that wait now have waited since `last` at the longest, when another
    /// engine had links. They fault again at once: what is read in the next moment is counted from
    /// `last`. So no wait over the time between two engines is too short, and one that began
    /// meanwhile is too long.
    pub(crate) fn waited_since(&self, last: Instant) {
        let now = self.now();
        let ago = u64::try_from(last.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.waited_since
            .store(now.saturating_sub(ago), Ordering::Relaxed);
        self.waited_until
            .store(now.saturating_add(REFAULT_NS), Ordering::Release);
    }

    /// When the faults that are read now were raised, as far as that is known, in nanoseconds.
    pub(crate) fn fault_time(&self) -> u64 {
        let now = self.now();
        match now <= self.waited_until.load(Ordering::Acquire) {
            true => self.waited_since.load(Ordering::Relaxed),
            false => now,
        }
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
