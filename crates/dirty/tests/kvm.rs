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
use kvm_guest::{KvmGuest, Shape, kvm_present};

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
        let vcpu = if page.index() % 2 == 0 { 0 } else { 1 };
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
    fn read(&self, page: Page) -> u64 {
        self.guest.read(page)
    }
}

fn passes_the_contract_tests(method: Method) {
    if !kvm_present() {
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
