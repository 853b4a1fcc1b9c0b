//! Memory that is unregistered or removed while pages are missing.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use hikkoshi_linux::{HostAddr, HostRange, StopEventFd};
use hikkoshi_userfault::{
    CopyError, EventBuffer, Features, Ready, RegisterMode, Userfault, UserfaultEvent,
};

use crate::common::{eventually, gettid, is_in_syscall, map_shared, memory_file};

use super::PAGE;

/// The kernel wakes the threads that wait before it unregisters a mapping: one that faults in
/// between must not wait for ever.
#[test]
fn a_thread_that_faults_while_memory_is_unregistered_continues() {
    const ROUNDS: usize = 3000;
    let memory = map_shared(PAGE, memory_file(PAGE as u64, false).as_raw_fd());
    let address = memory.expose_provenance();
    let range = HostRange::new(HostAddr(address as u64), PAGE as u64);
    let own = Userfault::create_for_self(Features::FOR_MISSING).unwrap();
    // The round that the reader may read in, and the one that it has read in.
    let (begun, done) = (AtomicU32::new(0), AtomicU32::new(0));
    let mut stuck = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS as u32 {
                while begun.load(Ordering::SeqCst) < round {
                    std::hint::spin_loop();
                }
                let at = std::ptr::with_exposed_provenance::<u8>(address);
                unsafe { at.read_volatile() };
                done.store(round, Ordering::SeqCst);
            }
        });
        for round in 1..=ROUNDS as u32 {
            assert_eq!(
                unsafe { libc::madvise(memory.cast(), PAGE, libc::MADV_REMOVE) },
                0
            );
            own.register(range, RegisterMode::MISSING).unwrap();
            begun.store(round, Ordering::SeqCst);
            // Each round unregisters at another moment of the fault.
            for _ in 0..round % 200 {
                std::hint::spin_loop();
            }
            own.unregister(range).unwrap();
            let until = Instant::now() + Duration::from_secs(5);
            while done.load(Ordering::SeqCst) < round {
                if Instant::now() > until {
                    stuck += 1;
                    own.wake(range).unwrap();
                }
                std::thread::yield_now();
            }
        }
    });
    assert_eq!(stuck, 0, "threads that nobody woke");
    unsafe { libc::munmap(memory.cast(), PAGE) };
}

/// Remove events block the caller until they are read, and pages cannot be installed until the
/// caller has continued: `copy` must wait for that, not fail.
#[test]
fn installing_waits_while_the_layout_changes() {
    let pages = 8 * PAGE;
    let memory = map_shared(pages, -1).addr();
    let own = Userfault::create_for_self(Features::FOR_MISSING | Features::EVENT_REMOVE).unwrap();
    let range = HostRange::new(HostAddr(memory as u64), pages as u64);
    own.register(range, RegisterMode::MISSING).unwrap();
    own.copy(range.addr, &[1; PAGE]).unwrap();
    let stop = StopEventFd::new().unwrap();
    let copy = || own.copy(HostAddr(range.addr.0 + PAGE as u64), &[2; PAGE]);
    let gave_up = |result| matches!(result, Err(CopyError::LayoutChanging { .. }));
    let thread = AtomicU32::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| unsafe {
            let start = std::ptr::with_exposed_provenance_mut(memory);
            assert_eq!(libc::madvise(start, PAGE, libc::MADV_REMOVE), 0);
        });
        assert_eq!(own.wait(&stop, None).unwrap(), Ready::Events);
        // No thread reads the event yet: `copy` waits 0.3 s.
        let began = Instant::now();
        let (timed_out, waited) = (copy(), began.elapsed());
        let copier = scope.spawn(|| {
            thread.store(gettid(), Ordering::SeqCst);
            // Retry, if this machine takes longer than that to read the event.
            loop {
                let result = copy();
                if !gave_up(result) {
                    break result;
                }
            }
        });
        // It sleeps only there.
        eventually("the kernel to say EAGAIN", || {
            let thread = thread.load(Ordering::SeqCst);
            let sleeps = is_in_syscall(std::process::id(), thread, libc::SYS_clock_nanosleep);
            sleeps || copier.is_finished()
        });
        let waits = !copier.is_finished();
        let mut buffer = EventBuffer::with_capacity(1);
        assert_eq!(own.read(&mut buffer).unwrap(), 1);
        match buffer.pop() {
            Some(UserfaultEvent::Remove(removed)) => {
                assert_eq!(removed, HostRange::new(range.addr, PAGE as u64));
            }
            other => panic!("{other:?}"),
        }
        assert!(waits, "the kernel did not say EAGAIN");
        assert!(gave_up(timed_out), "{timed_out:?}");
        assert!(waited >= Duration::from_millis(300), "gave up early");
        let copied = copier.join().unwrap().unwrap();
        assert_eq!(copied.installed, PAGE as u64);
    });
}
