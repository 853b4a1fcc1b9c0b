//! A worker: a task that accesses its own pages.

use crate::clock::ticks;
use crate::config;
use crate::counters::{Counters, Scale, add};
use crate::dirty::Dirty;
use crate::memory::{Division, Part};
use crate::options::Workload;
use crate::processors;
use crate::scan::Scan;
use crate::tasks::{self, Event, MOST_WORKERS, sleep_until, yield_to_others};
use crate::verify::Verify;
use crate::walk::Walk;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use hikkoshi_checked_pages::random::Random;

/// What a worker does with its pages.
pub trait Work {
    /// Whether an access is due now. A worker without further accesses has finished.
    fn is_due(&self) -> bool {
        true
    }
    /// Makes one access.
    fn access(&mut self, random: &mut Random) -> Touch;
    /// Checks every page.
    fn sweep(&mut self);
    /// Number of pages.
    fn pages(&self) -> usize;
    /// The highest generation written so far.
    fn generation(&self) -> u32 {
        0
    }
}

/// What the console's task reads of a worker.
#[derive(Debug)]
pub struct Progress {
    /// Its accesses.
    pub accesses: Counters,
    /// Number of its pages.
    pub pages: AtomicU64,
    /// The highest generation written.
    pub generation: AtomicU32,
    /// Accesses that took long although no other task ran meanwhile.
    pub synchronous: AtomicU64,
    /// Accesses that faulted asynchronously more than once: how often more.
    pub refaults: AtomicU64,
    /// Its memory is filled.
    pub ready: AtomicBool,
    /// The last sweep that it has finished.
    pub swept: AtomicU32,
    /// Its last access is made.
    pub finished: AtomicBool,
}

/// Of every worker.
pub static PROGRESS: [Progress; MOST_WORKERS] = [const { Progress::new() }; MOST_WORKERS];
/// The number of the last sweep that was requested.
pub static SWEEP: AtomicU32 = AtomicU32::new(0);
/// A sweep or the scan has been requested.
pub static SIGNAL: Event = Event::new();
/// Whether the scan has been requested.
pub static SCAN: AtomicBool = AtomicBool::new(false);

/// The pages of the region.
pub fn pages() -> usize {
    config::get().options.pages()
}

/// Whether the scan has been requested.
pub fn scan_has_started() -> bool {
    SCAN.load(Relaxed)
}

impl Progress {
    const fn new() -> Self {
        Self {
            accesses: Counters::new(),
            pages: AtomicU64::new(0),
            generation: AtomicU32::new(0),
            synchronous: AtomicU64::new(0),
            refaults: AtomicU64::new(0),
            ready: AtomicBool::new(false),
            swept: AtomicU32::new(0),
            finished: AtomicBool::new(false),
        }
    }
}

/// One access to memory.
#[derive(Clone, Copy, Debug)]
pub struct Touch {
    /// How long it took, in ticks.
    took: u64,
    /// For how much of that another task or the scheduler ran, or none.
    off: u64,
    /// How many asynchronous page faults it caused.
    faults: u64,
}

impl Touch {
    /// Reads a word.
    pub fn read(word: &u64) -> Self {
        // SAFETY: a reference to a word. Volatile, so that it is read between the readings of the
        // clock.
        Self::time(|| unsafe { (&raw const *word).read_volatile() }).0
    }

    /// Times an access.
    pub fn time<T>(access: impl FnOnce() -> T) -> (Self, T) {
        let task = tasks::current();
        let (off, faults) = (task.off.load(Relaxed), task.faults.load(Relaxed));
        let before = ticks();
        let result = access();
        let took = ticks().wrapping_sub(before);
        let touch = Self {
            took,
            off: task.off.load(Relaxed) - off,
            faults: task.faults.load(Relaxed) - faults,
        };
        (touch, result)
    }

    /// For how long the processor waited for it, if that was slow. (KVM's part of an asynchronous
    /// page fault is not such time: [`Self::in_kvm`].)
    pub fn stalled(&self, scale: &Scale) -> Option<u64> {
        (self.faults == 0 && self.own() >= scale.slow_ticks).then(|| self.own())
    }

    /// How long KVM needed for its asynchronous page faults, if there were some.
    pub fn in_kvm(&self) -> Option<u64> {
        (self.faults > 0).then(|| self.own())
    }

    /// The time without other tasks and the scheduler.
    fn own(&self) -> u64 {
        self.took.saturating_sub(self.off)
    }

    /// Whether it was a page fault that the processor waited for.
    pub fn is_synchronous(&self, scale: &Scale) -> bool {
        self.stalled(scale).is_some()
    }

    /// How often it faulted asynchronously once more.
    pub fn refaults(&self) -> u64 {
        self.faults.saturating_sub(1)
    }
}

/// The entry of worker `number`'s task.
pub extern "C" fn run(number: usize) -> ! {
    let options = &config::get().options;
    let take = |division| {
        // SAFETY: there is room; each worker takes its own part, once.
        unsafe { Part::take(pages(), division, number, options.threads) }
    };
    match options.workload {
        Workload::Idle => unreachable!("it has no workers"),
        Workload::Dirty => work(number, Dirty::new(take(Division::Interleaved), options)),
        Workload::Verify => work(number, Verify::new(take(Division::Interleaved), options)),
        Workload::Scan => work(number, Scan::new(take(Division::Contiguous))),
        Workload::Walk => work(number, Walk::new(take(Division::Contiguous), pages())),
    }
}

fn work(number: usize, mut work: impl Work) -> ! {
    let config = config::get();
    let options = &config.options;
    let progress = &PROGRESS[number];
    let (task, processor) = (tasks::current(), processors::current());
    let mut random = Random::new(options.seed.wrapping_add(number as u64));
    let share = match options.rate {
        0 => 0,
        rate => (rate / options.threads as u64).max(1),
    };
    let mut pace = Pace::new(config.clock.hz, share);
    progress.pages.store(work.pages() as u64, Relaxed);
    progress.ready.store(true, Release);
    let mut swept = 0;
    let mut last = (ticks(), task.off.load(Relaxed));
    loop {
        let signals = SIGNAL.count();
        let wanted = SWEEP.load(Acquire);
        if wanted != swept {
            swept = wanted;
            work.sweep();
            progress.swept.store(swept, Release);
            last = (ticks(), task.off.load(Relaxed));
        }
        if !work.is_due() {
            SIGNAL.wait(signals);
            last = (ticks(), task.off.load(Relaxed));
            continue;
        }
        pace.wait();
        let touch = work.access(&mut random);
        progress.accesses.record(&config.scale, touch.took);
        progress.generation.store(work.generation(), Relaxed);
        // Time that passed without progress, and without another task: in the access, which then
        // was a synchronous page fault, or elsewhere, when the host ran something else.
        let (now, off) = (ticks(), task.off.load(Relaxed));
        if touch.is_synchronous(&config.scale) {
            add(&progress.synchronous, 1);
        }
        let gap = match pace.has_waited {
            true => 0,
            false => (now - last.0).saturating_sub(off - last.1),
        };
        if let Some(in_kvm) = touch.in_kvm() {
            processor.in_kvm.fetch_add(in_kvm.max(gap), Relaxed);
        } else {
            let stalled = gap.max(touch.stalled(&config.scale).unwrap_or(0));
            if stalled >= config.scale.slow_ticks {
                processor.stalled.fetch_add(stalled, Relaxed);
            }
        }
        add(&progress.refaults, touch.refaults());
        last = (now, off);
        if !work.is_due() {
            progress.finished.store(true, Release);
        }
    }
}

/// Accesses at their rate.
struct Pace {
    hz: u64,
    interval: u64,
    next: u64,
    /// Whether the last access had to wait for its time.
    has_waited: bool,
}

impl Pace {
    /// So many a second; 0: as fast as possible.
    fn new(hz: u64, rate: u64) -> Self {
        Self {
            hz,
            interval: hz.checked_div(rate).unwrap_or(0),
            next: ticks(),
            has_waited: false,
        }
    }

    /// Waits until the next access is due.
    fn wait(&mut self) {
        self.has_waited = false;
        if self.interval == 0 {
            return;
        }
        let mut now = ticks();
        while now < self.next {
            self.has_waited = true;
            // The shortest sleep is up to the timer's next interrupt.
            if self.next - now > self.hz / 50 {
                sleep_until(self.next);
            } else {
                yield_to_others(now);
                core::hint::spin_loop();
            }
            now = ticks();
        }
        // After a long delay, do not catch up in a burst.
        if now - self.next > self.hz / 10 {
            self.next = now;
        }
        self.next += self.interval;
    }
}
