//! World.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hikkoshi_ept::testing::{Access, Machine, TestMemory};
use hikkoshi_ept::{
    AtomicU64, Capabilities, Frame, FrameAllocator, Gfn, GfnRange, Guest, Level, LogMethod,
    Mapping, View,
};

const PAGES: u64 = 4;
pub const HOST: u64 = 16;

/// A guest, its processors, its memory's content, and the copy that a migration makes of it.
pub struct World {
    pub guest: &'static Guest<TestMemory>,
    pub machine: Machine<'static, TestMemory>,
    pub data: Vec<AtomicU64>,
    pub copy: Vec<AtomicU64>,
}

impl World {
    /// Everything mapped with leaves up to `largest`; page 0 written before the log starts.
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

    /// With room for more processors than there are.
    pub fn with_room(max_level: Level, cpus: usize, room: usize) -> Arc<Self> {
        let guest = Guest::new(TestMemory::new(30), PAGES, room, Capabilities::ALL).unwrap();
        let guest: &'static Guest<TestMemory> = Box::leak(Box::new(guest));
        let mapping = Mapping {
            max_level,
            ..Mapping::ram(guest.all(), Frame::new(HOST))
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

    /// A virtual processor writes, if the page is there.
    pub fn write(&self, cpu: usize, page: u64, value: u64) {
        let _ = self.machine.access(cpu, page << 12, Access::Write, |host| {
            assert_eq!(host >> 12, HOST + page);
            self.data[page as usize].store(value, Ordering::Relaxed);
        });
    }

    /// Takes the log of a range and copies what it reports.
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

    /// The virtual processors have stopped: the last take, and the comparison.
    pub fn finish(self: Arc<Self>) {
        self.take(self.guest.all());
        for (page, (data, copy)) in self.data.iter().zip(&self.copy).enumerate() {
            let (data, copy) = (data.load(Ordering::Relaxed), copy.load(Ordering::Relaxed));
            assert_eq!(data, copy, "a write to page {page} was lost");
        }
        self.close();
    }

    /// Frees everything, or loom would run out of memory before interleavings.
    ///
    /// Whoever writes into a freed frame spoils what it was filled with, which the allocator looks at.
    pub fn close(self: Arc<Self>) {
        let world = Arc::try_unwrap(self).ok().unwrap();
        while world.guest.memory().allocate().is_some() {}
        drop(world.machine);
        // SAFETY: made by `Box::leak`, and the machine, which borrowed it, is gone.
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
