//! Huge pages, rebuilt once the guest is here.
//!
//! A guest in tmpfs arrives in pages of 4 KiB, which is what makes a fault
//! cheap; afterwards they cost it address translation. With every page here and
//! the memory let go, the kernel is asked to put them together, 2 MiB at a
//! time, at a rate that leaves memory bandwidth to the guest.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use hikkoshi_faults::{COLLAPSE_BYTES, CollapseError, HostAddr, HostRange, Process};
use hikkoshi_pages::{PAGE_BYTES, PageRange};

use super::ReceiveWatch;
use crate::guest::DestinationGuest;
use crate::link::TICK;
use crate::priority::{Priority, Rank};
use crate::ram::RamFiles;
use crate::stats::{CollapseAccount, CollapseFailures};

/// Pages in a huge page.
const PAGES: u64 = COLLAPSE_BYTES / PAGE_BYTES;

/// Rebuilds huge pages under `guest`'s memory, at most `rate` bytes a second,
/// until it is done or told to stop.
pub(super) fn run(
    guest: &dyn DestinationGuest,
    rate: NonZeroU64,
    priority: Priority,
    watch: &ReceiveWatch,
) -> CollapseAccount {
    let Some((process, hosts)) = guest.memory_place() else {
        return CollapseAccount {
            stopped: Some("where the machine has its memory is not known".into()),
            ..CollapseAccount::default()
        };
    };
    watch
        .observer
        .notice("every page is here; huge pages are being rebuilt (Ctrl-C ends that)");
    let ram = guest.ram();
    let begun = Instant::now();
    let mut work = Work {
        process,
        ram,
        rate,
        begun,
        watch,
        account: CollapseAccount::default(),
        failures: Vec::new(),
    };
    let account = thread::scope(|scope| {
        let worker = thread::Builder::new().name("dst-collapse".into());
        let worker = worker.spawn_scoped(scope, || {
            priority.take(Rank::Background);
            work.all(&hosts);
            work.into_account()
        });
        match worker.map(thread::ScopedJoinHandle::join) {
            Ok(Ok(account)) => account,
            Ok(Err(_)) => stopped("the thread for it died"),
            Err(error) => stopped(&format!("no thread for it: {error}")),
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
    ram: Arc<RamFiles>,
    rate: NonZeroU64,
    begun: Instant,
    watch: &'a ReceiveWatch,
    account: CollapseAccount,
    failures: Vec<(CollapseError, u64)>,
}

impl Work<'_> {
    fn all(&mut self, hosts: &[u64]) {
        let ram = Arc::clone(&self.ram);
        for (((block, pages), &base), file) in ram.layout().blocks().zip(hosts).zip(ram.files()) {
            let aligned = base % COLLAPSE_BYTES == file.offset() % COLLAPSE_BYTES;
            if block.host_page != PAGE_BYTES {
                continue; // Huge already.
            }
            // Only whole places that are aligned in the process.
            let skip = base.next_multiple_of(COLLAPSE_BYTES) - base;
            let mut offset = skip;
            while offset + COLLAPSE_BYTES <= block.bytes {
                let first = pages.start().saturating_add(offset / PAGE_BYTES);
                let place = PageRange::from_len(first, PAGES);
                let at = HostAddr(base + offset);
                if !self.one(place, HostRange::new(at, COLLAPSE_BYTES), aligned) {
                    return;
                }
                offset += COLLAPSE_BYTES;
            }
        }
    }

    /// One huge page, whose address is `aligned` as its place in the file is;
    /// `false` when there is no point in going on.
    fn one(&mut self, place: PageRange, range: HostRange, aligned: bool) -> bool {
        // A place that the guest has never written takes no memory, and shall
        // not.
        if matches!(self.ram.has_data(place), Ok(false)) {
            return true;
        }
        if !self.keep_pace() {
            self.account.stopped = Some("it was told to stop".into());
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
            Err(error) => {
                match self.failures.iter_mut().find(|(known, _)| *known == error) {
                    Some((_, count)) => *count += 1,
                    None => self.failures.push((error, 1)),
                }
                if matches!(error, CollapseError::NotPermitted | CollapseError::Gone) {
                    // It will be so everywhere.
                    self.account.stopped = Some(error.to_string());
                    return false;
                }
            }
        }
        true
    }

    /// Waits until the next one may be done; `false`: told to stop.
    fn keep_pace(&self) -> bool {
        let bytes = self.account.tried.saturating_mul(COLLAPSE_BYTES);
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.rate.get());
        let due = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        while !self.watch.cancel.is_cancelled() {
            match due.checked_sub(self.begun.elapsed()) {
                None | Some(Duration::ZERO) => return true,
                Some(wait) => thread::sleep(wait.min(TICK)),
            }
        }
        false
    }

    fn into_account(mut self) -> CollapseAccount {
        self.failures
            .sort_by_key(|&(_, count)| std::cmp::Reverse(count));
        self.account.failed = self
            .failures
            .into_iter()
            .map(|(reason, count)| CollapseFailures {
                reason: reason.to_string(),
                count,
            })
            .collect();
        self.account
    }
}
