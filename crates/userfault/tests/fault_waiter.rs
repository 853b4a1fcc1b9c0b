//! Several threads that wait for page faults of one process.

#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)]
#![allow(clippy::unwrap_used)]

#[path = "../../linux/tests/common/mod.rs"]
mod common;

use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use common::{Target, gettid, map_shared, memory_file};
use hikkoshi_linux::{HostAddr, HostRange, StopEventFd};
use hikkoshi_userfault::{EventBuffer, Features, Ready, RegisterMode, RemoteUserfault};

const PAGE: usize = 4096;
const PAGES: usize = 16;

/// A process in which each thread reads a page on request: word 1 is the number of pages to read.
fn guest() -> (Target, RemoteUserfault, HostRange) {
    let file = memory_file((PAGES * PAGE) as u64, false);
    let raw = file.as_raw_fd();
    let target = Target::spawn(move |shared| {
        let memory = map_shared(PAGES * PAGE, raw).expose_provenance();
        shared.set(0, memory as u64);
        thread::scope(|scope| {
            for page in 0..PAGES {
                scope.spawn(move || {
                    shared.wait(1, page as u64 + 1);
                    let at = std::ptr::with_exposed_provenance::<u8>(memory + page * PAGE);
                    unsafe { at.read_volatile() };
                    shared.add(2, 1);
                });
            }
        });
        0
    });
    target.shared.wait(0, 1);
    let remote = RemoteUserfault::create(target.pid, Features::FOR_MISSING).unwrap();
    let range = HostRange::new(HostAddr(target.shared.get(0)), (PAGES * PAGE) as u64);
    remote
        .userfault()
        .register(range, RegisterMode::MISSING)
        .unwrap();
    (target, remote, range)
}

/// Waits until a thread of this process sleeps.
fn until_it_sleeps(thread: &AtomicU64) {
    let sleeps = |thread| {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
        stat.rsplit(") ").next().unwrap().starts_with('S')
    };
    loop {
        let thread = thread.load(Ordering::SeqCst);
        if thread != 0 && sleeps(thread) {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Each fault wakes one of the sleeping threads, until all are awake; a stop wakes all of them.
#[test]
fn a_fault_wakes_one_thread() {
    const THREADS: usize = 4;
    let (target, remote, range) = guest();
    let stop = StopEventFd::new().unwrap();
    let (quiet, _other) = UnixStream::pair().unwrap();
    let woken = AtomicU64::new(0);
    let ids = [const { AtomicU64::new(0) }; THREADS];
    thread::scope(|scope| {
        for id in &ids {
            let (remote, stop, quiet, woken) = (&remote, &stop, &quiet, &woken);
            scope.spawn(move || {
                let waiter = remote
                    .userfault()
                    .waiter::<UnixStream>(stop, quiet.as_fd())
                    .unwrap();
                id.store(gettid().into(), Ordering::SeqCst);
                assert_eq!(waiter.wait(None).unwrap(), Ready::Events);
                woken.fetch_add(1, Ordering::SeqCst);
                // Does not read the event, so a thread that was woken without need would see it,
                // too.
                while !stop.is_stopped() {
                    thread::sleep(Duration::from_millis(1));
                }
            });
        }
        for id in &ids {
            until_it_sleeps(id);
        }
        for fault in 1..=THREADS as u64 {
            target.shared.set(1, fault);
            while woken.load(Ordering::SeqCst) < fault {
                thread::sleep(Duration::from_millis(1));
            }
            // Time for other threads to wake, which must not happen.
            thread::sleep(Duration::from_millis(20));
            assert_eq!(woken.load(Ordering::SeqCst), fault, "threads woken");
        }
        stop.stop();
    });
    let mut buffer = EventBuffer::with_capacity(PAGES);
    assert_eq!(remote.userfault().read(&mut buffer).unwrap(), THREADS);
    remote.userfault().unregister(range).unwrap();
    target.shared.set(1, PAGES as u64);
    target.join();
    remote.close_remote().unwrap();
}

#[test]
fn other_descriptors_and_exit_are_reported() {
    let (target, remote, range) = guest();
    let stop = StopEventFd::new().unwrap();
    let (news, mut teller) = UnixStream::pair().unwrap();
    let pair = || {
        let (socket, peer) = UnixStream::pair().unwrap();
        (Arc::new(socket), peer)
    };
    let (socket, _peer) = pair();
    let mut waiter = remote
        .userfault()
        .waiter::<UnixStream>(&stop, news.as_fd())
        .unwrap();
    let now = Some(Duration::ZERO);
    assert_eq!(waiter.wait(now).unwrap(), Ready::TimedOut);
    // The socket is writable, but the waiter does not wait for it.
    waiter.set_writing(None).unwrap();
    assert_eq!(waiter.wait(now).unwrap(), Ready::TimedOut);
    for _ in 0..2 {
        waiter.set_writing(Some(Arc::clone(&socket))).unwrap();
        assert_eq!(waiter.wait(None).unwrap(), Ready::Other);
        waiter.set_writing(None).unwrap();
        assert_eq!(waiter.wait(now).unwrap(), Ready::TimedOut);
    }
    // Another socket replaces one that is closed everywhere else.
    waiter.set_writing(Some(socket)).unwrap();
    let (full, peer) = pair();
    full.set_nonblocking(true).unwrap();
    while (&*full).write(&[0; 4096]).is_ok() {}
    waiter.set_writing(Some(Arc::clone(&full))).unwrap();
    assert_eq!(waiter.wait(now).unwrap(), Ready::TimedOut);
    drop(full);
    drop(peer);
    assert_eq!(waiter.wait(None).unwrap(), Ready::Other);
    waiter.set_writing(None).unwrap();
    teller.write_all(b"news").unwrap();
    assert_eq!(waiter.wait(None).unwrap(), Ready::Other);
    // An event has priority over other descriptors, and a stop over events.
    target.shared.set(1, 1);
    while waiter.wait(None).unwrap() != Ready::Events {}
    stop.stop();
    assert_eq!(waiter.wait(None).unwrap(), Ready::Stopped);

    // The exit of the process comes after the events.
    let stop = StopEventFd::new().unwrap();
    let (news, _teller) = UnixStream::pair().unwrap();
    let waiter = remote
        .userfault()
        .waiter::<UnixStream>(&stop, news.as_fd())
        .unwrap();
    target.kill(libc::SIGKILL);
    let mut buffer = EventBuffer::with_capacity(1);
    loop {
        match waiter.wait(None).unwrap() {
            Ready::ProcessGone => break,
            // Its fault event, until the process has exited.
            Ready::Events => {
                remote.userfault().read(&mut buffer).unwrap();
                buffer.pop();
            }
            other => panic!("{other:?}"),
        }
    }
    target.join();
    remote.userfault().unregister(range).unwrap();
    remote.close_remote().unwrap();
}
