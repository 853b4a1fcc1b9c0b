//! The console's task: starts the workers, prints reports at their interval, and executes commands.
//! The lines are those of the Linux test guest (guest/README.md), and the accounts.

use crate::accounts::{self, Account};
use crate::clock::ticks;
use crate::commands::{Command, Commands};
use crate::config::{self, Config};
use crate::counters::{Thousandths, Totals};
use crate::fault_times;
use crate::findings;
use crate::kvm_clock;
use crate::options::Workload;
use crate::power;
use crate::processors;
use crate::say;
use crate::scheduler;
use crate::serve;
use crate::tasks::{self, sleep_until};
use crate::worker::{self, PROGRESS, Progress, SCAN, SIGNAL, SWEEP};
use core::convert::Infallible;
use core::sync::atomic::Ordering::*;

/// The entry of the console's task.
pub extern "C" fn run(_: usize) -> ! {
    let config = config::get();
    let workers = config.options.workers();
    let processors = processors::all().len();
    scheduler::measure_switch();
    for number in 0..workers {
        tasks::spawn(number % processors, worker::run, number);
    }
    let progress = &PROGRESS[..workers];
    while !progress.iter().all(|worker| worker.ready.load(Acquire)) {
        sleep_until(ticks() + config.clock.ticks_of_us(1000));
    }
    serve::start(config, processors);
    let uptime = config.clock.nanoseconds(ticks() - config.booted) / 10_000_000;
    say!(
        "ready: workload={} serve={} pages={} threads={workers} cpus={processors} tick_mhz={} \
         uptime={}.{:02}",
        config.options.workload.name(),
        u8::from(config.options.serve),
        worker::pages(),
        config.clock.hz / 1_000_000,
        uptime / 100,
        uptime % 100,
    );
    Console::new(config, progress).until_stopped();
    power::off()
}

struct Console {
    config: &'static Config,
    workers: &'static [Progress],
    started: u64,
    reported: u64,
    /// Reports of `idle`.
    beat: u64,
    before: Totals,
    accounted: u64,
    account: Account,
    /// When the scan began, until it has ended.
    scan: Option<u64>,
    sweeps_wanted: u32,
    sweeping: bool,
    stopping: bool,
}

impl Console {
    fn new(config: &'static Config, workers: &'static [Progress]) -> Self {
        let now = ticks();
        Self {
            config,
            workers,
            started: now,
            reported: now,
            beat: 0,
            before: Totals::take(workers.iter().map(|worker| &worker.accesses)),
            accounted: now,
            account: Account::take(workers),
            scan: None,
            sweeps_wanted: 0,
            sweeping: false,
            stopping: false,
        }
    }

    fn until_stopped(&mut self) {
        let clock = self.config.clock;
        let options = &self.config.options;
        // Each reading of the port costs an exit to the hypervisor, and the time of two switches.
        // Workers without a rate use the processor for all of their time.
        let poll_interval = clock.ticks_of_us(if options.rate > 0 { 1000 } else { 5000 });
        let report_interval = clock.ticks_of_us(options.every_ms * 1000);
        let account_interval = clock.ticks_of_us(options.account_ms * 1000);
        let mut commands = Commands::default();
        loop {
            if let Some(command) = commands.poll() {
                self.execute(command);
            }
            self.continue_sweeps();
            self.end_scan();
            if self.stopping && !self.sweeping && self.sweeps_wanted == 0 {
                say!("stopped:");
                return;
            }
            let now = ticks();
            if now - self.reported >= report_interval {
                self.report(now);
            }
            if account_interval > 0 && now - self.accounted >= account_interval {
                self.print_account(now);
            }
            sleep_until(now + poll_interval);
        }
    }

    fn execute(&mut self, command: Command) {
        match command {
            Command::Sweep => self.sweeps_wanted += 1,
            Command::Stop => {
                self.sweeps_wanted += 1;
                self.stopping = true;
            }
            Command::Clocks => self.clocks(),
            Command::Scan if self.can_scan() => {
                self.print_account_at_limit_of_scan();
                self.scan = Some(ticks());
                SCAN.store(true, Relaxed);
                SIGNAL.notify();
            }
            Command::Totals => accounts::print_totals(self.config.clock, self.workers),
            Command::Tasks => accounts::print_tasks(self.config.clock, self.workers),
            Command::Faults => fault_times::print(),
            Command::Scan | Command::Unknown => {
                say!(
                    "unknown: known are sweep, clocks, totals, tasks, faults, stop and, once, scan"
                );
            }
        }
    }

    fn can_scan(&self) -> bool {
        matches!(
            self.config.options.workload,
            Workload::Scan | Workload::Walk
        ) && !SCAN.load(Relaxed)
    }

    /// Starts the next sweep, unless one is in progress. Each requested sweep gets a verdict.
    fn continue_sweeps(&mut self) {
        let sweep = SWEEP.load(Relaxed);
        if self.sweeping {
            let done = |worker: &Progress| worker.swept.load(Acquire) == sweep;
            if !self.workers.iter().all(done) {
                return;
            }
            self.sweeping = false;
            say!(
                "verdict: {} pages={} bad={} disk_pages=0",
                findings::word(),
                worker::pages(),
                findings::count(),
            );
        }
        if self.sweeps_wanted > 0 {
            self.sweeps_wanted -= 1;
            self.sweeping = true;
            SWEEP.store(sweep.wrapping_add(1), Release);
            SIGNAL.notify();
            // The files have no worker that could check them.
            for file in serve::files::all() {
                let Ok(()) = file.read(|_| Ok::<_, Infallible>(()));
            }
        }
    }

    /// When the last worker has finished, prints how long the scan took.
    fn end_scan(&mut self) {
        let Some(begun) = self.scan else { return };
        let finished = |worker: &Progress| worker.finished.load(Acquire);
        if self.workers.iter().all(finished) {
            self.scan = None;
            let took = self.config.clock.nanoseconds(ticks() - begun);
            self.print_account_at_limit_of_scan();
            say!(
                "scanned: {} pages={} bad={} ms={}",
                findings::word(),
                worker::pages(),
                findings::count(),
                Thousandths(took / 1000),
            );
        }
    }

    /// Prints one time by the counter and by KVM's clock; without that, by the counter alone.
    fn clocks(&self) {
        let kvm = kvm_clock::read();
        let (ticks, ns) = kvm.unwrap_or_else(|| {
            let now = ticks();
            (now, self.config.clock.nanoseconds(now))
        });
        let kvm_clock = u8::from(kvm.is_some());
        say!("clocks: ok ticks={ticks} ns={ns} kvm_clock={kvm_clock}");
    }

    /// Prints the report of an interval.
    fn report(&mut self, now: u64) {
        let clock = self.config.clock;
        let accesses = Totals::take(self.workers.iter().map(|worker| &worker.accesses));
        let interval = accesses.since(&self.before);
        let name = self.config.options.workload.name();
        let word = findings::word();
        let t = Thousandths(clock.nanoseconds(now - self.started) / 1_000_000);
        let span = clock.nanoseconds(now - self.reported) / 1_000_000;
        let (count, latency) = (interval.count(), interval.latency(clock));
        match self.config.options.workload {
            Workload::Idle => {
                self.beat += 1;
                say!("{name}: {word} t={t} span_ms={span} beat={}", self.beat);
            }
            Workload::Verify => say!(
                "{name}: {word} t={t} span_ms={span} pages={} checks={count} generation={} bad={} \
                 {latency}",
                worker::pages(),
                self.generation(),
                findings::count(),
            ),
            Workload::Dirty | Workload::Scan | Workload::Walk => {
                say!("{name}: {word} t={t} span_ms={span} accesses={count} {latency}");
            }
        }
        serve::report(self.config, t, span);
        self.before = accesses;
        self.reported = now;
    }

    fn generation(&self) -> u32 {
        let generation = |worker: &Progress| worker.generation.load(Relaxed);
        self.workers.iter().map(generation).max().unwrap_or(0)
    }

    /// So that the intervals of the accounts are either in the scan or outside.
    fn print_account_at_limit_of_scan(&mut self) {
        if self.config.options.account_ms > 0 {
            self.print_account(ticks());
        }
    }

    fn print_account(&mut self, now: u64) {
        let clock = self.config.clock;
        let account = Account::take(self.workers);
        let t = Thousandths(clock.nanoseconds(now - self.started) / 1_000_000);
        let span = clock.nanoseconds(now - self.accounted) / 1_000_000;
        account.since(&self.account).print(clock, t, span);
        self.account = account;
        self.accounted = now;
    }
}
