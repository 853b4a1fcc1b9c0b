use super::*;
use crate::CancelFlag;
use crate::destination::postcopy::installer::tests::{installer, range};
use hikkoshi_link::{LinkWriter, Stream};
use hikkoshi_pages::{PAGE_SIZE, Page};
use hikkoshi_wire::Limits;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use vm_memory::{Bytes, MmapRegion, VolatileMemory};

fn fault_thread(installer: Installer) -> (FaultThread, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    let request_sender = RequestSender::new(1, BATCH_BYTES);
    let urgent = LinkWriter::new(Arc::new(Stream::Unix(ours)), CancelFlag::new());
    request_sender.attach(Some(urgent.unwrap()));
    let shared = Shared {
        installer: Arc::new(installer),
        request_sender: Arc::new(request_sender),
        fault_counters: Arc::new(FaultCounters::new()),
        stop: StopEventFd::new().unwrap(),
        poll: false,
    };
    (FaultThread::new(Arc::new(shared)).unwrap(), theirs)
}

/// Reads faults until so many have been sorted.
fn sort(thread: &mut FaultThread, faults: usize) {
    while thread.wanted.len() + thread.fills.len() < faults {
        assert!(matches!(thread.next().unwrap(), Ready::Events));
        thread.faults();
    }
}

fn asked(theirs: &mut UnixStream) -> PageRange {
    let mut header = [0; HEADER_LEN];
    theirs.read_exact(&mut header).unwrap();
    let limits = Limits { pages: 16 };
    match Frame::decode(&header, &limits).unwrap() {
        Frame::Request { range } => range,
        other => panic!("{other:?}"),
    }
}

fn read(map: &MmapRegion, page: u64) -> u8 {
    let at = usize::try_from(page).unwrap() * PAGE_SIZE;
    map.as_volatile_slice().read_obj(at).unwrap()
}

/// What the memory takes, in blocks of the file.
fn blocks(map: &MmapRegion) -> u64 {
    let file = map.file_offset().unwrap().file();
    file.metadata().unwrap().blocks()
}

/// A batch with a page that is owed and one that is not: nothing is filled
/// before the request has left, and a request leaves although filling fails.
#[test]
fn requests_leave_before_anything_is_filled() {
    let (installer, map) = installer();
    let (mut faults, mut theirs) = fault_thread(installer);
    let shared = Arc::clone(&faults.shared);
    thread::scope(|scope| {
        let unowed = scope.spawn(|| read(&map, 2));
        sort(&mut faults, 1);
        let owed = scope.spawn(|| read(&map, 5));
        sort(&mut faults, 2);
        assert_eq!(faults.fills, [range(2, 3)]);
        assert_eq!(faults.wanted.len(), 1);
        assert_eq!(blocks(&map), 0, "nothing is filled while faults are read");
        faults.answer().unwrap();
        assert_eq!(asked(&mut theirs), range(5, 6));
        assert_eq!(unowed.join().unwrap(), 0);
        assert!(blocks(&map) > 0);

        let unowed = scope.spawn(|| read(&map, 3));
        let other = scope.spawn(|| read(&map, 6));
        sort(&mut faults, 2);
        // Waiting threads continue; nothing can be installed any more.
        shared.installer.copier.unregister().unwrap();
        let error = faults.answer().unwrap_err();
        assert!(matches!(error, DestinationFailure::Install(_)), "{error}");
        assert_eq!(asked(&mut theirs), range(6, 7));
        for waiting in [unowed, other, owed] {
            assert_eq!(waiting.join().unwrap(), 0);
        }
    });
    let more = theirs.read(&mut [0]).unwrap_err();
    assert_eq!(more.kind(), ErrorKind::WouldBlock, "one request for each");
}

/// Without a link, what needs none is filled all the same.
#[test]
fn a_broken_link_does_not_keep_zeros_back() {
    let (installer, map) = installer();
    let (mut faults, theirs) = fault_thread(installer);
    drop(theirs);
    faults.fills.push(range(2, 3));
    faults.wanted.push((PageRange::one(Page::new(5)), 0));
    faults.answer().unwrap();
    assert!(blocks(&map) > 0, "filled");
    faults.shared.installer.copier.unregister().unwrap();
}
