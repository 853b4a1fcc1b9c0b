//! The log of `hikkoshi-ept`'s second-stage tables, with software processors; and a log that
//! several clients share.

#![allow(clippy::unwrap_used)]

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use hikkoshi_dirty::{DirtyError, DirtyLog, contract_tests};
use hikkoshi_ept::testing::{Access, Machine, TestMemory};
use hikkoshi_ept::{Capabilities, Gfn, GfnRange, Guest, HostFrame, LogMethod, Mapping, View};
use hikkoshi_ept_dirty_log::{EptLog, SharedLog, StartError};
use hikkoshi_pages::{GuestRange, PAGE_BYTES, Page, PageRange, RamBlock, RamLayout};

const METHODS: [LogMethod; 3] = [
    LogMethod::WriteProtection,
    LogMethod::DirtyFlags,
    LogMethod::Pml,
];
const FRAMES: u64 = 16 << 10;
/// The host frame of guest frame 0.
const HOST: u64 = 1 << 20;
const VCPUS: usize = 2;
/// After so many writes a thread lets others run.
const WRITES_PER_TURN: u64 = 64;

/// A block of pages that is mapped in parts: their first guest frame and number of pages.
fn block(id: &str, parts: &[(u64, u64)]) -> RamBlock {
    let mut offset = 0;
    let mut guest = Vec::new();
    for &(first, pages) in parts {
        let bytes = pages * PAGE_BYTES;
        let gpa = first * PAGE_BYTES;
        guest.push(GuestRange { gpa, offset, bytes });
        offset += bytes;
    }
    RamBlock {
        id: id.to_owned(),
        bytes: offset,
        host_page: PAGE_BYTES,
        guest,
    }
}

type Tables = Arc<Guest<TestMemory>>;
type Processors = &'static Machine<'static, TestMemory>;

/// A guest of 14 MiB. Parts begin and end inside words of 64 pages and inside superpages.
struct Vm {
    layout: RamLayout,
    tables: Tables,
    machine: Processors,
    /// The content of each guest frame: its first word.
    content: Arc<Vec<AtomicU64>>,
    writers: Mutex<Vec<JoinHandle<()>>>,
    stop: Arc<AtomicBool>,
    pinned: AtomicU64,
}

impl Vm {
    fn new() -> Self {
        let blocks = vec![
            block("low", &[(0, 1283)]),
            block("split", &[(9000, 100), (2050, 900)]),
            block("high", &[(12_000, 1301)]),
        ];
        let layout = RamLayout::new(blocks).unwrap();
        let guest = Guest::new(TestMemory::new(300), FRAMES, VCPUS, Capabilities::ALL).unwrap();
        let all = GfnRange::from_len(Gfn::new(0), FRAMES);
        let mapping = Mapping::ram(all, HostFrame::new(HOST));
        guest.map(View::MAIN, &mapping).unwrap();
        let tables = Arc::new(guest);
        // The machine borrows the tables, and its threads live as long as the test.
        let kept: &'static Tables = Box::leak(Box::new(Arc::clone(&tables)));
        let machine = Box::leak(Box::new(Machine::new(kept, VCPUS).unwrap()));
        Self {
            layout,
            tables,
            machine,
            content: Arc::new((0..FRAMES).map(|_| AtomicU64::new(0)).collect()),
            writers: Mutex::default(),
            stop: Arc::default(),
            pinned: AtomicU64::new(0),
        }
    }

    fn start(&self, method: LogMethod) -> EptLog<TestMemory, Processors> {
        EptLog::start(Arc::clone(&self.tables), self.machine, &self.layout, method).unwrap()
    }

    fn frame(&self, page: Page) -> u64 {
        let (block, offset) = self.layout.locate(page).unwrap();
        let (block, _) = self.layout.block(block).unwrap();
        let within = |part: &&GuestRange| (part.offset..part.offset + part.bytes).contains(&offset);
        let part = block.guest.iter().find(within).unwrap();
        (part.gpa + offset - part.offset) / PAGE_BYTES
    }

    fn access(&self, cpu: usize, page: Page, access: Access, then: impl FnOnce(&AtomicU64)) {
        let at = |host| &self.content[usize::try_from(host / PAGE_BYTES - HOST).unwrap()];
        self.machine
            .access(cpu, self.frame(page) * PAGE_BYTES, access, |host| {
                then(at(host))
            })
            .unwrap();
    }
}

impl fmt::Debug for Vm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vm").finish_non_exhaustive()
    }
}

impl contract_tests::Guest for Vm {
    fn layout(&self) -> &RamLayout {
        &self.layout
    }
    fn write(&self, page: Page, value: u64) {
        self.access(0, page, Access::Write, |word| {
            word.store(value, Ordering::SeqCst);
        });
    }
    fn touch(&self, page: Page) {
        self.access(1, page, Access::Read, |_| ());
    }
    fn start_writing(&self) {
        self.stop.store(false, Ordering::SeqCst);
        let frames: Vec<u64> = self
            .layout
            .all()
            .iter()
            .map(|page| self.frame(page))
            .collect();
        let frames = Arc::new(frames);
        let mut writers = self.writers.lock().unwrap();
        for cpu in 0..VCPUS {
            let (machine, content) = (self.machine, Arc::clone(&self.content));
            let (stop, frames) = (Arc::clone(&self.stop), Arc::clone(&frames));
            writers.push(thread::spawn(move || {
                let mut random = cpu as u64 + 1;
                let mut written = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    // Outside the guest: if the thread loses its host processor inside, it keeps
                    // the lock of its virtual processor, and a take spins until it runs again.
                    written += 1;
                    if written.is_multiple_of(WRITES_PER_TURN) {
                        thread::yield_now();
                    }
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let frame = frames[usize::try_from(random % frames.len() as u64).unwrap()];
                    let at = |host| &content[usize::try_from(host / PAGE_BYTES - HOST).unwrap()];
                    machine
                        .access(cpu, frame * PAGE_BYTES, Access::Write, |host| {
                            at(host).fetch_add(random | 1, Ordering::SeqCst);
                        })
                        .unwrap();
                }
            }));
        }
    }
    fn stop_writing(&self) {
        self.stop.store(true, Ordering::SeqCst);
        for writer in self.writers.lock().unwrap().drain(..) {
            writer.join().unwrap();
        }
    }
    /// The device is part of the hypervisor, which marks what the processors cannot see.
    fn pin(&self, page: Page) {
        self.pinned.store(self.frame(page), Ordering::SeqCst);
        let frame = Gfn::new(self.frame(page));
        self.tables.mark_dirty(GfnRange::from_len(frame, 1));
    }
    fn land(&self, value: u64) {
        let frame = usize::try_from(self.pinned.load(Ordering::SeqCst)).unwrap();
        self.content[frame].store(value, Ordering::SeqCst);
    }
    /// The hypervisor has other, empty frames of the host for them.
    fn drop_pages(&self, range: PageRange) {
        for page in range {
            let frame = usize::try_from(self.frame(page)).unwrap();
            self.content[frame].store(0, Ordering::SeqCst);
        }
    }
    fn read(&self, page: Page) -> u64 {
        let frame = usize::try_from(self.frame(page)).unwrap();
        self.content[frame].load(Ordering::SeqCst)
    }
}

fn take(log: &dyn DirtyLog, range: PageRange) -> Vec<PageRange> {
    let mut runs = Vec::new();
    log.take(range, &mut |run| runs.push(run)).unwrap();
    runs
}

#[test]
fn every_method_passes_the_contract_tests() {
    for method in METHODS {
        let vm = Vm::new();
        contract_tests::check(&vm, &vm.start(method));
        assert_eq!(vm.tables.log_method(), None, "the log is off");
    }
}

#[test]
fn a_log_can_be_started_again() {
    let vm = Vm::new();
    for method in METHODS {
        let log = vm.start(method);
        contract_tests::Guest::write(&vm, Page::new(1300), 1);
        assert_eq!(
            take(&log, vm.layout.all()),
            [PageRange::one(Page::new(1300))]
        );
    }
}

#[test]
fn layouts_whose_writes_would_be_missed_are_refused() {
    let vm = Vm::new();
    let refused = |blocks| {
        let layout = RamLayout::new(blocks).unwrap();
        let (tables, method) = (Arc::clone(&vm.tables), LogMethod::Pml);
        let error = EptLog::start(tables, vm.machine, &layout, method).unwrap_err();
        assert_eq!(vm.tables.log_method(), None, "nothing is logged");
        error
    };
    let mut unmapped = block("ram", &[(0, 10), (20, 10)]);
    unmapped.guest.remove(0);
    let error = refused(vec![block("other", &[(64, 64)]), unmapped]);
    assert_eq!(
        error.to_string(),
        "starting the dirty log of RAM block ram: the layout does not say at which guest address \
         its byte 0x0 is mapped once"
    );
    let error = refused(vec![block("a", &[(0, 64)]), block("b", &[(63, 2)])]);
    assert_eq!(
        error.to_string(),
        "starting the dirty log: pages 0..64 and pages 64..66 are both at guest address 0x3f000"
    );
    let error = refused(vec![block("a", &[(0, 64)]), block("b", &[(FRAMES - 1, 2)])]);
    assert!(
        matches!(
            error,
            StartError::Tables(hikkoshi_ept::StartError::OutOfRange(_))
        ),
        "{error:?}"
    );
}

#[test]
fn a_client_passes_the_contract_tests_beside_another_one() {
    let vm = Vm::new();
    let all = vm.layout.all();
    let shared = SharedLog::new(vm.start(LogMethod::Pml), vm.layout.pages());
    let (one, other) = (shared.client().unwrap(), shared.client().unwrap());
    contract_tests::check(&vm, &one);
    assert_eq!(take(&other, all), [all], "every page was written");
    assert_eq!(take(&other, all), []);
    other.stop().unwrap();
    let error = shared.client().unwrap_err();
    assert!(matches!(error, DirtyError::Stopped), "{error:?}");
    assert_eq!(vm.tables.log_method(), None, "the log is off");
}

/// Each client keeps a copy of the guest by its own log alone, while the guest writes.
#[test]
fn no_client_misses_a_write_that_another_takes() {
    for method in METHODS {
        let vm = Vm::new();
        let shared = SharedLog::new(vm.start(method), vm.layout.pages());
        let (all, pages) = (vm.layout.all(), vm.layout.pages());
        let follow = |size: u64| {
            let log = shared.client().unwrap();
            let mut copy: Vec<u64> = all.iter().map(|page| vm_read(&vm, page)).collect();
            let mut taken = 0;
            let mut update = |part| {
                for page in take(&log, part).into_iter().flat_map(PageRange::iter) {
                    copy[usize::try_from(page.index()).unwrap()] = vm_read(&vm, page);
                    taken += 1;
                }
                taken
            };
            let mut passes = 0;
            while all.chunks(size).map(&mut update).last() < Some(16 * pages) {
                passes += 1;
                assert!(passes < 10_000, "too few writes were reported");
                // The guest writes meanwhile, however busy the host is.
                thread::sleep(Duration::from_millis(1));
            }
            (log, copy)
        };
        contract_tests::Guest::start_writing(&vm);
        let mut followers: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = [61, 700, pages]
                .map(|size| scope.spawn(move || follow(size)))
                .into_iter()
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        contract_tests::Guest::stop_writing(&vm);
        for (log, copy) in &mut followers {
            for page in take(log, all).into_iter().flat_map(PageRange::iter) {
                copy[usize::try_from(page.index()).unwrap()] = vm_read(&vm, page);
            }
            for (page, copied) in all.iter().zip(copy) {
                assert_eq!(vm_read(&vm, page), *copied, "{method}: {page}");
            }
        }
    }
}

fn vm_read(vm: &Vm, page: Page) -> u64 {
    contract_tests::Guest::read(vm, page)
}
