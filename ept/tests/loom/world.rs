//! A small guest with its vCPUs, its memory contents and the copy of a migration, for the loom
//! models.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hikkoshi_ept::testing::{Access, Machine, TestMemory};
use hikkoshi_ept::{
    AtomicU64, Capabilities, FrameAllocator, Gfn, GfnRange, Guest, HostFrame, Level, LogMethod,
    Mapping, View,
};

const PAGES: u64 = 4;
pub const HOST: u64 = 16;

/// A guest, its vCPUs, the contents of its memory, and the copy that a migration makes of it.
pub struct World {
    pub guest: &'static Guest<TestMemory>,
    pub machine: Machine<'static, TestMemory>,
    pub data: Vec<AtomicU64>,
    pub copy: Vec<AtomicU64>,
}

impl World {
    /// Creates a guest with everything mapped by leaves up to `max_level` and an active log.
    pub fn new(method: LogMethod, max_level: Level, cpus: usize) -> Arc<Self> {
        let world = Self::unlogged(max_level, cpus);
        world
            .guest
            .start_log(method, world.guest.all(), &world.machine)
            .unwrap();
        world
    }

    pub fn unlogged(max_level: Level, cpus: usize) -> Arc<Self> {
        Self::with_room(max_level, cpus, cpus)
    }

    /// Creates a guest with `cpus` vCPUs and slots for `room`.
    pub fn with_room(max_level: Level, cpus: usize, room: usize) -> Arc<Self> {
        let guest = Guest::new(TestMemory::new(30), PAGES, room, Capabilities::ALL).unwrap();
        let guest: &'static Guest<TestMemory> = Box::leak(Box::new(guest));
        let mapping = Mapping {
            max_level,
            ..Mapping::ram(guest.all(), HostFrame::new(HOST))
        };
        guest.map(View::MAIN, &mapping).unwrap();
        let machine = Machine::new(guest, cpus).unwrap();
        let words = || (0..PAGES).map(|_| AtomicU64::new(0)).collect();
        let world = Self {
            guest,
            machine,
            data: words(),
            copy: words(),
        };
        Arc::new(world)
    }

    /// vCPU `cpu` writes if the page is mapped.
    pub fn write(&self, cpu: usize, page: u64, value: u64) {
        let _ = self.machine.access(cpu, page << 12, Access::Write, |host| {
            assert_eq!(host >> 12, HOST + page);
            self.data[page as usize].store(value, Ordering::Relaxed);
        });
    }

    /// Takes the log of a range and copies the reported pages.
    pub fn take(&self, range: GfnRange) {
        let mut pages = Vec::new();
        self.guest
            .take_log(range, &self.machine, &mut |run| pages.extend(run.iter()))
            .unwrap();
        for page in pages {
            let page = page.index() as usize;
            let value = self.data[page].load(Ordering::Relaxed);
            self.copy[page].store(value, Ordering::Relaxed);
        }
    }

    /// After the vCPUs have stopped: takes the last log and compares the copy.
    pub fn finish(self: Arc<Self>) {
        self.take(self.guest.all());
        for (page, (data, copy)) in self.data.iter().zip(&self.copy).enumerate() {
            let (data, copy) = (data.load(Ordering::Relaxed), copy.load(Ordering::Relaxed));
            assert_eq!(data, copy, "a write to page {page} is missing in the copy");
        }
        self.close();
    }

    /// Frees everything; otherwise loom would run out of memory before it has explored all
    /// interleavings.
    ///
    /// If a thread has written to a freed frame, its poison is overwritten, and the allocator
    /// panics.
    pub fn close(self: Arc<Self>) {
        let world = Arc::try_unwrap(self).ok().unwrap();
        while world.guest.memory().allocate().is_some() {}
        drop(world.machine);
        // SAFETY: created by `Box::leak`, and the machine that borrowed it was dropped.
        #[allow(unsafe_code)]
        drop(unsafe { Box::from_raw(std::ptr::from_ref(world.guest).cast_mut()) });
    }
}

pub fn check(bound: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(bound);
    builder.max_branches = 100_000;
    builder.check(model);
}

pub fn first_pages() -> GfnRange {
    GfnRange::from_len(Gfn::new(0), 2)
}
