//! A machine whose virtual processors are threads: they stamp pages, and detect a page that does
//! not hold what they wrote last, on either side.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use hikkoshi_pages::PAGE_SIZE;

use crate::memory::{Content, Memory};

/// The host on which a guest runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Source,
    Destination,
}

/// The content of a page after its `generation`th write; zeros in generation 0. The second half
/// repeats the first one, so that it can be compressed.
pub(crate) fn stamp(page: u64, generation: u64) -> Content {
    // An array of words: slices of the bytes take ten times as long in a build for tests.
    let mut words = [[0; 8]; PAGE_SIZE / 8];
    if generation > 0 {
        let mut word = page
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .wrapping_add(generation);
        let (first, second) = words.split_at_mut(PAGE_SIZE / 16);
        for bytes in &mut *first {
            word = word.wrapping_mul(6_364_136_223_846_793_005) + 1;
            *bytes = (word | 1).to_le_bytes();
        }
        first[0] = page.to_le_bytes();
        first[1] = generation.to_le_bytes();
        second.copy_from_slice(first);
    }
    let mut content = [0; PAGE_SIZE];
    content.copy_from_slice(words.as_flattened());
    content
}

/// A random number generator without a dependency.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

#[derive(Debug, Default)]
struct State {
    runs: Option<Side>,
    /// Processors in the middle of an instruction.
    busy: usize,
    /// How often it was started at each side.
    starts: [u32; 2],
    over: bool,
}

struct Inner {
    source: Arc<Memory>,
    destination: Arc<Memory>,
    state: Mutex<State>,
    changed: Condvar,
    /// The processors' record of each page's generation. Page `p` belongs to processor `p % CPUS`.
    generations: Vec<AtomicU64>,
    /// Pages at the end that processors leave to devices.
    device_pages: u64,
    steps: AtomicU64,
    damage: Mutex<Vec<String>>,
}

pub(crate) struct Machine(Arc<Inner>, Vec<JoinHandle<()>>);

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Machine").field(&self.0.state).finish()
    }
}

const CPUS: u64 = 2;

impl Machine {
    /// A stopped machine whose memory at the source is like a real machine's: content, zeros, and
    /// many pages that were never touched.
    pub(crate) fn new(source: &Arc<Memory>, destination: &Arc<Memory>) -> Self {
        Self::with_device_pages(source, destination, 0)
    }

    /// A stopped machine; its processors leave this many pages at the end to devices.
    pub(crate) fn with_device_pages(
        source: &Arc<Memory>,
        destination: &Arc<Memory>,
        device_pages: u64,
    ) -> Self {
        let pages = source.layout().pages();
        let inner = Arc::new(Inner {
            source: Arc::clone(source),
            destination: Arc::clone(destination),
            state: Mutex::default(),
            changed: Condvar::new(),
            generations: (0..pages).map(|_| AtomicU64::new(0)).collect(),
            device_pages,
            steps: AtomicU64::new(0),
            damage: Mutex::default(),
        });
        for page in 0..pages {
            // Ranges of 64 pages are left untouched, others are written.
            match (page / 64 % 4, page % 16) {
                (0, _) => continue,
                (_, 5) => source.store(page, &stamp(page, 0)),
                _ => inner.write(source, page, 1),
            }
        }
        let start = |cpu| {
            let inner = Arc::clone(&inner);
            thread::Builder::new()
                .name(format!("cpu{cpu}"))
                .spawn(move || inner.cpu(cpu))
                .unwrap()
        };
        let cpus = (0..CPUS).map(start).collect();
        Self(inner, cpus)
    }

    pub(crate) fn memory(&self, side: Side) -> &Arc<Memory> {
        self.0.memory(side)
    }

    /// Records that a device has written `page` in this generation.
    pub(crate) fn written_by_device(&self, page: u64, generation: u64) {
        self.0.generations[page as usize].store(generation, Ordering::Release);
    }

    /// Pages at `side` that do not hold what was written last.
    pub(crate) fn wrong_pages(&self, side: Side) -> Vec<u64> {
        let memory = self.0.memory(side);
        let ram = memory.ram();
        let mut content = [0; PAGE_SIZE];
        let pages = memory.layout().all().iter();
        pages
            .filter(|&page| {
                ram.read(hikkoshi_pages::PageRange::one(page), &mut content)
                    .unwrap();
                content != self.expected(page.index())
            })
            .map(hikkoshi_pages::Page::index)
            .collect()
    }

    /// Starts the machine at `side`.
    ///
    /// Panics if it runs at the other side: that must never happen.
    pub(crate) fn run(&self, side: Side) {
        let mut state = self.0.state.lock().unwrap();
        assert!(
            state.runs.is_none_or(|other| other == side),
            "the guest runs twice: started at {side:?} while it runs at {:?}",
            state.runs
        );
        if state.runs.is_none() {
            state.runs = Some(side);
            state.starts[side as usize] += 1;
        }
        drop(state);
        self.0.changed.notify_all();
    }

    /// Stops the machine at `side`, if it runs there; an instruction in progress may take up to
    /// `peer_timeout` to end.
    pub(crate) fn stop(&self, side: Side, peer_timeout: Duration) {
        let mut state = self.0.state.lock().unwrap();
        if state.runs == Some(side) {
            state.runs = None;
        }
        let _ = self
            .0
            .changed
            .wait_timeout_while(state, peer_timeout, |state| state.busy > 0)
            .unwrap();
    }

    pub(crate) fn runs(&self) -> Option<Side> {
        self.0.state.lock().unwrap().runs
    }

    /// How often it was started at `side`.
    pub(crate) fn starts(&self, side: Side) -> u32 {
        self.0.state.lock().unwrap().starts[side as usize]
    }

    /// Waits until the processors have executed `more` instructions.
    pub(crate) fn work(&self, more: u64) {
        let until = self.0.steps.load(Ordering::Relaxed) + more;
        while self.0.steps.load(Ordering::Relaxed) < until {
            assert!(self.runs().is_some(), "a stopped machine does not work");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// The content that `page` must have.
    pub(crate) fn expected(&self, page: u64) -> Content {
        stamp(
            page,
            self.0.generations[page as usize].load(Ordering::Acquire),
        )
    }

    /// Stops the machine where it runs, and compares all memory there with the expected content.
    pub(crate) fn check(&self, side: Side) {
        self.stop(side, Duration::from_secs(20));
        let memory = self.0.memory(side);
        let ram = memory.ram();
        let mut content = [0; PAGE_SIZE];
        for page in memory.layout().all() {
            ram.read(hikkoshi_pages::PageRange::one(page), &mut content)
                .unwrap();
            // CI runs no test again whose output says this (`.ci/retry.sh`).
            assert!(
                content == self.expected(page.index()),
                "NEVER RETRIED: a wrong page: {side:?}: {page:?} holds {}, expected {}",
                describe(&content),
                describe(&self.expected(page.index()))
            );
        }
        self.undamaged();
    }

    /// Fails if a processor has ever read a page with wrong content.
    pub(crate) fn undamaged(&self) {
        let damage = self.0.damage.lock().unwrap();
        assert!(
            damage.is_empty(),
            "NEVER RETRIED: wrong pages: {}",
            damage.join("\n")
        );
    }
}

/// Stops the processors, without waiting for one that waits for a page.
impl Drop for Machine {
    fn drop(&mut self) {
        let idle = self.0.state.lock().is_ok_and(|mut state| {
            state.over = true;
            state.busy == 0
        });
        self.0.changed.notify_all();
        if idle {
            // They hold a reference to its memory, and the next machine may need the huge pages.
            for cpu in self.1.drain(..) {
                let _ = cpu.join();
            }
        }
    }
}

impl Inner {
    fn memory(&self, side: Side) -> &Arc<Memory> {
        match side {
            Side::Source => &self.source,
            Side::Destination => &self.destination,
        }
    }

    fn write(&self, memory: &Memory, page: u64, generation: u64) {
        memory.store(page, &stamp(page, generation));
        self.generations[page as usize].store(generation, Ordering::Release);
    }

    fn cpu(&self, cpu: u64) {
        let mut random = Random::new(cpu + 1);
        let mut state = self.state.lock().unwrap();
        loop {
            if state.over {
                return;
            }
            let Some(side) = state.runs else {
                state = self.changed.wait(state).unwrap();
                continue;
            };
            state.busy += 1;
            drop(state);
            self.step(cpu, side, &mut random);
            state = self.state.lock().unwrap();
            state.busy -= 1;
            self.changed.notify_all();
        }
    }

    /// One instruction: reads a page, and writes it in some cases.
    fn step(&self, cpu: u64, side: Side, random: &mut Random) {
        let pages = self.generations.len() as u64 - self.device_pages;
        // Half of the accesses go to a small range: some pages are hotter.
        let bound = if random.below(2) == 0 {
            pages
        } else {
            pages / 8
        };
        let page = (random.below(bound) / CPUS * CPUS + cpu).min(pages - CPUS + cpu);
        let memory = self.memory(side);
        let content = memory.load(page);
        if self.state.lock().unwrap().runs != Some(side) {
            // Stopped in the middle of the instruction, perhaps permanently.
            return;
        }
        let generation = self.generations[page as usize].load(Ordering::Acquire);
        if content != stamp(page, generation) {
            self.damage.lock().unwrap().push(format!(
                "cpu{cpu} at {side:?}: page {page} holds {}, expected generation {generation}",
                describe(&content)
            ));
        }
        match random.below(16) {
            0 => self.write(memory, page, 0),
            1..8 => self.write(memory, page, self.steps.load(Ordering::Relaxed) + 2),
            _ => {}
        }
        self.steps.fetch_add(1, Ordering::Relaxed);
        // Other threads need the processor, too.
        if random.below(8) == 0 {
            thread::sleep(Duration::from_micros(50));
        }
    }
}

fn describe(content: &Content) -> String {
    let word = |at: usize| u64::from_le_bytes(content[at * 8..][..8].try_into().unwrap());
    let (page, generation) = (word(0), word(1));
    if *content == stamp(page, generation) {
        format!("page {page} in generation {generation}")
    } else if content.iter().all(|&byte| byte == 0) {
        "zeros".into()
    } else {
        format!("a torn page ({page}, generation {generation})")
    }
}
