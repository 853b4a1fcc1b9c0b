//! Takes while vCPUs write: what a take costs, and what the vCPUs still achieve, by method: `cargo
//! bench -p hikkoshi-ept --bench vcpus`. Prints CSV.
//!
//! The vCPUs are threads. For each write, such a vCPU reads the entries from the root to the leaf
//! as a processor does that has cached nothing, sets the flags, writes its page-modification log,
//! and calls the crate for an exit. It is in the guest while it holds its lock. A kick requests the
//! lock, which the vCPU then leaves to it after the current write. So the exits, kicks and entries
//! of a real processor, which cost thousands of cycles, cost next to nothing here: what is measured
//! is the crate, with writers and a take at the same time.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)] // measuring is for people to read

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use common::{GIB, Host};
use hikkoshi_ept::{
    Capabilities, ENTRIES, Entry, ExitQualification, FrameAccess, Gfn, Guest, HostFrame, Level,
    LogMethod, Mapping, PML_HEAD_INDEX, Processors, TlbFlush, Vcpu, View, ViolationOutcome,
};

/// Pages of the guest: 4 GiB.
const PAGES: u64 = 4 * GIB;
/// Time of one run.
const RUN: Duration = Duration::from_secs(1);
/// Time from the end of a take to the next one.
const PAUSE: Duration = Duration::from_millis(10);
/// Writes of a vCPU between two looks at the clock.
const BATCH: u64 = 256;
/// Rounds of one run of each method; the run with the median number of writes counts.
const ROUNDS: usize = 5;
/// Rounds that are rejected at most: a vCPU cannot write more with a log than without, so other
/// work has taken the processor from it.
const REJECTED: usize = 20;
/// The methods; the first one is what they are compared with.
const METHODS: [(&str, Option<LogMethod>); 4] = [
    ("no log", None),
    ("write protection", Some(LogMethod::WriteProtection)),
    ("page-modification log", Some(LogMethod::Pml)),
    ("dirty flags", Some(LogMethod::DirtyFlags)),
];

/// A vCPU outside of the crate: what the VMCS holds.
struct Processor {
    id: Vcpu,
    /// "PML address", if "enable PML" is on.
    log: Option<HostFrame>,
    /// "PML index".
    index: u16,
}

struct Machine<'g> {
    guest: &'g Guest<Host>,
    processors: Vec<Mutex<Processor>>,
    /// For each vCPU, whether it must not enter the guest.
    requests: Vec<AtomicBool>,
    kicks: AtomicU64,
}

impl<'g> Machine<'g> {
    fn new(guest: &'g Guest<Host>, count: usize) -> Self {
        let processor = |_| {
            Mutex::new(Processor {
                id: guest.add_vcpu().unwrap(),
                log: None,
                index: PML_HEAD_INDEX,
            })
        };
        Self {
            guest,
            processors: (0..count).map(processor).collect(),
            requests: (0..count).map(|_| AtomicBool::new(false)).collect(),
            kicks: AtomicU64::new(0),
        }
    }

    fn kick_each(&self, mut visit: impl FnMut(&mut Processor)) {
        for (processor, request) in self.processors.iter().zip(&self.requests) {
            request.store(true, Ordering::Relaxed);
            visit(&mut processor.lock().unwrap());
            request.store(false, Ordering::Relaxed);
            self.kicks.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A vCPU writes to a page. Returns the number of exits.
    fn write(&self, number: usize, page: Gfn) -> u64 {
        let mut exits = 0;
        loop {
            while self.requests[number].load(Ordering::Relaxed) {
                thread::yield_now();
            }
            let mut processor = self.processors[number].lock().unwrap();
            let slot = self.leaf(page);
            let leaf = Entry(slot.load(Ordering::Acquire));
            if !leaf.is_writable() {
                drop(processor);
                exits += 1;
                let write = ExitQualification(2);
                let outcome = self
                    .guest
                    .handle_ept_violation(View::MAIN, page.address(), write);
                assert_eq!(outcome, ViolationOutcome::Resume);
                continue;
            }
            if leaf.dirty() {
                return exits;
            }
            if processor.log.is_some() && processor.index > PML_HEAD_INDEX {
                exits += 1;
                processor.index = self.guest.drain_pml(processor.id, processor.index);
            }
            let dirty = leaf.with_dirty(true);
            if slot
                .compare_exchange(leaf.0, dirty.0, Ordering::AcqRel, Ordering::Relaxed)
                .is_err()
            {
                continue;
            }
            if let Some(log) = processor.log {
                let entry = &self.guest.memory().table(log)[usize::from(processor.index)];
                entry.store(page.address(), Ordering::Release);
                processor.index = processor.index.wrapping_sub(1);
            }
            return exits;
        }
    }

    /// Walks the tables to the leaf.
    fn leaf(&self, page: Gfn) -> &AtomicU64 {
        let mut table = self.guest.main_eptp().root();
        for level in [Level::Root, Level::Size1G, Level::Size2M] {
            let slot = &self.guest.memory().table(table)[index(page, level)];
            table = Entry(slot.load(Ordering::Acquire)).frame();
        }
        &self.guest.memory().table(table)[index(page, Level::Size4K)]
    }
}

fn index(page: Gfn, level: Level) -> usize {
    usize::try_from(page.index() / level.pages()).unwrap() % ENTRIES
}

impl Processors for Machine<'_> {
    fn invalidate(&self, _: &TlbFlush) {
        self.kick_each(|_| ());
    }

    fn drain_pml(&self, drain: &dyn Fn(Vcpu, u16) -> u16) {
        self.kick_each(|processor| processor.index = drain(processor.id, processor.index));
    }

    fn set_pml(&self, on: bool) {
        self.kick_each(|processor| {
            processor.log = self.guest.pml_address(processor.id).filter(|_| on);
            processor.index = PML_HEAD_INDEX;
        });
    }
}

/// What one run has achieved.
#[derive(Clone, Default)]
struct Figures {
    writes: u64,
    exits: u64,
    kicks: u64,
    /// The time of each take, in microseconds, and the sum of their pages.
    takes: Vec<f64>,
    pages: u64,
    seconds: f64,
}

fn run(method: Option<LogMethod>, vcpus: usize) -> Figures {
    let guest = Guest::new(Host::default(), PAGES, vcpus, Capabilities::ALL).unwrap();
    let mapping = Mapping {
        max_level: Level::Size4K,
        ..Mapping::ram(guest.all(), HostFrame::new(1 << 30))
    };
    guest.map(View::MAIN, &mapping).unwrap();
    let machine = Machine::new(&guest, vcpus);
    if let Some(method) = method {
        guest.start_log(method, guest.all(), &machine).unwrap();
    }
    machine.kicks.store(0, Ordering::Relaxed);
    let stop = AtomicBool::new(false);
    let ready = Barrier::new(vcpus + 1);
    let mut figures = Figures::default();
    thread::scope(|scope| {
        let vcpu = |number: usize| {
            let (machine, stop, ready) = (&machine, &stop, &ready);
            scope.spawn(move || {
                let mut random = 0x9e37_79b9_7f4a_7c15 ^ (number as u64 + 1) << 32;
                let (mut writes, mut exits) = (0, 0);
                ready.wait();
                while !stop.load(Ordering::Relaxed) {
                    for _ in 0..BATCH {
                        random ^= random << 13;
                        random ^= random >> 7;
                        random ^= random << 17;
                        exits += machine.write(number, Gfn::new(random % PAGES));
                    }
                    writes += BATCH;
                }
                (writes, exits)
            })
        };
        let threads: Vec<_> = (0..vcpus).map(vcpu).collect();
        ready.wait();
        let start = Instant::now();
        while start.elapsed() < RUN {
            thread::sleep(PAUSE);
            if method.is_some() {
                let taking = Instant::now();
                let mut pages = 0;
                let taken = guest.take_log(guest.all(), &machine, &mut |run| pages += run.len());
                figures.takes.push(taking.elapsed().as_secs_f64() * 1e6);
                assert_eq!(taken.unwrap(), pages);
                figures.pages += pages;
            }
        }
        stop.store(true, Ordering::Relaxed);
        figures.seconds = start.elapsed().as_secs_f64();
        for thread in threads {
            let (writes, exits) = thread.join().unwrap();
            figures.writes += writes;
            figures.exits += exits;
        }
    });
    figures.kicks = machine.kicks.load(Ordering::Relaxed);
    figures.takes.sort_by(f64::total_cmp);
    figures
}

/// Rounds in which no method has written more than without a log, and how many were rejected.
fn rounds(vcpus: usize) -> (Vec<[Figures; METHODS.len()]>, usize) {
    let (mut rounds, mut rejected) = (Vec::new(), 0);
    while rounds.len() < ROUNDS {
        let round = METHODS.map(|(_, method)| run(method, vcpus));
        let rate = |figures: &Figures| figures.writes as f64 / figures.seconds;
        let [without, logs @ ..] = &round;
        if logs.iter().all(|log| rate(log) <= rate(without)) {
            rounds.push(round);
        } else {
            rejected += 1;
            assert!(rejected <= REJECTED, "this machine has too much other work");
        }
    }
    (rounds, rejected)
}

fn main() {
    println!(
        "vCPUs,method,writes/s,exits/s,kicks/s,takes/s,pages per take,take (median µs),take (worst µs)"
    );
    for vcpus in [1, 2, 4] {
        let (rounds, rejected) = rounds(vcpus);
        eprintln!("{vcpus} vCPUs: {rejected} rounds rejected");
        for (number, (name, _)) in METHODS.into_iter().enumerate() {
            let mut runs: Vec<_> = rounds.iter().map(|round| &round[number]).collect();
            runs.sort_by_key(|figures| figures.writes);
            let figures = runs[ROUNDS / 2];
            let rate = |count: u64| count as f64 / figures.seconds;
            let takes = figures.takes.len();
            let take = |place: usize| figures.takes.get(place).copied().unwrap_or_default();
            println!(
                "{vcpus},{name},{:.0},{:.0},{:.0},{:.0},{},{:.0},{:.0}",
                rate(figures.writes),
                rate(figures.exits),
                rate(figures.kicks),
                rate(takes as u64),
                figures.pages / (takes as u64).max(1),
                take(takes / 2),
                take(takes.saturating_sub(1)),
            );
        }
    }
}
