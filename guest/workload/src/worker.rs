//! A worker: one thread that makes access after access to its own pages.

use crate::clock::{Clock, ticks};
use crate::pick::Random;
use crate::report::{Counters, Scale};
use crate::system;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::Duration;

/// What a worker does with its pages.
pub(crate) trait Work: Send {
    /// Whether there is an access to be made now. Who runs out of them has finished.
    fn is_due(&self, _orders: &Orders) -> bool {
        true
    }
    /// Makes one access and says how long touching the memory took, in ticks; what was wrong with
    /// the page is described in `findings`.
    fn access(&mut self, random: &mut Random, findings: &mut Vec<String>) -> u64;
    /// Checks every page.
    fn sweep(&mut self, findings: &mut Vec<String>);
    /// Pages in play.
    fn pages(&self) -> usize;
    /// The highest generation written so far.
    fn generation(&self) -> u32;
}

/// What the printing thread hears.
#[derive(Debug)]
pub(crate) enum Event {
    /// A line arrived on the console.
    Line(String),
    /// A page, or a sum over pages, is not as it should be.
    Bad(String),
    /// A worker has been through all of its pages.
    Swept { pages: usize },
    /// A worker has made all the accesses that it has to make.
    Finished,
}

/// What all workers look at between two accesses.
#[derive(Debug, Default)]
pub(crate) struct Orders {
    /// Raised by one for every sweep wanted.
    pub(crate) sweeps: AtomicU32,
    pub(crate) stop: AtomicBool,
    /// Those who wait for it may begin.
    pub(crate) begun: AtomicBool,
}

/// How often a worker with nothing to do looks for orders.
const IDLE: Duration = Duration::from_millis(1);

/// Everything a worker is given.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) number: usize,
    pub(crate) seed: u64,
    /// Accesses a second for this worker; 0 = no limit.
    pub(crate) rate: u64,
    pub(crate) clock: Clock,
    pub(crate) scale: Scale,
    pub(crate) orders: Arc<Orders>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) events: Sender<Event>,
}

/// Starts a worker on processor `number` modulo how many there are.
pub(crate) fn start(setting: Setting, mut work: Box<dyn Work>) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name(format!("worker-{}", setting.number))
        .spawn(move || run(&setting, work.as_mut()))
}

fn run(setting: &Setting, work: &mut dyn Work) {
    // A worker that stays where the scheduler puts it measures the same memory.
    let _ = system::pin_to(setting.number % system::processors());
    let mut random = Random::new(setting.seed.wrapping_add(setting.number as u64));
    let mut pace = Pace::new(setting.clock, setting.rate);
    let mut findings = Vec::new();
    let mut swept = 0;
    while !setting.orders.stop.load(Ordering::Relaxed) {
        let wanted = setting.orders.sweeps.load(Ordering::Relaxed);
        if wanted != swept {
            swept = wanted;
            work.sweep(&mut findings);
            tell(setting, &mut findings);
            let pages = work.pages();
            let _ = setting.events.send(Event::Swept { pages });
        }
        if !work.is_due(&setting.orders) {
            std::thread::sleep(IDLE);
            continue;
        }
        pace.wait();
        let ticks = work.access(&mut random, &mut findings);
        setting.counters.record(&setting.scale, ticks);
        let counters = &setting.counters;
        counters.pages.store(work.pages() as u64, Ordering::Relaxed);
        counters
            .generation
            .store(u64::from(work.generation()), Ordering::Relaxed);
        if !findings.is_empty() {
            tell(setting, &mut findings);
        }
        if !work.is_due(&setting.orders) {
            let _ = setting.events.send(Event::Finished);
        }
    }
}

fn tell(setting: &Setting, findings: &mut Vec<String>) {
    for finding in findings.drain(..) {
        let _ = setting.events.send(Event::Bad(finding));
    }
}

/// Keeps to a rate, by sleeping in steps long enough to be worth a system call.
#[derive(Debug)]
pub(crate) struct Pace {
    clock: Clock,
    interval: u64,
    next: u64,
}

impl Pace {
    /// So many a second; 0 = as fast as it goes.
    pub(crate) fn new(clock: Clock, rate: u64) -> Self {
        let interval = clock.ticks_per_second().checked_div(rate).unwrap_or(0);
        Self {
            clock,
            interval,
            next: ticks(),
        }
    }

    /// Waits until the next one is due.
    pub(crate) fn wait(&mut self) {
        if self.interval == 0 {
            return;
        }
        let now = ticks();
        if let Some(ahead) = self.next.checked_sub(now) {
            let nanoseconds = self.clock.nanoseconds(ahead);
            if nanoseconds >= 1_000_000 {
                std::thread::sleep(Duration::from_nanos(nanoseconds));
            }
        } else if now - self.next > self.clock.ticks_per_second() / 10 {
            // After a long hold-up, no burst to make up for it.
            self.next = now;
        }
        self.next += self.interval;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_is_never_faster_than_its_rate() {
        let clock = Clock::calibrate();
        // Before the pace's own beginning, which would be ahead by however long this thread has to
        // wait for a processor in between.
        let start = ticks();
        let mut pace = Pace::new(clock, 1000);
        for _ in 0..100 {
            pace.wait();
        }
        // The hundredth is due after 99 intervals, and may come a millisecond early.
        assert!(clock.nanoseconds(ticks() - start) >= 97_000_000);
    }
}
