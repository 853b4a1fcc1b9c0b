//! From the fault to the request, and from the received page to the installed one, the destination
//! allocates no memory: an allocation could wait, for a lock or for the kernel.
//!
//! A separate process, whose allocator counts.

#![allow(missing_docs)]
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::print_stderr
)]
// The other tests use the other items of these.
#![allow(dead_code)]

#[path = "engine/direct_io_device.rs"]
mod direct_io_device;
#[path = "engine/guests.rs"]
mod guests;
#[path = "engine/machine.rs"]
mod machine;
#[path = "engine/memory.rs"]
mod memory;
#[path = "engine/network.rs"]
mod network;

use std::alloc::System;
use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use error_reporter::Report;
use hikkoshi_engine::report::Silent;
use hikkoshi_engine::{CancelFlag, DestinationOptions, ReceiveControl, receive};
use hikkoshi_handover::Unrecorded;
use hikkoshi_link::tls::{TlsClient, TlsServer};
use hikkoshi_link::{Address, LinkReader, LinkWriter, Listener, Remote, hello, open, split};
use hikkoshi_pages::{PAGE_SIZE, Page, PageRange, RamLayout};
use hikkoshi_wire::{
    DeviceStateDigest, Frame, Limits, MigrationId, PageRanges, Role, ToDestination, ToSource,
};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

use guests::{TestDestination, device_state};
use machine::Machine;
use memory::{HUGE, HugePages, MIB, Memory, SMALL, layout};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const DEVICE_BYTES: usize = 1000;

type Ends = (LinkReader, LinkWriter);

/// Answers `requests` requests with pages full of threes, in pieces of `piece` pages, the later
/// pieces first, every second one on the background link.
fn answer(urgent: &mut Ends, background: &mut Ends, requests: u64, piece: u64, content: &[u8]) {
    for _ in 0..requests {
        let Frame::Request { range } = urgent.0.frame().unwrap() else {
            panic!("something else")
        };
        let pieces = range.len().div_ceil(piece);
        for nth in (0..pieces).rev() {
            let first = range.start().saturating_add(nth * piece);
            let part = PageRange::from_len(first, piece).intersect(range);
            let link = if nth % 2 == 0 {
                &mut *urgent
            } else {
                &mut *background
            };
            let bytes = part.bytes() as usize;
            link.1.pages(part, &content[..bytes]).unwrap();
        }
    }
}

/// In how many checks, 10 ms apart, a thread must be found asleep before it counts as idle.
const LOOKS: u32 = 20;

/// More checks than a busy machine needs.
const MAX_LOOKS: u32 = 30_000;

/// Waits until every other thread of this process waits; spinning threads, if any, have done their
/// work before. A thread that has not reached its wait for lack of a processor is not asleep.
fn await_waiting(spinning: bool) {
    let own = std::fs::read_link("/proc/thread-self").unwrap();
    let mut asleep: HashMap<OsString, u32> = HashMap::new();
    for _ in 0..MAX_LOOKS {
        let mut all = true;
        for task in std::fs::read_dir("/proc/self/task").unwrap() {
            let task = task.unwrap();
            // A thread that ends meanwhile is ignored.
            let Ok(stat) = std::fs::read_to_string(task.path().join("stat")) else {
                continue;
            };
            // proc_pid_stat(5): the number, the name in parentheses, the state.
            let (name, state) = stat.rsplit_once(") ").unwrap();
            let spins = ["(dst-faults-", "(dst-urgent"];
            if Some(&*task.file_name()) == own.file_name()
                || spinning && spins.iter().any(|spins| name.contains(spins))
            {
                continue;
            }
            let looks = asleep.entry(task.file_name()).or_default();
            *looks += u32::from(state.starts_with('S'));
            all &= *looks >= LOOKS && state.starts_with('S');
        }
        if all {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Receives a guest with `source`'s memory; a thread touches all of it while the device state is
/// loaded. Returns the number of allocations in this process for all but the first host pages.
fn allocations(
    source: &RamLayout,
    destination: &RamLayout,
    options: DestinationOptions,
    tls: bool,
) -> usize {
    let memories = [source, destination].map(|layout| Arc::new(Memory::new(layout)));
    let machine = Arc::new(Machine::new(&memories[0], &memories[1]));
    let mut guest = TestDestination::new(&machine, DEVICE_BYTES);
    guest.checks = false;
    let description = guest.description.clone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("listen");
    let address = Address::Unix(path);
    let mut listener = Listener::bind(&address).unwrap();
    let mut remote = Remote::from(address.clone());
    if tls {
        let server = TlsServer::inviting().unwrap();
        let invitation = server.invitation(address).unwrap();
        remote.tls = Some(TlsClient::invited(&invitation).unwrap());
        listener = listener.with_tls(server);
    }
    let limits = Limits::from(destination);
    let step = destination.blocks().next().unwrap().0.host_page / SMALL;
    let touched = destination.pages() / step;
    let first = touched / 8;
    let counted = Arc::new(AtomicUsize::new(usize::MAX));
    let count = Arc::clone(&counted);
    let memory = Arc::clone(&memories[1]);
    guest.script.at("load_device_state", move || {
        for number in 0..first {
            assert!(memory.load(number * step) == [3; PAGE_SIZE]);
        }
        // Every thread has waited once by then, the main thread as well: a channel's first wait
        // allocates.
        await_waiting(options.poll);
        let region = Region::new(ALLOCATOR);
        for number in first..touched {
            // One of its pages, not always the first.
            let page = number * step + number % step;
            assert!(memory.load(page) == [3; PAGE_SIZE], "page {page}");
        }
        count.store(region.change().allocations, Ordering::SeqCst);
        Ok(())
    });
    let control = ReceiveControl {
        cancel: CancelFlag::new(),
        observer: Arc::new(Silent),
        journal: Arc::new(Unrecorded),
    };
    let cancelled = Mutex::new(None);
    thread::scope(|scope| {
        scope.spawn(|| {
            let id = MigrationId::from_bytes([7; 16]);
            let mut streams = Vec::new();
            let mut link = |role| {
                let (stream, _) = open(&remote, &hello(role, id), &CancelFlag::new()).unwrap();
                let stream = Arc::new(stream);
                streams.push(Arc::clone(&stream));
                split(&stream, limits, &CancelFlag::new()).unwrap()
            };
            let mut control = link(Role::Control);
            let offer = ToDestination::Offer {
                guest: Box::new(hikkoshi_wire::OfferedGuest::from_description(description)),
                mode: hikkoshi_wire::Mode::Postcopy,
                may_postcopy: true,
                background_links: 1,
                keeps_frames: false,
            };
            control.1.control(&offer).unwrap();
            let answered: ToSource = control.0.control().unwrap();
            assert!(matches!(answered, ToSource::Accept { .. }), "{answered:?}");
            let mut background = link(Role::Background { index: 0 });
            let mut urgent = link(Role::Urgent);
            for ranges in PageRanges::batches([limits_all(limits)]) {
                let discard = ToDestination::Discard { ranges };
                control.1.control(&discard).unwrap();
            }
            let mut digest = DeviceStateDigest::new();
            let bytes = device_state(DEVICE_BYTES);
            digest.update(&bytes).unwrap();
            let chunk = ToDestination::DeviceStateChunk { bytes };
            control.1.control(&chunk).unwrap();
            let switch = ToDestination::Switch {
                device_bytes: digest.bytes(),
                device_crc32c: digest.crc32c(),
                owed_pages: limits.pages,
                postcopy: true,
                running: true,
            };
            control.1.control(&switch).unwrap();
            let content = vec![3; 8 * PAGE_SIZE];
            answer(&mut urgent, &mut background, touched, 8, &content);
            // Not cancelled earlier: its memory would be released while the last page is still
            // being read.
            while counted.load(Ordering::SeqCst) == usize::MAX {
                thread::sleep(Duration::from_millis(10));
            }
            let reason = "enough".into();
            let cancel = ToDestination::Cancel { reason };
            control.1.control(&cancel).unwrap();
            // Kept open until the other side has ended.
            while control.0.control::<ToSource>().is_ok() {}
        });
        let result = receive(&mut guest, &listener, &options, &control);
        *cancelled.lock().unwrap() = Some(Report::new(&result.unwrap_err()).to_string());
    });
    let why = cancelled.into_inner().unwrap().unwrap();
    assert_eq!(why, "the source ended the migration: enough");
    counted.load(Ordering::SeqCst)
}

fn limits_all(limits: Limits) -> PageRange {
    PageRange::from_len(Page::new(0), limits.pages)
}

/// One test: allocations of another test would be counted, too.
#[test]
fn a_fault_is_answered_without_allocating() {
    let small = layout(&[(8 * MIB, SMALL)]);
    let options = DestinationOptions::default();
    let count = |options, tls| allocations(&small, &small, options, tls);
    assert_eq!(count(options, false), 0, "small pages");
    assert_eq!(count(options, true), 0, "small pages, TLS");
    let spinning = DestinationOptions {
        poll: true,
        // If there are several, one may still be starting, which allocates.
        fault_threads: std::num::NonZeroU16::new(1),
        ..options
    };
    assert_eq!(count(spinning, false), 0, "spinning");
    let Some(_pages) = HugePages::reserve(8) else {
        return;
    };
    let source = layout(&[(8 * HUGE, SMALL)]);
    let destination = layout(&[(8 * HUGE, HUGE)]);
    let count = |tls| allocations(&source, &destination, options, tls);
    assert_eq!(count(false), 0, "huge pages");
    assert_eq!(count(true), 0, "huge pages, TLS");
}
