//! Rebuilds huge pages when the guest is complete.
//!
//! A guest in tmpfs arrives in pages of 4 KiB, which makes faults cheap but address translation
//! expensive afterwards. When every page is here and the memory is unregistered, the kernel is
//! asked to collapse them, 2 MiB at a time, at a rate that leaves memory bandwidth to the guest.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use error_reporter::Report;
use hikkoshi_linux::{COLLAPSE_BYTES, CollapseError, HostAddr, HostRange, Process};
use hikkoshi_pages::{PAGE_BYTES, PageRange};

use crate::destination::receive_control::ReceiveControl;
use crate::guest::DestinationGuest;
use crate::report::{CollapseAccount, CollapseFailures};
use hikkoshi_link::{RateLimit, TICK};
use hikkoshi_linux::{Priority, PriorityClass};
use hikkoshi_memory::GuestRam;

/// Pages in a huge page.
const PAGES: u64 = COLLAPSE_BYTES / PAGE_BYTES;

/// Rebuilds huge pages in `guest`'s memory, at most `rate` bytes a second, until it is done or
/// cancelled.
pub(crate) fn run(
    guest: &mut dyn DestinationGuest,
    rate: NonZeroU64,
    priority: Priority,
    control: &ReceiveControl,
) -> CollapseAccount {
    let Some((process, hosts)) = guest.process_memory() else {
        return CollapseAccount {
            stopped: Some("where the machine has its memory is not known".into()),
            ..CollapseAccount::default()
        };
    };
    control
        .observer
        .notice("every page is here; huge pages are being rebuilt (Ctrl-C ends that)");
    let ram = guest.ram();
    let begun = Instant::now();
    let mut work = Work {
        process,
        ram,
        rate_limit: RateLimit::new(rate.get(), begun),
        control,
        account: CollapseAccount::default(),
        again: Vec::new(),
        failures: Vec::new(),
    };
    let account = thread::scope(|scope| {
        let worker = thread::Builder::new().name("dst-collapse".into());
        let worker = worker.spawn_scoped(scope, || {
            priority.apply(PriorityClass::Background);
            if work.all(&hosts) {
                work.once_more();
            }
            work.into_account()
        });
        match worker.map(thread::ScopedJoinHandle::join) {
            Ok(Ok(account)) => account,
            Ok(Err(_)) => stopped("the thread for it died"),
            Err(error) => stopped(&format!("no thread for it: {}", Report::new(&error))),
        }
    });
    CollapseAccount {
        total_ms: begun.elapsed().as_secs_f64() * 1e3,
        ..account
    }
}

fn stopped(why: &str) -> CollapseAccount {
    CollapseAccount {
        stopped: Some(why.to_owned()),
        ..CollapseAccount::default()
    }
}

struct Work<'a> {
    process: Arc<Process>,
    ram: Arc<GuestRam>,
    rate_limit: RateLimit,
    control: &'a ReceiveControl,
    account: CollapseAccount,
    /// Ranges whose pages were in use; they are tried once more at the end.
    again: Vec<HostRange>,
    failures: Vec<(CollapseError, u64)>,
}

impl Work<'_> {
    /// Tries every range; `false` when continuing makes no sense.
    fn all(&mut self, hosts: &[u64]) -> bool {
        let ram = Arc::clone(&self.ram);
        for (((block, pages), &base), backing) in
            ram.layout().blocks().zip(hosts).zip(ram.backings())
        {
            // Huge pages of a file are aligned in the file, and those of private memory in the
            // process.
            let aligned = backing
                .file()
                .is_none_or(|file| base % COLLAPSE_BYTES == file.offset() % COLLAPSE_BYTES);
            if block.host_page != PAGE_BYTES {
                continue; // Huge already.
            }
            // Only whole ranges that are aligned in the process.
            let skip = base.next_multiple_of(COLLAPSE_BYTES) - base;
            let mut offset = skip;
            while offset + COLLAPSE_BYTES <= block.bytes {
                let first = pages.start().saturating_add(offset / PAGE_BYTES);
                let place = PageRange::from_len(first, PAGES);
                let at = HostAddr(base + offset);
                if !self.one(place, HostRange::new(at, COLLAPSE_BYTES), aligned) {
                    return false;
                }
                offset += COLLAPSE_BYTES;
            }
        }
        true
    }

    /// The ranges whose pages were in use, a second and last time.
    fn once_more(&mut self) {
        while let Some(range) = self.again.pop() {
            if !self.keep_rate_limit() {
                self.again.push(range);
                return;
            }
            if let Err(error) = self.process.collapse(range) {
                if !self.failed(error) {
                    return;
                }
            } else {
                self.account.rebuilt += 1;
            }
        }
    }

    /// Rebuilds one huge page; `aligned` is its address. `false` when continuing makes no sense.
    fn one(&mut self, place: PageRange, range: HostRange, aligned: bool) -> bool {
        // A range that the guest has never written takes no memory, and must not start to.
        if matches!(self.ram.has_data(place), Ok(false)) {
            return true;
        }
        if !self.keep_rate_limit() {
            return false;
        }
        self.account.tried += 1;
        let collapsed = if aligned {
            self.process.collapse(range)
        } else {
            Err(CollapseError::Misaligned)
        };
        match collapsed {
            Ok(()) => self.account.rebuilt += 1,
            Err(CollapseError::Busy) => self.again.push(range),
            Err(error) => return self.failed(error),
        }
        true
    }

    /// Counts a failure; `false` when every other range would fail as well.
    fn failed(&mut self, error: CollapseError) -> bool {
        self.count(error, 1);
        let everywhere = matches!(error, CollapseError::NotPermitted | CollapseError::Gone);
        if everywhere {
            self.account.stopped = Some(Report::new(&error).to_string());
        }
        !everywhere
    }

    fn count(&mut self, error: CollapseError, places: u64) {
        match self.failures.iter_mut().find(|(known, _)| *known == error) {
            Some((_, count)) => *count += places,
            None => self.failures.push((error, places)),
        }
    }

    /// Waits until the rate allows the next one; `false`: cancelled.
    fn keep_rate_limit(&mut self) -> bool {
        while !self.control.cancel.is_cancelled() {
            let now = Instant::now();
            let wait = self.rate_limit.wait(now);
            if wait.is_zero() {
                self.rate_limit.spend(COLLAPSE_BYTES, now);
                return true;
            }
            thread::sleep(wait.min(TICK));
        }
        self.account.stopped = Some("it was cancelled".into());
        false
    }

    fn into_account(mut self) -> CollapseAccount {
        // Those that were not tried a second time.
        let left = self.again.len() as u64;
        if left > 0 {
            self.count(CollapseError::Busy, left);
        }
        self.failures
            .sort_by_key(|&(_, count)| std::cmp::Reverse(count));
        self.account.failed = self
            .failures
            .into_iter()
            .map(|(reason, count)| CollapseFailures {
                reason: Report::new(&reason).to_string(),
                count,
            })
            .collect();
        self.account
    }
}
