//! The main thread: prints a report at every interval, and executes commands.

use crate::clock::Clock;
use crate::console::{print_line, read_lines};
use crate::counters::{Counters, Scale, Totals};
use crate::devices::Devices;
use crate::disk::Disk;
use crate::fine_histogram::{FineHistogram, Snapshot};
use crate::options::{Memory, Options};
use crate::returned::Returned;
use crate::runs::Runs;
use crate::serve::{self, Served};
use crate::system;
use crate::web_files;
use crate::worker::{self, Commands, Event, WorkerConfig};
use crate::workloads::{PAGES_PER_MIB, create_workloads};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

/// The result of a run.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Verdict {
    Ok,
    Bad,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Bad => "BAD",
        }
    }
}

/// Runs the workload until the command `stop`.
pub(crate) fn run(options: &Options) -> io::Result<Verdict> {
    // A worker that has panicked must not look like an idle one.
    std::panic::set_hook(Box::new(|panic| {
        print_line(&format!("failed: {panic}").replace('\n', " "));
        std::process::exit(101);
    }));
    let clock = Clock::calibrate();
    if options.files > 0 {
        web_files::write_all(Path::new("/www"), options.files, options.file_bytes)?;
    }
    let (sender, events) = mpsc::channel();
    let mut coordinator = Coordinator::new(options, clock, &sender)?;
    let started = Instant::now();
    let served = match options.serve {
        true => Some(serve::start(options.port, started)?),
        false => None,
    };
    read_lines(sender)?;
    coordinator.print_ready(options);
    coordinator.run(options, &events, started, served.as_deref())
}

/// The state of the main thread.
#[derive(Debug)]
struct Coordinator {
    clock: Clock,
    commands: Arc<Commands>,
    counters: Vec<Arc<Counters>>,
    disk: Disk,
    devices: Devices,
    returned: Option<Returned>,
    runs: Option<Runs>,
    before: Totals,
    slow_before: Snapshot,
    bad: u64,
    /// When the scan started, and how many workers have not finished it.
    scan: Option<(Instant, usize)>,
    /// Workers that have not finished the current sweep.
    waiting: usize,
    /// Pages checked by the finished ones.
    swept_pages: usize,
    sweeps_wanted: u32,
    stopping: bool,
}

impl Coordinator {
    fn new(options: &Options, clock: Clock, events: &Sender<Event>) -> io::Result<Self> {
        let mut coordinator = Self {
            clock,
            commands: Arc::default(),
            counters: Vec::new(),
            disk: Disk::default(),
            devices: Devices::default(),
            returned: Returned::fill(options.returned * PAGES_PER_MIB)?,
            runs: None,
            before: Totals::default(),
            slow_before: Snapshot::take(std::iter::empty()),
            bad: 0,
            scan: None,
            waiting: 0,
            swept_pages: 0,
            sweeps_wanted: 0,
            stopping: false,
        };
        for (number, work) in create_workloads(options, clock)?.into_iter().enumerate() {
            let counters = Arc::new(Counters::default());
            counters.pages.store(work.pages() as u64, Ordering::Relaxed);
            coordinator.counters.push(Arc::clone(&counters));
            let config = WorkerConfig {
                number,
                seed: options.seed,
                rate: match options.rate {
                    0 => 0,
                    rate => (rate / options.threads as u64).max(1),
                },
                burst_ms: options.burst_ms,
                clock,
                scale: Scale::new(clock, options.slow_us),
                commands: Arc::clone(&coordinator.commands),
                counters,
                events: events.clone(),
            };
            worker::start(config, work)?;
        }
        coordinator.disk = Disk::start(options, clock, &coordinator.commands, events)?;
        if let Some(path) = &options.runs {
            coordinator.runs = Some(Runs::start(path, &coordinator.commands, events)?);
        }
        Ok(coordinator)
    }

    fn totals(&self) -> Totals {
        Totals::take(self.counters.iter().map(Arc::as_ref))
    }

    fn print_ready(&self, options: &Options) {
        print_line(&format!(
            "ready: workload={} serve={} pages={} threads={} cpus={} tick_mhz={} uptime={:.2}",
            match options.memory {
                Memory::Idle => "idle",
                Memory::Dirty => "dirty",
                Memory::Verify => "verify",
                Memory::Scan => "scan",
                Memory::Lockstep => "lockstep",
            },
            u8::from(options.serve),
            self.totals().pages,
            self.counters.len(),
            system::processors(),
            self.clock.ticks_per_second() / 1_000_000,
            system::uptime(),
        ));
    }

    fn run(
        &mut self,
        options: &Options,
        events: &Receiver<Event>,
        started: Instant,
        served: Option<&Served>,
    ) -> io::Result<Verdict> {
        let every = Duration::from_millis(options.every_ms);
        let (mut last, mut beat) = (started, 0u64);
        loop {
            let wait = (last + every).saturating_duration_since(Instant::now());
            match events.recv_timeout(wait) {
                Ok(Event::Line(line)) => self.handle_command(line.trim()),
                Ok(Event::Bad(finding)) => {
                    // The first findings are printed in full; later ones are only counted, because
                    // the console is slow.
                    self.bad += 1;
                    if self.bad <= 8 {
                        print_line(&format!("BAD: {finding}"));
                    }
                }
                Ok(Event::Swept { pages }) => self.swept(pages),
                Ok(Event::Finished) => self.finished(),
                Err(RecvTimeoutError::Timeout) => {
                    let now = Instant::now();
                    beat += 1;
                    let time = format!(
                        "t={:.3} span_ms={}",
                        now.duration_since(started).as_secs_f64(),
                        now.duration_since(last).as_millis()
                    );
                    self.report(options, &time, beat, served);
                    last = now;
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(io::Error::other("the console's reader has ended"));
                }
            }
            if let Some(verdict) = self.ended() {
                return Ok(verdict);
            }
        }
    }

    fn handle_command(&mut self, line: &str) {
        match line {
            "" => {}
            "sweep" | "stop" => {
                self.stopping |= line == "stop";
                self.sweeps_wanted += 1;
                self.sweep_if_wanted();
            }
            "scan" if self.scan.is_none() => {
                self.scan = Some((Instant::now(), self.counters.len()));
                self.commands.scan_started.store(true, Ordering::Relaxed);
            }
            "slow" => self.print_slow(),
            "devices" => self.print_devices(),
            "free" => self.free(),
            "use" => self.use_again(),
            _ => print_line(
                "unknown: known are sweep, stop, slow, devices, free, use and, once, scan",
            ),
        }
    }

    /// Starts the next sweep, unless one is in progress. Each requested sweep gets a verdict.
    fn sweep_if_wanted(&mut self) {
        while self.waiting == 0 && self.sweeps_wanted > 0 {
            self.sweeps_wanted -= 1;
            self.swept_pages = 0;
            self.waiting = self.counters.len() + self.disk.sweepers();
            self.commands.sweeps.fetch_add(1, Ordering::Relaxed);
            if self.waiting == 0 {
                self.print_verdict();
            }
        }
    }

    fn swept(&mut self, pages: usize) {
        self.swept_pages += pages;
        self.waiting = self.waiting.saturating_sub(1);
        if self.waiting == 0 {
            self.print_verdict();
            self.sweep_if_wanted();
        }
    }

    /// A worker has finished its part of the scan; after the last one, prints how long it took.
    fn finished(&mut self) {
        let Some((begun, left)) = &mut self.scan else {
            return;
        };
        *left = left.saturating_sub(1);
        if *left == 0 {
            let ms = begun.elapsed().as_secs_f64() * 1e3;
            let pages = self.totals().pages;
            let word = self.verdict().word();
            print_line(&format!(
                "scanned: {word} pages={pages} bad={} ms={ms:.3}",
                self.bad
            ));
        }
    }

    fn print_slow(&mut self) {
        let now = Snapshot::take(
            self.counters
                .iter()
                .map(|counters| -> &FineHistogram { &counters.fine }),
        );
        let (count, fine) = now.since(&self.slow_before);
        let ns = self.clock.nanoseconds(now.ticks - self.slow_before.ticks);
        print_line(&format!(
            "slow: ok count={count} sum_us={} fine={fine}",
            ns / 1000
        ));
        self.slow_before = now;
    }

    fn print_devices(&mut self) {
        match self.devices.line() {
            Ok(line) => print_line(&line),
            Err(error) => print_line(&format!("failed: {error}")),
        }
    }

    fn free(&mut self) {
        match self
            .returned
            .as_mut()
            .map(|memory| (memory.free(), memory.len()))
        {
            Some((Ok(()), pages)) => print_line(&format!("freed: ok pages={pages}")),
            Some((Err(error), _)) => print_line(&format!("failed: freeing memory: {error}")),
            None => print_line("failed: no memory to free: hk.returned=0"),
        }
    }

    fn use_again(&mut self) {
        let Some(memory) = &mut self.returned else {
            return print_line("failed: no memory to use again: hk.returned=0");
        };
        let (pages, bad) = (memory.len(), memory.use_again());
        self.bad += bad as u64;
        let word = if bad == 0 { "ok" } else { "BAD" };
        print_line(&format!("used: {word} pages={pages} bad={bad}"));
    }

    fn verdict(&self) -> Verdict {
        if self.bad == 0 {
            Verdict::Ok
        } else {
            Verdict::Bad
        }
    }

    fn print_verdict(&self) {
        let word = self.verdict().word();
        print_line(&format!(
            "verdict: {word} pages={} bad={} disk_pages={}",
            self.swept_pages,
            self.bad,
            self.disk.swept_pages(),
        ));
    }

    /// The verdict, after `stop` and when every sweep has finished.
    fn ended(&self) -> Option<Verdict> {
        let done = self.stopping && self.waiting == 0 && self.sweeps_wanted == 0;
        done.then(|| {
            self.commands.stop.store(true, Ordering::Relaxed);
            print_line("stopped:");
            self.verdict()
        })
    }

    /// Prints the reports of one interval.
    fn report(&mut self, options: &Options, time: &str, beat: u64, served: Option<&Served>) {
        let now = self.totals();
        let latency = now.latency_since(&self.before, self.clock);
        let accesses = now.accesses - self.before.accesses;
        let state = if self.bad == 0 { "ok" } else { "BAD" };
        match options.memory {
            Memory::Idle => print_line(&format!("idle: ok {time} beat={beat}")),
            Memory::Dirty => print_line(&format!(
                "dirty: {state} {time} accesses={accesses} {latency}"
            )),
            Memory::Verify | Memory::Lockstep => print_line(&format!(
                "verify: {state} {time} pages={} checks={accesses} generation={} bad={} {latency}",
                now.pages, now.generation, self.bad
            )),
            Memory::Scan => print_line(&format!(
                "scan: {state} {time} accesses={accesses} {latency}"
            )),
        }
        if let Some(done) = self.disk.since_last() {
            print_line(&format!("disk: {state} {time} bad={} {done}", self.bad));
        }
        if let Some(runs) = &self.runs {
            runs.report(state, time);
        }
        if let Some(served) = served {
            let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
            let datagrams = &served.datagrams;
            print_line(&format!(
                "serve: ok {time} open={} lines={} datagrams={} missing={} repeated={}",
                load(&served.open),
                load(&served.lines),
                load(&datagrams.arrived),
                load(&datagrams.missing),
                load(&datagrams.repeated),
            ));
        }
        self.before = now;
    }
}
