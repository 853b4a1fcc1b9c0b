//! Page faults of a second process, read and resolved by the test.

// The unsafe blocks are system calls and accesses to a mapping of this test.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)]
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::print_stderr
)]

mod changing_layout;
#[path = "../../../linux/tests/common/mod.rs"]
mod common;
mod huge_pages;

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use error_reporter::Report;
use hikkoshi_linux::{HostAddr, HostRange, StopEventFd};
use hikkoshi_userfault::{
    Copied, CopyError, EventBuffer, Features, RangeError, Ready, RegisterMode, RemoteUserfault,
    Userfault, UserfaultEvent,
};

use common::{Target, gettid, is_in_syscall, map_shared, memory_file};

const PAGE: usize = 4096;
const PAGES: usize = 64;

/// A process with a mapping of a tmpfs file, and a userfaultfd registered for it.
struct Guest {
    target: Target,
    remote: RemoteUserfault,
    /// The mapping in the process.
    range: HostRange,
    /// The file of the mapping, in this process.
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
