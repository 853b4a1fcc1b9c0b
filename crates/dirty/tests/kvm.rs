//! KVM's dirty logs, with real virtual processors.

// The unsafe blocks describe memory slots, some of them wrong on purpose.
#![allow(unsafe_code, clippy::unwrap_used, clippy::print_stderr)]

#[path = "../../linux/tests/common/mod.rs"]
mod common;
#[path = "common/kvm_guest.rs"]
mod kvm_guest;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hikkoshi_dirty::contract_tests;
use hikkoshi_dirty::kvm::{DirtyRings, KvmLog, KvmStartError, MemorySlot, MemorySlots, SlotError};
use hikkoshi_dirty::{DirtyError, DirtyLog};
use hikkoshi_pages::{Page, PageRange, RamLayout};
use kvm_bindings::{KVM_CAP_DIRTY_LOG_RING, KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2};
use kvm_guest::{KvmGuest, Shape, kvm_present};
use kvm_ioctls::Kvm;

const MIB: u64 = 1 << 20;
const SMALL: u64 = 4 << 10;

/// Blocks of which most begin and end inside a word of 64 pages.
const BLOCKS: [u64; 3] = [5 * MIB + 3 * SMALL, 16 * SMALL, 9 * MIB];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Method {
    Bitmap,
    ManualProtect,
    Ring,
}

const METHODS: [Method; 3] = [Method::Bitmap, Method::ManualProtect, Method::Ring];

impl Method {
    /// Whether this host has it. If not, this says that nothing is tested.
    fn present(self) -> bool {
        let number = match self {
            Method::Bitmap => return kvm_present(),
            Method::ManualProtect => KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2,
            Method::Ring => KVM_CAP_DIRTY_LOG_RING,
        };
        let offered = || Kvm::new().unwrap().check_extension_raw(number.into()) > 0;
        kvm_present()
            && (offered() || {
                common::aloud(&format!("NOT TESTED: {self:?}: this host's KVM has none"));
                false
            })
    }
}

/// A guest and its log.
#[derive(Debug)]
struct Logged {
    guest: KvmGuest,
    log: Arc<KvmLog>,
    /// The page that a device has pinned.
    pinned: AtomicU64,
}

/// The smallest rings that KVM allows everywhere, so that they are full now and then.
const ENTRIES: u32 = 1024;

fn new_guest(method: Method, blocks: &[u64], vcpus: u64) -> KvmGuest {
    KvmGuest::new(&Shape {
        blocks,
        slot_pages: 641, // so that slots begin inside words of 64 pages
        vcpus,
        ring: (method == Method::Ring).then_some(ENTRIES),
    })
}

fn start(method: Method, guest: &KvmGuest) -> Result<KvmLog, KvmStartError> {
    match (method, &guest.rings) {
        (Method::Bitmap, _) => KvmLog::bitmap(guest.slots()),
        (Method::ManualProtect, _) => KvmLog::manual_protect(guest.slots()),
        (Method::Ring, Some(rings)) => KvmLog::ring(guest.slots(), Arc::clone(rings)),
        (Method::Ring, None) => panic!("a guest without rings"),
    }
}

impl Logged {
    fn new(method: Method, blocks: &[u64], vcpus: u64) -> Self {
        let guest = new_guest(method, blocks, vcpus);
        let log = Arc::new(start(method, &guest).unwrap());
        guest.monitor().log.set(Arc::clone(&log)).unwrap();
        Self {
            guest,
            log,
            pinned: AtomicU64::new(0),
        }
    }

    fn take(&self, range: PageRange) -> Vec<PageRange> {
        let mut runs = Vec::new();
        self.log.take(range, &mut |run| runs.push(run)).unwrap();
        runs
    }
}

impl contract_tests::Guest for Logged {
    fn layout(&self) -> &RamLayout {
        &self.guest.layout
    }
    fn write(&self, page: Page, value: u64) {
        let vcpu = usize::from(!page.index().is_multiple_of(2));
        self.guest.write(vcpu, page, value);
    }
    fn touch(&self, page: Page) {
        self.guest.touch(0, page);
    }
    fn start_writing(&self) {
        self.guest.start_writing();
    }
    fn stop_writing(&self) {
        self.guest.stop_writing();
    }
    /// The device is part of the monitor, which marks what KVM cannot see.
    fn pin(&self, page: Page) {
        self.pinned.store(page.index(), Ordering::SeqCst);
        self.log.mark(PageRange::one(page));
    }
    fn land(&self, value: u64) {
        let page = Page::new(self.pinned.load(Ordering::SeqCst));
        self.guest.write_as_device(page, value);
    }
    fn drop_pages(&self, range: PageRange) {
        self.guest.drop_pages(range);
    }
    fn read(&self, page: Page) -> u64 {
        self.guest.read(page)
    }
}

fn passes_the_contract_tests(method: Method) {
    if !method.present() {
        return;
    }
    let logged = Logged::new(method, &BLOCKS, 2);
    contract_tests::check(&logged, &*logged.log);
}

#[test]
fn the_bitmap_passes_the_contract_tests() {
    passes_the_contract_tests(Method::Bitmap);
}

#[test]
fn manual_protection_passes_the_contract_tests() {
    passes_the_contract_tests(Method::ManualProtect);
}

#[test]
fn rings_pass_the_contract_tests() {
    passes_the_contract_tests(Method::Ring);
}

/// Four processors write stamps while four threads take the log range by range, and copy what is
/// reported. In the end the copy has the last stamp of each page.
fn no_stamp_is_missed(method: Method) {
    if !method.present() {
        return;
    }
    let logged = Logged::new(method, &BLOCKS, 4);
    let pages = logged.guest.layout.pages();
    let all = logged.guest.layout.all();
    logged.take(all);
    let copy: Vec<AtomicU64> = (0..pages).map(|_| AtomicU64::new(0)).collect();
    let copied = AtomicU64::new(0);
    // Each page belongs to one thread, so that an older stamp cannot replace a newer one.
    let sweep = |ranges: &mut dyn Iterator<Item = PageRange>| {
        let mut copy = |run: PageRange| {
            for page in run {
                let at = usize::try_from(page.index()).unwrap();
                copy[at].store(logged.guest.read(page), Ordering::Relaxed);
            }
            copied.fetch_add(run.len(), Ordering::Relaxed);
        };
        for range in ranges {
            logged.log.take(range, &mut copy).unwrap();
        }
    };
    logged.guest.start_writing();
    std::thread::scope(|scope| {
        for part in all.chunks(pages.div_ceil(4)) {
            let (sweep, copied) = (&sweep, &copied);
            scope.spawn(move || {
                while copied.load(Ordering::Relaxed) < 25 * pages {
                    sweep(&mut part.chunks(700));
                }
            });
        }
    });
    logged.guest.stop_writing();
    sweep(&mut all.chunks(173));
    assert_eq!(logged.take(all), [], "no processor runs");
    for (page, stamp) in all.iter().zip(&copy) {
        let is = logged.guest.read(page);
        assert_eq!(
            is,
            stamp.load(Ordering::Relaxed),
            "NEVER RETRIED: {method:?}: a write to {page} was missed: stamp {} of processor {}",
            is & 0xffff_ffff_ffff,
            is >> 48,
        );
    }
}

#[test]
fn the_bitmap_misses_no_write_of_four_processors() {
    no_stamp_is_missed(Method::Bitmap);
}

#[test]
fn manual_protection_misses_no_write_of_four_processors() {
    no_stamp_is_missed(Method::ManualProtect);
}

#[test]
fn rings_miss_no_write_of_four_processors() {
    no_stamp_is_missed(Method::Ring);
}

/// No thread takes the log, so the processor stops with a full ring again and again.
#[test]
fn a_full_ring_loses_nothing() {
    if !Method::Ring.present() {
        return;
    }
    let logged = Logged::new(Method::Ring, &BLOCKS, 1);
    let pages = logged.guest.layout.pages();
    let all = logged.guest.layout.all();
    for value in 1..4 {
        logged.guest.fill(0, Page::new(0), 1, pages, value);
    }
    let full = logged.guest.monitor().full_rings.load(Ordering::Relaxed);
    assert!(
        full >= 3 * (pages / u64::from(ENTRIES)),
        "{full} full rings"
    );
    assert_eq!(logged.take(all), [all]);
    assert_eq!(logged.take(all), []);
    // A ring that is full when the log is stopped must not stop the processor for good.
    logged
        .guest
        .fill(0, Page::new(0), 1, u64::from(ENTRIES) - 100, 4);
    logged.log.stop().unwrap();
    logged.guest.fill(0, Page::new(0), 1, pages, 5);
}

/// A log can be started again, and begins without old pages, as [`DirtyLog::stop`] says.
#[test]
fn a_log_can_be_started_again() {
    for method in METHODS.into_iter().filter(|method| method.present()) {
        let guest = new_guest(method, &BLOCKS, 1);
        let all = guest.layout.all();
        for round in 0..3 {
            guest.write(0, Page::new(900), round);
            let log = start(method, &guest).unwrap();
            let take = || {
                let mut runs = Vec::new();
                log.take(all, &mut |run| runs.push(run)).unwrap();
                runs
            };
            match method {
                // Its first take reports everything.
                Method::ManualProtect => assert_eq!(take(), [all]),
                _ => assert_eq!(take(), [], "{method:?}, round {round}"),
            }
            guest.write(0, Page::new(round), 1);
            assert_eq!(take(), [PageRange::one(Page::new(round))], "{method:?}");
            guest.write(0, Page::new(901), 1);
        }
    }
}

/// This is why the monitor marks what it writes. If this test fails because the write is reported,
/// KVM now reports it.
#[test]
fn what_the_monitor_writes_is_reported_only_if_marked() {
    for method in METHODS.into_iter().filter(|method| method.present()) {
        let logged = Logged::new(method, &BLOCKS, 1);
        let (all, page) = (logged.guest.layout.all(), Page::new(1300));
        logged.take(all);
        logged.guest.write_as_device(page, 1);
        assert_eq!(logged.take(all), [], "{method:?}");
        logged.log.mark(PageRange::one(page));
        // Also written by a processor: one page.
        logged.guest.write(0, page, 2);
        assert_eq!(logged.log.count(all).unwrap(), 1, "{method:?}");
        assert_eq!(logged.take(all), [PageRange::one(page)], "{method:?}");
    }
}

/// Only rings need something from the VM's creation on.
#[test]
fn rings_are_enabled_before_the_first_processor() {
    if !Method::Ring.present() {
        return;
    }
    let guest = new_guest(Method::Bitmap, &BLOCKS, 1);
    let error = DirtyRings::enable(&guest.vm, ENTRIES).unwrap_err();
    assert!(
        error.to_string().contains("first virtual processor"),
        "{error}"
    );
    // With rings, KVM has no bitmaps.
    let guest = new_guest(Method::Ring, &BLOCKS, 1);
    for method in [Method::Bitmap, Method::ManualProtect] {
        let log = start(method, &guest).unwrap();
        let error = log.take(guest.layout.all(), &mut |_| {}).unwrap_err();
        assert!(
            matches!(&error, DirtyError::KvmSlot { call, .. } if *call == "KVM_GET_DIRTY_LOG"),
            "{error:?}"
        );
    }
}

#[test]
fn slots_that_do_not_fit_the_layout_are_refused() {
    if !kvm_present() {
        return;
    }
    let guest = new_guest(Method::Bitmap, &BLOCKS, 1);
    let check = |change: &dyn Fn(&mut Vec<MemorySlot>)| {
        let mut slots = guest.slot_list();
        change(&mut slots);
        // SAFETY: no log is started with these slots.
        let slots = unsafe { MemorySlots::new(Arc::clone(&guest.vm), &guest.layout, slots) };
        slots.map(|_| ()).unwrap_err()
    };
    let range = |start, end| PageRange::new(Page::new(start), Page::new(end));
    let pages = guest.layout.pages();
    // The slots have the numbers 300 to 293, and 641, 641, 1, 16, 641, 641, 641 and 381 pages.
    assert_eq!(
        check(&|slots| {
            slots.remove(1);
        }),
        SlotError::Hole {
            pages: range(641, 1282)
        }
    );
    assert_eq!(
        check(&|slots| {
            slots.pop();
        }),
        SlotError::Hole {
            pages: range(pages - 381, pages)
        }
    );
    assert_eq!(
        check(&|slots| slots[1].region.slot = 300),
        SlotError::Duplicate { slot: 300 }
    );
    assert_eq!(
        check(&|slots| slots[1].first_page = Page::new(640)),
        SlotError::SamePages {
            slot: 300,
            other: 299,
            pages: range(640, 641)
        }
    );
    assert_eq!(
        check(&|slots| slots[1].region.guest_phys_addr -= SMALL),
        SlotError::SameAddress {
            slot: 300,
            other: 299,
            gpa: (1 << 30) + 640 * SMALL
        }
    );
    assert_eq!(
        check(&|slots| slots[7].region.memory_size += SMALL),
        SlotError::BeyondLayout {
            slot: 293,
            held: range(pages - 381, pages + 1),
            pages
        }
    );
    assert_eq!(
        check(&|slots| slots[3].region.memory_size += 8),
        SlotError::Unaligned {
            slot: 297,
            gpa: (1 << 30) + 1283 * SMALL,
            bytes: 16 * SMALL + 8
        }
    );
    assert_eq!(
        check(&|slots| slots[3].region.flags = 4),
        SlotError::Flags {
            slot: 297,
            flags: 4
        }
    );
}
