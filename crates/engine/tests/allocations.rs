//! Answering a page request allocates no memory at the source: an allocation could wait, for a lock
//! or for the kernel.
//!
//! A separate process, whose allocator counts.

#![allow(missing_docs)]
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]
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
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;

use hikkoshi_engine::report::Silent;
use hikkoshi_engine::{CancelFlag, MigrateControl, Mode, SourceControl, SourceOptions, migrate};
use hikkoshi_handover::Outcome;
use hikkoshi_handover::Unrecorded;
use hikkoshi_link::tls::{TlsClient, TlsServer};
use hikkoshi_link::{AcceptedLink, Address, LinkReader, LinkWriter, Listener, Remote, split};
use hikkoshi_pages::{Page, PageRange};
use hikkoshi_wire::{Frame, HEADER_LEN, Limits, Role, ToDestination, ToSource};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

use guests::TestSource;
use machine::{Machine, Side};
use memory::{MIB, Memory, SMALL, layout};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Requests at once in the pipelined part.
const BATCH: usize = 32;

type Ends = (LinkReader, LinkWriter);

fn ends(link: AcceptedLink, limits: Limits) -> Ends {
    split(&Arc::new(link.stream), limits, &CancelFlag::new()).unwrap()
}

fn read_until(control: &mut Ends, last: &str) {
    loop {
        let message: ToDestination = control.0.control().unwrap();
        if format!("{message:?}").starts_with(last) {
            return;
        }
    }
}

/// Reads answers until `pages` pages have arrived.
fn receive(urgent: &mut LinkReader, mut pages: u64, buffer: &mut [u8]) {
    while pages > 0 {
        let frame = urgent.frame().unwrap();
        urgent.payload(&mut buffer[..frame.payload_len()]).unwrap();
        let (Frame::Pages { range } | Frame::Zeros { range }) = frame else {
            panic!("{frame:?}")
        };
        pages -= range.len();
    }
}

/// Requests pages one by one, many at once, and many in one request; returns the number of
/// allocations in this process meanwhile, and the number of requests.
fn ask(urgent: &mut Ends) -> (usize, u64) {
    let mut buffer = vec![0; MIB as usize];
    let mut batch = Vec::with_capacity(BATCH * HEADER_LEN);
    // Every page from 64 up to 256 is owed, and so on every 256 pages.
    let mut pages = (0..).flat_map(|block| block * 256 + 64..block * 256 + 256);
    let mut page = || PageRange::one(Page::new(pages.next().unwrap()));
    let mut one = |urgent: &mut Ends, buffer: &mut [u8]| {
        urgent.1.frame(Frame::Request { range: page() }).unwrap();
        receive(&mut urgent.0, 1, buffer);
    };
    for _ in 0..64 {
        one(urgent, &mut buffer);
    }
    let region = Region::new(ALLOCATOR);
    for _ in 0..512 {
        one(urgent, &mut buffer);
    }
    for block in 8..24 {
        batch.clear();
        for nth in 0..BATCH as u64 {
            let page = Page::new(block * 256 + 64 + nth * 5);
            let range = PageRange::one(page);
            batch.extend_from_slice(&Frame::Request { range }.encode());
        }
        urgent.1.frames(&batch).unwrap();
        receive(&mut urgent.0, BATCH as u64, &mut buffer);
    }
    for block in 24..30 {
        let range = PageRange::from_len(Page::new(block * 256 + 64), 192);
        urgent.1.frame(Frame::Request { range }).unwrap();
        receive(&mut urgent.0, 192, &mut buffer);
    }
    (region.change().allocations, 512 + 16 * BATCH as u64 + 6)
}

#[test]
fn answering_a_request_allocates_nothing() {
    for tls in [false, true] {
        let (allocations, requests) = counted(tls);
        // The waiting threads may allocate now and then.
        assert!(
            (allocations as u64) < requests / 50,
            "{allocations} allocations for {requests} requests, TLS: {tls}"
        );
    }
}

/// The number of allocations, and of requests.
fn counted(tls: bool) -> (usize, u64) {
    let layout = layout(&[(32 * MIB, SMALL)]);
    let memories = [&layout, &layout].map(|layout| Arc::new(Memory::new(layout)));
    let machine = Arc::new(Machine::new(&memories[0], &memories[1]));
    machine.run(Side::Source);
    let mut source = TestSource::new(&machine, true, 1000);
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
    let (stop, cancel) = (CancelFlag::new(), CancelFlag::new());
    let limits = Limits::from(&layout);
    thread::scope(|scope| {
        let (sender, incoming) = sync_channel(4);
        scope.spawn(|| {
            let sender = sender;
            listener.serve(&sender, &stop).unwrap();
        });
        let asking = scope.spawn(|| {
            let incoming = incoming;
            // Before it is accepted, the source opens no other.
            let first = incoming.recv().unwrap();
            assert_eq!(first.role, Role::Control);
            listener.accept_only_links_of(&first);
            let mut control = ends(first, limits);
            read_until(&mut control, "Offer");
            let host_pages = vec![SMALL];
            control
                .1
                .control(&ToSource::Accept {
                    host_pages,
                    marks_holes: false,
                })
                .unwrap();
            // Each link has a thread for its handshake: they arrive in any order.
            let mut others = [incoming.recv().unwrap(), incoming.recv().unwrap()];
            others.sort_by_key(|link| link.role == Role::Urgent);
            let [background, urgent] = others;
            assert_eq!(background.role, Role::Background { index: 0 });
            assert_eq!(urgent.role, Role::Urgent);
            let (_background, mut urgent) = (ends(background, limits), ends(urgent, limits));
            read_until(&mut control, "DiscardEnd");
            control.1.control(&ToSource::Discarded).unwrap();
            read_until(&mut control, "Switch");
            // Requests are answered from here on, and nothing is pushed yet: requested pages are
            // sent by the thread that reads the request.
            let counted = ask(&mut urgent);
            cancel.cancel();
            counted
        });
        let options = SourceOptions {
            mode: Mode::Postcopy,
            links: 1,
            ..SourceOptions::default()
        };
        let control = MigrateControl {
            cancel: cancel.clone(),
            control: SourceControl::new(),
            observer: Arc::new(Silent),
            journal: Arc::new(Unrecorded),
        };
        let result = migrate(&mut source, &remote, &options, &control);
        assert_eq!(result.unwrap_err().outcome, Outcome::AtSource);
        stop.cancel();
        asking.join().unwrap()
    })
}
