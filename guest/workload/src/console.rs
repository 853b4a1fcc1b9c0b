//! The first thread: prints a line at every interval, and obeys the lines that come in.
//!
//! Understood are `sweep` (check every page, then say the verdict), `stop` (the same, then end),
//! `scan` (the scanning workers begin) and `slow` (how long slow accesses took since the last `slow`).

use crate::clock::Clock;
use crate::dirty::Dirty;
use crate::disk::Disk;
use crate::files;
use crate::fine::{Fine, Snapshot};
use crate::options::{Memory, Options};
use crate::region::Region;
use crate::report::{Counters, Scale, Totals};
use crate::scan::Scan;
use crate::serve::{self, Served};
use crate::together::Together;
use crate::verify::Verify;
use crate::worker::{self, Event, Orders, Setting, Work};
use crate::{page, system};
use std::io::{self, BufRead, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

/// How a run ended.
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

/// Prints a line, whole.
pub(crate) fn say(line: &str) {
    // One write, so that no other writer comes in between. A console that is gone is nobody's loss.
    let mut out = io::stdout().lock();
    let _ = out.write_all(format!("{line}\n").as_bytes());
    let _ = out.flush();
}

/// Runs the workload until a line says `stop`.
pub(crate) fn run(options: &Options) -> io::Result<Verdict> {
    // A worker that is gone must not look like one with nothing to say.
    std::panic::set_hook(Box::new(|panic| {
        say(&format!("failed: {panic}").replace('\n', " "));
        std::process::exit(101);
    }));
    let clock = Clock::calibrate();
    if options.files > 0 {
        files::write_all(Path::new("/www"), options.files, options.file_bytes)?;
    }
    let (sender, events) = mpsc::channel();
    let mut bench = Bench::new(options, clock, &sender)?;
    let started = Instant::now();
    let served = match options.serve {
        true => Some(serve::start(options.port, started)?),
        false => None,
    };
    read_lines(sender)?;
    bench.greet(options);
    bench.attend(options, &events, started, served.as_deref())
}

/// Lines of the console as events.
fn read_lines(sender: Sender<Event>) -> io::Result<()> {
    std::thread::Builder::new()
        .name("console".to_owned())
        .spawn(move || {
            for line in io::stdin().lock().lines() {
                // A byte that is no text cannot be a command.
                let Ok(line) = line else { continue };
                if sender.send(Event::Line(line)).is_err() {
                    return;
                }
            }
        })?;
    Ok(())
}

/// The workers as the first thread knows them.
#[derive(Debug)]
struct Bench {
    clock: Clock,
    orders: Arc<Orders>,
    counters: Vec<Arc<Counters>>,
    disk: Disk,
    before: Totals,
    slow_before: Snapshot,
    bad: u64,
    /// When the scan began, and how many workers are not through.
    scan: Option<(Instant, usize)>,
    /// Workers whose part of the sweep under way is still to come.
    waiting: usize,
    /// Pages of the parts that have come.
    swept_pages: usize,
    sweeps_wanted: u32,
    stopping: bool,
}

impl Bench {
    fn new(options: &Options, clock: Clock, events: &Sender<Event>) -> io::Result<Self> {
        let mut bench = Self {
            clock,
            orders: Arc::default(),
            counters: Vec::new(),
            disk: Disk::default(),
            before: Totals::default(),
            slow_before: Snapshot::take(std::iter::empty()),
            bad: 0,
            scan: None,
            waiting: 0,
            swept_pages: 0,
            sweeps_wanted: 0,
            stopping: false,
        };
        for (number, work) in works(options, clock)?.into_iter().enumerate() {
            let counters = Arc::new(Counters::default());
            counters.pages.store(work.pages() as u64, Ordering::Relaxed);
            bench.counters.push(Arc::clone(&counters));
            let setting = Setting {
                number,
                seed: options.seed,
                rate: match options.rate {
                    0 => 0,
                    rate => (rate / options.threads as u64).max(1),
                },
                clock,
                scale: Scale::new(clock, options.slow_us),
                orders: Arc::clone(&bench.orders),
                counters,
                events: events.clone(),
            };
            worker::start(setting, work)?;
        }
        bench.disk = Disk::start(options, clock, &bench.orders, events)?;
        Ok(bench)
    }

    fn totals(&self) -> Totals {
        Totals::take(self.counters.iter().map(Arc::as_ref))
    }

    fn greet(&self, options: &Options) {
        say(&format!(
            "ready: workload={} serve={} pages={} threads={} cpus={} tick_mhz={} uptime={:.2}",
            match options.memory {
                Memory::Idle => "idle",
                Memory::Dirty => "dirty",
                Memory::Verify => "verify",
                Memory::Scan => "scan",
                Memory::Together => "together",
            },
            u8::from(options.serve),
            self.totals().pages,
            self.counters.len(),
            system::processors(),
            self.clock.ticks_per_second() / 1_000_000,
            system::uptime(),
        ));
    }

    fn attend(
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
                Ok(Event::Line(line)) => self.obey(line.trim()),
                Ok(Event::Bad(finding)) => {
                    // The first one whole; of many more only the number, or the console would be
                    // the bottleneck.
                    self.bad += 1;
                    if self.bad <= 8 {
                        say(&format!("BAD: {finding}"));
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

    fn obey(&mut self, line: &str) {
        match line {
            "" => {}
            "sweep" | "stop" => {
                self.stopping |= line == "stop";
                self.sweeps_wanted += 1;
                self.sweep_if_wanted();
            }
            "scan" if self.scan.is_none() => {
                self.scan = Some((Instant::now(), self.counters.len()));
                self.orders.begun.store(true, Ordering::Relaxed);
            }
            "slow" => self.say_slow(),
            _ => say("unknown: known are sweep, stop, slow and, once, scan"),
        }
    }

    /// Starts the next sweep, unless one is under way; sweeps asked for have their verdict each.
    fn sweep_if_wanted(&mut self) {
        while self.waiting == 0 && self.sweeps_wanted > 0 {
            self.sweeps_wanted -= 1;
            self.swept_pages = 0;
            self.waiting = self.counters.len() + self.disk.sweepers();
            self.orders.sweeps.fetch_add(1, Ordering::Relaxed);
            if self.waiting == 0 {
                self.say_verdict();
            }
        }
    }

    fn swept(&mut self, pages: usize) {
        self.swept_pages += pages;
        self.waiting = self.waiting.saturating_sub(1);
        if self.waiting == 0 {
            self.say_verdict();
            self.sweep_if_wanted();
        }
    }

    /// A worker has been through its part of the scan; the last one says how long it took.
    fn finished(&mut self) {
        let Some((begun, left)) = &mut self.scan else {
            return;
        };
        *left = left.saturating_sub(1);
        if *left == 0 {
            let ms = begun.elapsed().as_secs_f64() * 1e3;
            let pages = self.totals().pages;
            let word = self.verdict().word();
            say(&format!(
                "scanned: {word} pages={pages} bad={} ms={ms:.3}",
                self.bad
            ));
        }
    }

    fn say_slow(&mut self) {
        let now = Snapshot::take(
            self.counters
                .iter()
                .map(|counters| -> &Fine { &counters.fine }),
        );
        let (count, fine) = now.since(&self.slow_before);
        let ns = self.clock.nanoseconds(now.ticks - self.slow_before.ticks);
        say(&format!(
            "slow: ok count={count} sum_us={} fine={fine}",
            ns / 1000
        ));
        self.slow_before = now;
    }

    fn verdict(&self) -> Verdict {
        if self.bad == 0 {
            Verdict::Ok
        } else {
            Verdict::Bad
        }
    }

    fn say_verdict(&self) {
        let word = self.verdict().word();
        say(&format!(
            "verdict: {word} pages={} bad={} disk_pages={}",
            self.swept_pages,
            self.bad,
            self.disk.swept_pages(),
        ));
    }

    /// The verdict, once `stop` was said and every sweep is done.
    fn ended(&self) -> Option<Verdict> {
        let done = self.stopping && self.waiting == 0 && self.sweeps_wanted == 0;
        done.then(|| {
            self.orders.stop.store(true, Ordering::Relaxed);
            say("stopped:");
            self.verdict()
        })
    }

    /// The lines of one interval.
    fn report(&mut self, options: &Options, time: &str, beat: u64, served: Option<&Served>) {
        let now = self.totals();
        let latency = now.latency_since(&self.before, self.clock);
        let accesses = now.accesses - self.before.accesses;
        let state = if self.bad == 0 { "ok" } else { "BAD" };
        match options.memory {
            Memory::Idle => say(&format!("idle: ok {time} beat={beat}")),
            Memory::Dirty => say(&format!(
                "dirty: {state} {time} accesses={accesses} {latency}"
            )),
            Memory::Verify | Memory::Together => say(&format!(
                "verify: {state} {time} pages={} checks={accesses} generation={} bad={} {latency}",
                now.pages, now.generation, self.bad
            )),
            Memory::Scan => say(&format!(
                "scan: {state} {time} accesses={accesses} {latency}"
            )),
        }
        if let Some(done) = self.disk.since_last() {
            say(&format!("disk: {state} {time} bad={} {done}", self.bad));
        }
        if let Some(served) = served {
            say(&format!(
                "serve: ok {time} open={} lines={}",
                served.open.load(Ordering::Relaxed),
                served.lines.load(Ordering::Relaxed)
            ));
        }
        self.before = now;
    }
}

/// The region shared out among the workers.
fn works(options: &Options, clock: Clock) -> io::Result<Vec<Box<dyn Work>>> {
    const PAGES_PER_MIB: usize = (1 << 20) / page::PAGE_SIZE;
    if options.memory == Memory::Idle {
        return Ok(Vec::new());
    }
    let region = Region::resident(options.mib * PAGES_PER_MIB)?;
    if options.memory == Memory::Scan {
        return Ok(region
            .split(options.threads)
            .map(|part| Box::new(Scan::new(part)) as Box<dyn Work>)
            .collect());
    }
    if options.memory == Memory::Together {
        return Ok(Together::all(region, options.threads)
            .map(|worker| Box::new(worker) as Box<dyn Work>)
            .collect());
    }
    let pages = region.share(options.threads);
    if options.memory == Memory::Dirty {
        return Ok(pages
            .map(|share| Box::new(Dirty::new(share, options)) as Box<dyn Work>)
            .collect());
    }
    let growth = match options.grow {
        0 => 1, // a mapping cannot be empty; without growth it stays untouched
        _ => options.grow_max * PAGES_PER_MIB,
    };
    let growth = Region::untouched(growth)?.share(options.threads);
    Ok(pages
        .zip(growth)
        .map(|(share, growth)| {
            Box::new(Verify::new(share, growth, options, clock)) as Box<dyn Work>
        })
        .collect())
}
