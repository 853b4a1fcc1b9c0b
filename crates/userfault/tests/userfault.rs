//! Page faults of a second process, read and resolved by the test.

// The unsafe blocks are system calls and accesses to a mapping of this test.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)]
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::print_stderr
)]

#[path = "../../linux/tests/common/mod.rs"]
mod common;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use common::{HugePages, Target, gettid, is_in_syscall, map_shared, memory_file};
use error_reporter::Report;
use hikkoshi_linux::{HostAddr, HostRange, StopEventFd};
use hikkoshi_userfault::{
    Copied, CopyError, EventBuffer, Features, RangeError, Ready, RegisterMode, RemoteUserfault,
    Userfault, UserfaultEvent,
};

const PAGE: usize = 4096;
const PAGES: usize = 64;

/// A process with a mapping of a tmpfs file, and a userfaultfd registered for it.
struct Guest {
    target: Target,
    remote: RemoteUserfault,
    /// The mapping in the process.
    range: HostRange,
    /// The same file in this process.
    file: std::fs::File,
}

/// Word 0: address of the mapping; word 1: the page to read next (plus one); word 2: number of
/// pages read; word 3: content of the last one; word 4: thread ID of the reader.
fn guest() -> Guest {
    let file = memory_file((PAGES * PAGE) as u64, false);
    let raw = file.as_raw_fd();
    let target = Target::spawn(move |shared| {
        let memory = map_shared(PAGES * PAGE, raw);
        shared.set(4, gettid().into());
        shared.set(0, memory.addr() as u64);
        for reads in 1.. {
            shared.wait(1, reads);
            let page = usize::try_from(shared.get(5)).unwrap();
            let word = unsafe { memory.add(page * PAGE + 8).cast::<u64>().read_volatile() };
            shared.set(3, word);
            shared.set(2, reads);
        }
        0
    });
    target.shared.wait(0, 1);
    let remote = RemoteUserfault::create(target.pid, Features::FOR_MISSING).unwrap();
    let range = HostRange::new(HostAddr(target.shared.get(0)), (PAGES * PAGE) as u64);
    let registered = remote
        .userfault()
        .register(range, RegisterMode::MISSING)
        .unwrap();
    assert!(registered.zero);
    Guest {
        target,
        remote,
        range,
        file,
    }
}

impl Guest {
    /// Makes the process read a page; it reports in word 2.
    fn touch(&self, page: usize) {
        self.target.shared.set(5, page as u64);
        self.target.shared.add(1, 1);
    }
    fn address(&self, page: usize) -> HostAddr {
        self.range.addr.checked_add((page * PAGE) as u64).unwrap()
    }
    fn userfault(&self) -> &Userfault {
        self.remote.userfault()
    }
    fn next(&self, stop: &StopEventFd) -> UserfaultEvent {
        let mut buffer = EventBuffer::with_capacity(4);
        let ready = self.userfault().wait(stop, None).unwrap();
        assert_eq!(ready, Ready::Events);
        assert_eq!(self.userfault().read(&mut buffer).unwrap(), 1);
        buffer.pop().unwrap()
    }
}

#[test]
fn a_fault_is_read_and_resolved() {
    let guest = guest();
    let stop = StopEventFd::new().unwrap();
    let mut buffer = EventBuffer::with_capacity(4);
    assert_eq!(guest.userfault().read(&mut buffer).unwrap(), 0);
    for page in [5usize, 0, PAGES - 1] {
        guest.touch(page);
        let UserfaultEvent::Fault(fault) = guest.next(&stop) else {
            panic!("a fault was expected");
        };
        assert_eq!(fault.addr.0, guest.address(page).0 + 8);
        assert_eq!(
            fault.thread.map(u64::from),
            Some(guest.target.shared.get(4))
        );
        assert!(!fault.write && !fault.protected);
        let reads = guest.target.shared.get(2);
        let content = [page as u64 + 100; PAGE / 8].map(u64::to_ne_bytes);
        let copied = guest
            .userfault()
            .copy(guest.address(page), content.as_flattened())
            .unwrap();
        assert_eq!((copied.installed, copied.present), (PAGE as u64, 0));
        guest.target.shared.wait(2, reads + 1);
        assert_eq!(guest.target.shared.get(3), page as u64 + 100);
    }
}

#[test]
fn a_present_page_is_not_changed_and_its_waiters_wake() {
    use std::os::unix::fs::FileExt;
    let guest = guest();
    let stop = StopEventFd::new().unwrap();
    guest.touch(3);
    assert!(matches!(guest.next(&stop), UserfaultEvent::Fault(_)));
    // Fill it through the file, which wakes no thread.
    guest
        .file
        .write_all_at(&[7u8; PAGE], (3 * PAGE) as u64)
        .unwrap();
    let content = vec![9u8; 4 * PAGE];
    let copied = guest.userfault().copy(guest.address(1), &content).unwrap();
    let expected = Copied {
        installed: 3 * PAGE as u64,
        present: PAGE as u64,
    };
    assert_eq!(copied, expected);
    guest.target.shared.wait(2, 1);
    assert_eq!(guest.target.shared.get(3), 0x0707_0707_0707_0707);
    let mut bytes = vec![0; 5 * PAGE];
    guest.file.read_exact_at(&mut bytes, 0).unwrap();
    for (page, byte) in [0u8, 9, 9, 7, 9].into_iter().enumerate() {
        assert!(
            bytes[page * PAGE..][..PAGE].iter().all(|b| *b == byte),
            "{page}"
        );
    }
}

#[test]
fn zeros_are_installed_as_pages() {
    let guest = guest();
    guest.touch(2);
    let range = HostRange::new(guest.address(0), 4 * PAGE as u64);
    let zeroed = guest.userfault().zero(range).unwrap();
    assert_eq!((zeroed.installed, zeroed.present), (4 * PAGE as u64, 0));
    guest.target.shared.wait(2, 1);
    assert_eq!(guest.target.shared.get(3), 0);
    let zeroed = guest.userfault().zero(range).unwrap();
    assert_eq!((zeroed.installed, zeroed.present), (0, 4 * PAGE as u64));
}

/// Run only by the test below.
#[test]
#[ignore = "it says that it skips something, and nothing else"]
fn skips_something() {
    common::aloud("NOT TESTED: a thing");
}

#[test]
fn a_skipped_test_prints_a_message() {
    let ended = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "skips_something"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{said}");
    assert!(
        said.contains("skips_something: NOT TESTED: a thing"),
        "{said}"
    );
}

/// Punches a hole.
fn punch(file: &File, offset: u64, bytes: u64) {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let (offset, bytes) = (offset.try_into().unwrap(), bytes.try_into().unwrap());
    let result = unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, bytes) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// hugetlbfs supports only whole huge pages, and no zero pages.
#[test]
fn huge_pages_are_installed_whole() {
    const HUGE: usize = 2 << 20;
    let Some(_pages) = HugePages::reserve(2) else {
        return;
    };
    let file = memory_file(2 * HUGE as u64, true);
    let memory = map_shared(2 * HUGE, file.as_raw_fd());
    let own = Userfault::create_for_self(Features::FOR_MISSING).unwrap();
    let range = HostRange::new(HostAddr(memory.expose_provenance() as u64), 2 * HUGE as u64);
    let registered = own.register(range, RegisterMode::MISSING).unwrap();
    assert!(!registered.zero);
    let content: Vec<u8> = (0..HUGE).map(|at| (at >> 12) as u8).collect();
    let error = own.copy(range.addr, &content[..PAGE]).unwrap_err();
    assert!(
        Report::new(&error).to_string().contains("EINVAL"),
        "{error}"
    );
    for (installed, present) in [(HUGE as u64, 0), (0, HUGE as u64)] {
        let copied = own.copy_host_page(range.addr, &content).unwrap();
        assert_eq!(copied, Copied { installed, present });
    }
    let read = |page: usize| unsafe { memory.add(page * PAGE).read_volatile() };
    assert_eq!([read(0), read(1), read(255)], [0, 1, 255]);
    own.unregister(range).unwrap();
    unsafe { libc::munmap(memory.cast(), 2 * HUGE) };
}

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

/// A file system mounted for one test; requires root.
struct Mounted(tempfile::TempDir);

impl Mounted {
    /// Mounts a file system of this type with these options.
    fn new(kind: &str, options: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", kind, "-o", options, "hikkoshi-test"])
            .arg(folder.path())
            .status();
        assert!(mounted.unwrap().success(), "mounting needs root");
        Self(folder)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

/// The kernel reports that a huge page exists when none can be allocated. Treating it as present
/// would lose the page.
#[test]
fn a_huge_page_that_cannot_be_allocated_is_not_present() {
    const HUGE: usize = 2 << 20;
    let Some(_pages) = HugePages::reserve(2) else {
        return;
    };
    // Memory for only one of the two pages, whatever the size of the pool.
    let mounted = Mounted::new("hugetlbfs", "pagesize=2M,size=2M");
    let path = mounted.path().join("ram");
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .unwrap();
    file.set_len(2 * HUGE as u64).unwrap();
    let map = || {
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                2 * HUGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(memory, libc::MAP_FAILED);
        memory.cast::<u8>()
    };
    let (memory, elsewhere) = (map(), map());
    let own = Userfault::create_for_self(Features::FOR_MISSING).unwrap();
    let first = HostRange::new(HostAddr(memory.expose_provenance() as u64), HUGE as u64);
    let second = HostRange::new(first.addr.checked_add(HUGE as u64).unwrap(), HUGE as u64);
    for range in [first, second] {
        own.register(range, RegisterMode::MISSING).unwrap();
    }
    let content = vec![7; HUGE];
    let nothing = Copied::default();
    let installed = Copied {
        installed: HUGE as u64,
        ..nothing
    };
    let present = Copied {
        present: HUGE as u64,
        ..nothing
    };
    let copy = |range: HostRange| own.copy_host_page(range.addr, &content);
    assert_eq!(copy(first), Ok(installed));
    assert!(matches!(
        copy(second),
        Err(CopyError::OutOfMemory { done: 0, .. })
    ));
    // Free memory; the page is then installed first through another mapping.
    punch(&file, 0, HUGE as u64);
    unsafe { elsewhere.add(HUGE).write_volatile(9) };
    assert_eq!(copy(second), Ok(present));
    assert!(matches!(copy(first), Err(CopyError::OutOfMemory { .. })));
    assert_eq!(unsafe { memory.add(HUGE).read_volatile() }, 9);
    punch(&file, HUGE as u64, HUGE as u64);
    assert_eq!(copy(first), Ok(installed));
    assert_eq!(unsafe { memory.read_volatile() }, 7);
    for range in [first, second] {
        own.unregister(range).unwrap();
    }
    for mapping in [memory, elsewhere] {
        unsafe { libc::munmap(mapping.cast(), 2 * HUGE) };
    }
}

/// If a reader dies, the event that it read is lost: the next reader gets it again after a wake.
#[test]
fn a_new_reader_gets_the_faults_again() {
    let guest = guest();
    let stop = StopEventFd::new().unwrap();
    guest.touch(9);
    assert!(matches!(guest.next(&stop), UserfaultEvent::Fault(_)));
    guest.remote.leave_open_on_drop();
    let number = guest.remote.remote();
    let Guest {
        target,
        remote,
        range,
        file: _file,
    } = guest;
    let process = std::sync::Arc::clone(remote.process());
    drop(remote);
    let found = hikkoshi_userfault::open_userfaults(&process).unwrap();
    assert_eq!((found[0].unread, found[0].waiting), (0, 1));

    let remote = RemoteUserfault::adopt(&process, number).unwrap();
    remote.userfault().wake(range).unwrap();
    assert_eq!(remote.userfault().wait(&stop, None).unwrap(), Ready::Events);
    let mut buffer = EventBuffer::with_capacity(1);
    assert_eq!(remote.userfault().read(&mut buffer).unwrap(), 1);
    let Some(UserfaultEvent::Fault(fault)) = buffer.pop() else {
        panic!("a fault was expected");
    };
    assert_eq!(fault.addr.0, range.addr.0 + 9 * PAGE as u64 + 8);
    let page = HostAddr(fault.addr.0 - 8);
    remote.userfault().copy(page, &[1; PAGE]).unwrap();
    target.shared.wait(2, 1);
    remote.userfault().unregister(range).unwrap();
    remote.close_remote().unwrap();
}

#[test]
fn a_stop_ends_the_wait_immediately_and_permanently() {
    let guest = guest();
    let stop = StopEventFd::new().unwrap();
    let timeout = Some(Duration::from_millis(1));
    assert_eq!(
        guest.userfault().wait(&stop, timeout).unwrap(),
        Ready::TimedOut
    );
    let thread = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            thread.store(gettid(), Ordering::SeqCst);
            guest.userfault().wait(&stop, None).unwrap()
        });
        common::eventually("it waits", || {
            let thread = thread.load(Ordering::SeqCst);
            let calls = [libc::SYS_poll, libc::SYS_ppoll];
            calls.map(|call| is_in_syscall(std::process::id(), thread, call)) != [false; 2]
        });
        stop.clone().stop();
        assert_eq!(waiter.join().unwrap(), Ready::Stopped);
    });
    guest.touch(1);
    assert_eq!(guest.userfault().wait(&stop, None).unwrap(), Ready::Stopped);
    assert!(stop.is_stopped());
}

#[test]
fn exit_of_the_process_is_reported() {
    let guest = guest();
    let stop = StopEventFd::new().unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| guest.userfault().wait(&stop, None).unwrap());
        guest.target.kill(libc::SIGKILL);
        assert_eq!(waiter.join().unwrap(), Ready::ProcessGone);
    });
    guest.target.join();
    let content = [1; PAGE];
    assert_eq!(
        guest.userfault().copy(guest.address(1), &content),
        Err(CopyError::ProcessGone {
            at: guest.address(1),
            done: 0
        })
    );
    assert!(matches!(
        guest
            .userfault()
            .register(guest.range, RegisterMode::MISSING),
        Err(RangeError::Gone { .. })
    ));
    guest.userfault().wake(guest.range).unwrap();
    for _ in 0..2 {
        guest.userfault().unregister(guest.range).unwrap();
    }
    guest.remote.close_remote().unwrap();
}

#[test]
fn errors_contain_the_operation_and_the_progress() {
    let guest = guest();
    // The last two pages of the range, and two beyond it.
    let error = guest
        .userfault()
        .copy(guest.address(PAGES - 2), &[1; 4 * PAGE])
        .unwrap_err();
    assert!(
        matches!(
            error,
            CopyError::NotRegistered { .. } | CopyError::Kernel { .. }
        ),
        "{error}"
    );
    let error = guest
        .userfault()
        .copy(HostAddr(guest.range.addr.0 + 1), &[1; PAGE])
        .unwrap_err();
    assert!(
        Report::new(&error).to_string().contains("EINVAL"),
        "{error}"
    );
    assert_eq!(error.done(), 0);
    let error = guest
        .userfault()
        .copy(HostAddr(u64::MAX - 4095), &[1; PAGE])
        .unwrap_err();
    assert_eq!(error.done(), 0);
    assert_eq!(
        guest.userfault().copy(guest.address(0), &[]),
        Ok(Copied::default())
    );
    // A second userfaultfd for the same memory.
    let second = RemoteUserfault::create(guest.target.pid, Features::FOR_MISSING).unwrap();
    let error = second
        .userfault()
        .register(guest.range, RegisterMode::MISSING)
        .unwrap_err();
    assert_eq!(
        Report::new(&error).to_string(),
        format!(
            "registering {} bytes at {}: another userfaultfd is already registered for this \
             memory, possibly one left open by an earlier migration or QEMU's own postcopy-ram; \
             close it first",
            guest.range.len, guest.range.addr
        )
    );
}

#[test]
fn a_handshake_is_made_once() {
    let own = Userfault::create_for_self(Features::FOR_DIRTY_LOG).unwrap();
    let error = own.api(Features::FOR_DIRTY_LOG).unwrap_err();
    assert!(
        Report::new(&error).to_string().starts_with("negotiating"),
        "{error}"
    );
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
        common::eventually("the kernel to say EAGAIN", || {
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
