//! Accounts: page faults, waits, and how the processors spent their time.

use crate::async_faults;
use crate::clock::Clock;
use crate::counters::{Counters, Thousandths, Totals};
use crate::processors::{self, MOST_PROCESSORS, Processor};
use crate::say;
use crate::scheduler::{IN_IDLE, IN_SCHEDULER, IN_TASKS, SWITCH};
use crate::serve::files;
use crate::tasks::{self, State, Task};
use crate::worker::Progress;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How a processor spent its time, in ticks.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    ran: u64,
    idle: u64,
    stalled: u64,
    in_kvm: u64,
    scheduler: u64,
    switches: u64,
}

impl Times {
    fn take(processor: &Processor) -> Self {
        let load = |counter: &AtomicU64| counter.load(Relaxed);
        Self {
            ran: load(&processor.times[IN_TASKS]),
            idle: load(&processor.times[IN_IDLE]),
            stalled: load(&processor.stalled),
            in_kvm: load(&processor.in_kvm),
            scheduler: load(&processor.times[IN_SCHEDULER]),
            switches: load(&processor.switches),
        }
    }

    fn since(&self, before: &Self) -> Self {
        Self {
            ran: self.ran - before.ran,
            idle: self.idle - before.idle,
            stalled: self.stalled - before.stalled,
            in_kvm: self.in_kvm - before.in_kvm,
            scheduler: self.scheduler - before.scheduler,
            switches: self.switches - before.switches,
        }
    }

    /// How long tasks made progress. The rest of the time in tasks is known when an access ends,
    /// perhaps an interval later.
    fn in_progress(&self) -> u64 {
        self.ran.saturating_sub(self.stalled + self.in_kvm)
    }
}

/// What has been counted since the start, or in an interval.
#[derive(Clone, Copy, Debug)]
pub struct Account {
    not_present: u64,
    ready: u64,
    broadcasts: u64,
    unmatched: u64,
    synchronous: u64,
    refaults: u64,
    waits: Totals,
    times: [Times; MOST_PROCESSORS],
}

impl Account {
    /// What has been counted since the start. The longest wait is that of the interval that ends.
    pub fn take(workers: &[Progress]) -> Self {
        Self::with_waits(workers, Totals::take(waits()))
    }

    fn with_waits(workers: &[Progress], waits: Totals) -> Self {
        let of_processors = |counter: fn(&Processor) -> &AtomicU64| {
            let counters = processors::all().iter().map(counter);
            counters.map(|counter| counter.load(Relaxed)).sum::<u64>()
        };
        let of_workers = |counter: fn(&Progress) -> &AtomicU64| {
            let counters = workers.iter().map(counter);
            counters.map(|counter| counter.load(Relaxed)).sum::<u64>()
        };
        let mut times = [Times::default(); MOST_PROCESSORS];
        for (times, processor) in times.iter_mut().zip(processors::all()) {
            *times = Times::take(processor);
        }
        Self {
            not_present: of_processors(|processor| &processor.shared.events.not_present),
            ready: of_processors(|processor| &processor.shared.events.ready),
            broadcasts: of_processors(|processor| &processor.shared.events.broadcasts),
            unmatched: of_processors(|processor| &processor.shared.events.unmatched),
            synchronous: of_workers(|worker| &worker.synchronous)
                + files::SYNCHRONOUS.load(Relaxed),
            refaults: of_workers(|worker| &worker.refaults) + files::REFAULTS.load(Relaxed),
            waits,
            times,
        }
    }

    /// What was counted since `before`.
    pub fn since(&self, before: &Self) -> Self {
        let mut times = self.times;
        for (times, before) in times.iter_mut().zip(&before.times) {
            *times = times.since(before);
        }
        Self {
            not_present: self.not_present - before.not_present,
            ready: self.ready - before.ready,
            broadcasts: self.broadcasts - before.broadcasts,
            unmatched: self.unmatched - before.unmatched,
            synchronous: self.synchronous - before.synchronous,
            refaults: self.refaults - before.refaults,
            waits: self.waits.since(&before.waits),
            times,
        }
    }

    /// Prints the two lines of an interval.
    pub fn print(&self, clock: Clock, t: Thousandths, span_ms: u64) {
        let times = &self.times[..processors::all().len()];
        let ms = |time| EachMs { clock, times, time };
        say!(
            "faults: ok t={t} span_ms={span_ms} {self} waiting={} {}",
            waiting(),
            self.waits.waits(clock),
        );
        say!(
            "processors: ok t={t} span_ms={span_ms} ran_ms={} idle_ms={} stalled_ms={} \
             kvm_ms={} scheduler_ms={} switches={}",
            ms(Times::in_progress),
            ms(|times| times.idle),
            ms(|times| times.stalled),
            ms(|times| times.in_kvm),
            ms(|times| times.scheduler),
            times.iter().map(|times| times.switches).sum::<u64>(),
        );
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "not_present={} ready={} broadcasts={} unmatched={} synchronous={} refaults={}",
            self.not_present,
            self.ready,
            self.broadcasts,
            self.unmatched,
            self.synchronous,
            self.refaults,
        )
    }
}

/// One time of each processor, in ms.
struct EachMs<'a> {
    clock: Clock,
    times: &'a [Times],
    time: fn(&Times) -> u64,
}

impl fmt::Display for EachMs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut comma = "";
        for times in self.times {
            write!(f, "{comma}{}", ms(self.clock, (self.time)(times)))?;
            comma = ",";
        }
        Ok(())
    }
}

fn ms(clock: Clock, ticks: u64) -> Thousandths {
    Thousandths(clock.nanoseconds(ticks) / 1000)
}

fn waits() -> impl Iterator<Item = &'static Counters> {
    tasks::all().iter().map(|task| &task.waits)
}

/// How many tasks wait for a page now.
fn waiting() -> usize {
    let waits = |task: &&Task| task.state() == State::Faulted;
    tasks::all().iter().filter(waits).count()
}

/// Prints what has been counted since the start.
pub fn print_totals(clock: Clock, workers: &[Progress]) {
    let account = Account::with_waits(workers, Totals::since_start(waits()));
    let sum = |time: fn(&Times) -> u64| ms(clock, account.times.iter().map(time).sum());
    say!(
        "totals: ok async_pf={} {account} waiting={} ran_ms={} idle_ms={} stalled_ms={} \
         kvm_ms={} scheduler_ms={} switch_us={} {}",
        if async_faults::are_on() { "on" } else { "off" },
        waiting(),
        sum(Times::in_progress),
        sum(|times| times.idle),
        sum(|times| times.stalled),
        sum(|times| times.in_kvm),
        sum(|times| times.scheduler),
        Thousandths(clock.nanoseconds(SWITCH.load(Relaxed))),
        account.waits.waits(clock),
    );
}

/// Prints what has been counted of each worker's task.
pub fn print_tasks(clock: Clock, workers: &[Progress]) {
    for ((number, task), worker) in tasks::all().iter().skip(1).enumerate().zip(workers) {
        let waits = Totals::since_start(core::iter::once(&task.waits));
        say!(
            "task: ok number={number} processor={} accesses={} ran_ms={} queued_ms={} \
             waited_ms={} faults={} synchronous={} refaults={} {}",
            task.processor(),
            Totals::since_start(core::iter::once(&worker.accesses)).count(),
            ms(clock, task.ran.load(Relaxed)),
            ms(clock, task.queued.load(Relaxed)),
            ms(clock, waits.ticks()),
            task.faults.load(Relaxed),
            worker.synchronous.load(Relaxed),
            worker.refaults.load(Relaxed),
            waits.waits(clock),
        );
    }
}
