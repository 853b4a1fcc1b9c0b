//! Creates a userfaultfd in real processes during various operations, and closes it again. The
//! processes must not be disturbed.

// The unsafe blocks are system calls with visible arguments; a wrong one fails a test.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)]
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::print_stderr
)]

#[path = "../../linux/tests/common/mod.rs"]
mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{Target, as_nobody, become_nobody};
use error_reporter::Report;
use hikkoshi_linux::{InjectError, Process};
use hikkoshi_userfault::{
    Features, RemoteUserfault, RemoteUserfaultError, close_remote, open_userfaults,
};

fn create(target: &Target) -> RemoteUserfault {
    RemoteUserfault::create(target.pid, Features::FOR_MISSING).unwrap()
}

fn create_and_close(target: &Target) {
    create(target).close_remote().unwrap();
}

/// Whether the process has a userfaultfd open.
fn has_userfault(target: &Target) -> bool {
    let process = Process::open(target.pid).unwrap();
    !open_userfaults(&process).unwrap().is_empty()
}

/// A process in system call `number`, which lasts until `release`. It is interrupted ten times,
/// then released, and must report success.
fn restarts(number: libc::c_long, body: impl FnOnce() -> bool, release: impl FnOnce(&Target)) {
    let target = Target::spawn(|_| i32::from(!body()));
    for _ in 0..10 {
        target.wait_in_syscall(target.pid, number);
        create_and_close(&target);
    }
    release(&target);
    assert_eq!(target.join(), 0, "system call {number} failed");
}

/// Like [`restarts`], for a call that ends by its own timeout. The ten interruptions must happen
/// within that timeout, and how long they take depends on the machine: the timeout is doubled until
/// they do. The result of `body` does not depend on the number of interruptions.
fn restarts_until(number: libc::c_long, body: impl Fn(Duration) -> bool) {
    for limit in (0..6).map(|doubled| Duration::from_millis(400 << doubled)) {
        // Word 0: the call has returned; word 1: its result was right; word 2: the process may
        // exit. The process lives until then, so that a late interruption does not fail.
        let target = Target::spawn(|shared| {
            shared.set(1, u64::from(body(limit)));
            shared.set(0, 1);
            shared.wait(2, 1);
            0
        });
        let is_over = || target.shared.get(0) == 1;
        for _ in 0..10 {
            common::eventually("the system call, or its end", || {
                is_over() || target.is_in_syscall(target.pid, number)
            });
            if is_over() {
                break;
            }
            create_and_close(&target);
        }
        let all_in_time = !is_over();
        target.shared.wait(0, 1);
        assert_eq!(target.shared.get(1), 1, "system call {number} failed");
        target.shared.set(2, 1);
        assert_eq!(target.join(), 0);
        if all_in_time {
            return;
        }
    }
    panic!("ten interruptions take more than 12 s");
}

#[test]
fn nanosleep_sleeps_its_time_and_succeeds() {
    restarts_until(libc::SYS_clock_nanosleep, |limit| {
        let start = Instant::now();
        let time = timespec(limit);
        let result =
            unsafe { libc::clock_nanosleep(libc::CLOCK_MONOTONIC, 0, &time, std::ptr::null_mut()) };
        // The remaining time after the first interruption is slept in `restart_syscall`.
        result == 0 && start.elapsed() >= limit
    });
}

#[test]
fn a_futex_with_timeout_times_out() {
    restarts_until(libc::SYS_futex, |limit| {
        let word = 7u32;
        let time = timespec(limit);
        let result = unsafe {
            libc::syscall(
                libc::SYS_futex,
                &word,
                libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                7,
                &time,
            )
        };
        let error = std::io::Error::last_os_error().raw_os_error();
        result == -1 && error == Some(libc::ETIMEDOUT)
    });
}

fn timespec(time: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: time.as_secs().cast_signed(),
        tv_nsec: time.subsec_nanos().into(),
    }
}

#[test]
fn a_read_gets_its_bytes() {
    use std::io::{Read, Write};
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    restarts(
        libc::SYS_read,
        move || {
            let mut bytes = [0; 5];
            matches!(reader.read(&mut bytes), Ok(5)) && &bytes == b"hello"
        },
        |_| writer.write_all(b"hello").unwrap(),
    );
}

#[test]
fn poll_times_out_with_zero() {
    restarts_until(libc::SYS_poll, |limit| {
        let millis = limit.as_millis() as libc::c_int;
        unsafe { libc::syscall(libc::SYS_poll, std::ptr::null::<u8>(), 0, millis) == 0 }
    });
}

/// `ppoll` with a signal mask: the mask must be set again after the restart, and the old mask
/// afterwards. QEMU's main loop uses this call.
#[test]
fn ppoll_keeps_its_own_signal_mask() {
    extern "C" fn handler(_: i32) {}
    restarts(
        libc::SYS_ppoll,
        || unsafe {
            let action: extern "C" fn(i32) = handler;
            libc::signal(libc::SIGUSR1, action as libc::sighandler_t);
            let mut blocked = std::mem::zeroed();
            let mut empty = std::mem::zeroed();
            libc::sigemptyset(&mut empty);
            libc::sigemptyset(&mut blocked);
            libc::sigaddset(&mut blocked, libc::SIGUSR1);
            libc::sigprocmask(libc::SIG_SETMASK, &blocked, std::ptr::null_mut());
            let result = libc::ppoll(std::ptr::null_mut(), 0, std::ptr::null(), &empty);
            let error = std::io::Error::last_os_error().raw_os_error();
            let mut after = std::mem::zeroed();
            libc::sigprocmask(libc::SIG_SETMASK, std::ptr::null(), &mut after);
            result == -1
                && error == Some(libc::EINTR)
                && libc::sigismember(&after, libc::SIGUSR1) == 1
                && libc::sigismember(&after, libc::SIGUSR2) == 0
        },
        |target| target.kill(libc::SIGUSR1),
    );
}

#[test]
fn calculation_is_not_disturbed() {
    let target = Target::spawn(|shared| {
        // Integer and floating-point state in registers, and the red zone below the stack pointer.
        while shared.get(1) == 0 {
            let (mut hash, mut sum) = (0xcbf2_9ce4_8422_2325u64, 0.0f64);
            for i in 0..20_000u64 {
                hash = (hash ^ i).wrapping_mul(0x0100_0000_01b3);
                sum += (hash as f64).sqrt();
            }
            let first = shared.get(2);
            let result = hash ^ sum.to_bits();
            if first != 0 && first != result {
                return 1;
            }
            shared.set(2, result);
            shared.add(0, 1);
        }
        0
    });
    target.shared.wait(0, 1);
    for _ in 0..200 {
        create_and_close(&target);
    }
    let laps = target.shared.get(0);
    target.shared.wait(0, laps + 2);
    target.shared.set(1, 1);
    assert_eq!(target.join(), 0, "a result differed");
}

/// Every queued signal arrives exactly once, at whatever time it was sent.
#[test]
fn no_signal_is_lost_or_doubled() {
    use std::sync::atomic::AtomicPtr;
    static SHARED: AtomicPtr<common::Shared> = AtomicPtr::new(std::ptr::null_mut());
    extern "C" fn count(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        let shared = unsafe { &*SHARED.load(Ordering::SeqCst) };
        let value = unsafe { (*info).si_value().sival_ptr }.addr() as u64;
        shared.add(1, value);
        // Last: the test reads both numbers as soon as this one is right.
        shared.add(0, 1);
    }
    let target = Target::spawn(|shared| {
        SHARED.store(std::ptr::from_ref(shared).cast_mut(), Ordering::SeqCst);
        let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = count;
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
            libc::sigaction(libc::SIGRTMIN(), &action, std::ptr::null_mut());
        }
        shared.set(2, 1);
        // Some interruptions are in a system call, some are not.
        while shared.get(3) == 0 {
            for _ in 0..5_000 {
                std::hint::spin_loop();
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        0
    });
    target.shared.wait(2, 1);
    let done = Arc::new(AtomicBool::new(false));
    let sender = std::thread::spawn({
        let done = Arc::clone(&done);
        let pid = target.raw();
        move || {
            let (mut sent, mut sum) = (0u64, 0u64);
            while !done.load(Ordering::SeqCst) {
                let value = libc::sigval {
                    sival_ptr: std::ptr::without_provenance_mut(sent as usize + 1),
                };
                if unsafe { libc::sigqueue(pid, libc::SIGRTMIN(), value) } == 0 {
                    sent += 1;
                    sum += sent;
                }
                std::thread::sleep(Duration::from_micros(20));
            }
            (sent, sum)
        }
    });
    for _ in 0..300 {
        create_and_close(&target);
    }
    done.store(true, Ordering::SeqCst);
    let (sent, sum) = sender.join().unwrap();
    target.shared.wait(0, sent);
    assert_eq!((target.shared.get(0), target.shared.get(1)), (sent, sum));
    target.shared.set(3, 1);
    assert_eq!(target.join(), 0);
}

#[test]
fn a_signal_that_ends_the_process_still_does() {
    for delay in (0..1000).step_by(50) {
        let target = Target::spawn(|_| {
            std::thread::sleep(Duration::from_secs(60));
            0
        });
        target.wait_in_syscall(target.pid, libc::SYS_clock_nanosleep);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_micros(delay));
                target.kill(libc::SIGTERM);
            });
            let _ = RemoteUserfault::create(target.pid, Features::FOR_MISSING);
        });
        assert_eq!(target.join(), -libc::SIGTERM);
    }
}

#[test]
fn a_stopped_process_stays_stopped_and_continues_later() {
    let target = Target::spawn(|shared| {
        loop {
            shared.add(0, 1);
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    target.shared.wait(0, 1);
    target.kill(libc::SIGSTOP);
    common::eventually("the stop", || target.state() == 'T');
    let before = target.shared.get(0);
    for _ in 0..5 {
        let remote = create(&target);
        assert!(has_userfault(&target));
        remote.close_remote().unwrap();
        assert!(!has_userfault(&target));
        common::eventually("the stop to hold again", || target.state() == 'T');
    }
    assert_eq!(target.shared.get(0), before, "it ran while stopped");
    target.kill(libc::SIGCONT);
    target.shared.wait(0, before + 3);
}

/// SIGSTOP cannot be blocked: sent at any time during an injection it must stop the process
/// afterwards, and SIGCONT must continue it.
#[test]
fn a_stop_while_injecting_takes_effect() {
    let target = Target::spawn(|shared| {
        loop {
            shared.add(0, 1);
            std::thread::sleep(Duration::from_micros(300));
        }
    });
    target.shared.wait(0, 1);
    for round in 0..60 {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_micros(round * 10));
                target.kill(libc::SIGSTOP);
            });
            create_and_close(&target);
        });
        common::eventually("the stop", || target.state() == 'T');
        let before = target.shared.get(0);
        target.kill(libc::SIGCONT);
        target.shared.wait(0, before + 2);
    }
}

/// A thread that is interrupted in a restartable sequence must continue at the sequence's abort
/// handler. The kernel clears the sequence as soon as it sees the thread at another address.
#[test]
fn a_restartable_sequence_is_not_forgotten() {
    #[repr(C, align(32))]
    struct Sequence {
        version: u32,
        flags: u32,
        start: u64,
        length: u64,
        abort: u64,
    }
    let target = Target::spawn(|shared| {
        let mut sequence = Sequence {
            version: 0,
            flags: 0,
            start: 0,
            length: 0,
            abort: 0,
        };
        // The C library has registered an area for the thread, at `__rseq_offset`.
        unsafe extern "C" {
            static __rseq_offset: isize;
        }
        while shared.get(1) == 0 {
            let outcome: u64;
            unsafe {
                std::arch::asm!(
                    "mov {area}, fs:[0]",
                    "add {area}, {offset}",
                    "lea {outcome}, [rip + 2f]",
                    "mov [{sequence} + 8], {outcome}",
                    "lea {outcome}, [rip + 4f]",
                    "mov [{sequence} + 24], {outcome}",
                    "lea {outcome}, [rip + 3f]",
                    "sub {outcome}, [{sequence} + 8]",
                    "mov [{sequence} + 16], {outcome}",
                    "mov [{area} + 8], {sequence}",
                    // In the sequence: this loop ends only if the sequence is aborted or forgotten.
                    "2:",
                    "mov {outcome}, 1",
                    "cmp [{area} + 8], {sequence}",
                    "je 2b",
                    "3:",
                    "jmp 5f",
                    ".long 0x53053053", // the signature that glibc registers
                    "4:",
                    "mov {outcome}, 2",
                    "5:",
                    "mov qword ptr [{area} + 8], 0",
                    area = out(reg) _,
                    outcome = out(reg) outcome,
                    offset = in(reg) __rseq_offset,
                    sequence = in(reg) &raw mut sequence,
                );
            }
            if outcome != 2 {
                return 1;
            }
            shared.add(0, 1);
        }
        0
    });
    target.shared.wait(0, 1);
    for _ in 0..100 {
        create_and_close(&target);
    }
    target.shared.set(1, 1);
    // Leave the last sequence.
    target.kill(libc::SIGSTOP);
    target.kill(libc::SIGCONT);
    assert_eq!(
        target.join(),
        0,
        "a sequence went on as if nothing had happened"
    );
}

#[test]
fn many_threads_are_not_disturbed() {
    use std::sync::{Condvar, Mutex};
    let target = Target::spawn(|shared| {
        let baton = Arc::new((Mutex::new(0u64), Condvar::new()));
        let threads: Vec<_> = (0..8u64)
            .map(|me| {
                let baton = Arc::clone(&baton);
                std::thread::spawn(move || {
                    let (turn, changed) = &*baton;
                    while shared.get(1) == 0 {
                        let mut turn = turn.lock().unwrap();
                        while *turn % 8 != me && shared.get(1) == 0 {
                            let limit = Duration::from_secs(1);
                            turn = changed.wait_timeout(turn, limit).unwrap().0;
                        }
                        *turn += 1;
                        shared.set(0, *turn);
                        drop(turn);
                        changed.notify_all();
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        0
    });
    target.shared.wait(0, 8);
    for _ in 0..100 {
        create_and_close(&target);
        let laps = target.shared.get(0);
        target.shared.wait(0, laps + 8);
    }
    target.shared.set(1, 1);
    assert_eq!(target.join(), 0);
}

/// Like `vfork`: the calling thread waits until the child has exited, which it does when a word is
/// set.
fn vfork(shared: &'static common::Shared, word: usize) {
    extern "C" fn child(gate: *mut libc::c_void) -> i32 {
        let gate = gate.cast_const().cast::<std::sync::atomic::AtomicU64>();
        while unsafe { &*gate }.load(Ordering::SeqCst) == 0 {
            std::hint::spin_loop();
        }
        0
    }
    let gate = std::ptr::from_ref(&shared.words[word]).cast_mut();
    let mut stack = vec![0u8; 64 << 10];
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    unsafe {
        let top = stack.as_mut_ptr().add(64 << 10).cast();
        let pid = libc::clone(child, top, flags, gate.cast());
        libc::waitpid(pid, std::ptr::null_mut(), 0);
    }
}

/// `vfork` blocks the parent's thread in a wait that a stop request does not end: another thread
/// must be used.
#[test]
fn another_thread_is_used_if_the_main_thread_cannot_stop() {
    let target = Target::spawn(|shared| {
        std::thread::spawn(move || {
            loop {
                shared.add(0, 1);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        shared.wait(0, 1);
        vfork(shared, 1);
        0
    });
    target.wait_in_syscall(target.pid, libc::SYS_clone);
    let remote = create(&target);
    assert!(has_userfault(&target));
    remote.close_remote().unwrap();
    assert!(!has_userfault(&target));
    target.shared.set(1, 1);
    assert_eq!(target.join(), 0);
}

/// The thread that created the userfaultfd may have exited when it is closed; here even the main
/// thread has exited.
#[test]
fn closing_works_when_the_main_thread_has_exited() {
    let target = Target::spawn(|shared| {
        std::thread::spawn(move || {
            loop {
                shared.add(0, 1);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        shared.wait(1, 1);
        // Only this thread ends, not the process.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
        unreachable!()
    });
    target.shared.wait(0, 1);
    let remote = create(&target);
    target.shared.set(1, 1);
    common::eventually("the main thread to end", || target.state() == 'Z');
    assert!(has_userfault(&target));
    remote.close_remote().unwrap();
    assert!(!has_userfault(&target));
    // Create a new one without a main thread.
    let again = create(&target);
    assert!(has_userfault(&target));
    drop(again);
    assert!(!has_userfault(&target));
    let laps = target.shared.get(0);
    target.shared.wait(0, laps + 2);
}

fn sleeper() -> Target {
    let target = Target::spawn(|_| {
        std::thread::sleep(Duration::from_secs(600));
        0
    });
    target.wait_in_syscall(target.pid, libc::SYS_clock_nanosleep);
    target
}

/// The process is killed at any time: the result is an error that says so or an early success,
/// never a hang.
#[test]
fn a_process_that_is_killed_during_injection_is_reported() {
    let mut died = 0;
    // On a busy machine the kill may be late repeatedly: then run more rounds.
    for round in 0.. {
        if round >= 150 && (died > 0 || round == 3000) {
            break;
        }
        let delay = round % 150;
        let target = sleeper();
        let result = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_micros(delay * 5));
                target.kill(libc::SIGKILL);
            });
            let remote = RemoteUserfault::create(target.pid, Features::FOR_MISSING);
            // Closing succeeds for a process that is exiting, at any time.
            remote.map(|remote| remote.close_remote().unwrap())
        });
        match result {
            Ok(()) => {}
            Err(RemoteUserfaultError::Inject(
                InjectError::Died { .. } | InjectError::NoSuchProcess { .. },
            )) => died += 1,
            Err(error) => panic!("after {delay}: {error}"),
        }
        assert_eq!(target.join(), -libc::SIGKILL);
    }
    assert!(died > 0, "no kill came in time to be noticed");
}

#[test]
fn no_such_process() {
    let target = sleeper();
    target.kill(libc::SIGKILL);
    target.join();
    let error = RemoteUserfault::create(target.pid, Features::FOR_MISSING).unwrap_err();
    assert_eq!(
        Report::new(&error).to_string(),
        format!(
            "creating a userfaultfd: attaching to process {}: the process does not exist",
            target.pid
        )
    );
}

#[test]
fn another_tracer_is_named() {
    let target = sleeper();
    let victim = target.raw();
    let tracer = Target::spawn(|shared| {
        let none = std::ptr::null_mut::<libc::c_void>();
        let result = unsafe { libc::ptrace(libc::PTRACE_SEIZE, victim, none, none) };
        shared.set(0, u64::from(result == 0));
        std::thread::sleep(Duration::from_secs(600));
        0
    });
    tracer.shared.wait(0, 1);
    match RemoteUserfault::create(target.pid, Features::FOR_MISSING) {
        Err(RemoteUserfaultError::Inject(InjectError::AlreadyTraced {
            pid, tracer: by, ..
        })) => {
            assert_eq!((pid, by), (target.pid, tracer.pid));
        }
        other => panic!("{other:?}"),
    }
    drop(tracer);
    create_and_close(&target);
}

#[test]
fn a_process_cannot_inject_into_itself() {
    let error = RemoteUserfault::create(std::process::id(), Features::FOR_MISSING).unwrap_err();
    assert!(
        Report::new(&error)
            .to_string()
            .contains("a process cannot trace itself"),
        "{error}"
    );
}

/// No thread of the process can be stopped: an error is returned after a time limit, and nothing
/// remains when the process continues.
#[test]
fn no_thread_that_stops_is_an_error() {
    let target = Target::spawn(|shared| {
        vfork(shared, 1);
        shared.set(2, 1);
        0
    });
    target.wait_in_syscall(target.pid, libc::SYS_clone);
    let error = RemoteUserfault::create(target.pid, Features::FOR_MISSING).unwrap_err();
    assert!(
        matches!(
            &error,
            RemoteUserfaultError::Inject(InjectError::NoThreadStops { threads: 1, .. })
        ),
        "{error}"
    );
    target.shared.set(1, 1);
    assert_eq!(target.join(), 0);
    assert_eq!(target.shared.get(2), 1);
}

#[test]
fn a_missing_privilege_is_named() {
    let target = sleeper();
    let text = as_nobody(|| {
        Report::new(RemoteUserfault::create(target.pid, Features::FOR_MISSING).unwrap_err())
            .to_string()
    });
    assert_eq!(
        text,
        format!(
            "creating a userfaultfd: attaching to process {}: not permitted: this program does \
             not have CAP_SYS_PTRACE; run it as root or with that capability",
            target.pid
        )
    );
}

fn unprivileged() -> Target {
    let target = Target::spawn(|shared| {
        become_nobody();
        shared.set(0, 1);
        loop {
            shared.add(1, 1);
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    target.shared.wait(0, 1);
    target
}

/// A QEMU that runs as an ordinary user may not call userfaultfd(2); it gets the device from us.
#[test]
fn an_unprivileged_process_creates_one_from_the_device() {
    let target = unprivileged();
    let before = target.descriptors();
    for _ in 0..20 {
        let remote = create(&target);
        let now = target.descriptors();
        assert_eq!(now.len(), before.len() + 1, "{now:?}");
        remote.close_remote().unwrap();
        assert_eq!(target.descriptors(), before);
    }
    let laps = target.shared.get(1);
    target.shared.wait(1, laps + 2);
}

#[test]
fn both_refusals_are_reported() {
    let target = unprivileged();
    let text = as_nobody(|| {
        Report::new(RemoteUserfault::create(target.pid, Features::FOR_MISSING).unwrap_err())
            .to_string()
    });
    assert_eq!(
        text,
        format!(
            "creating a userfaultfd in process {}: userfaultfd(2) in the process failed \
             (Operation not permitted (os error 1)) and the device failed (opening \
             /dev/userfaultfd: Permission denied (os error 13)); set sysctl \
             vm.unprivileged_userfaultfd=1, or run this program as a user that may open \
             /dev/userfaultfd (Linux 6.1 and later)",
            target.pid
        )
    );
    assert!(!has_userfault(&target));
}

/// In strict mode every call except read, write and exit kills the process.
fn sandboxed(user: fn()) -> Target {
    let target = Target::spawn(|shared| {
        user();
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT) };
        loop {
            shared.add(0, 1);
        }
    });
    target.shared.wait(0, 1);
    target
}

#[test]
fn seccomp_does_not_kill_for_our_calls() {
    let target = sandboxed(|| {});
    create_and_close(&target);
    let laps = target.shared.get(0);
    target.shared.wait(0, laps + 1000);
}

#[test]
fn seccomp_without_the_right_to_suspend_it_is_refused() {
    let target = sandboxed(become_nobody);
    let text = as_nobody(|| {
        Report::new(RemoteUserfault::create(target.pid, Features::FOR_MISSING).unwrap_err())
            .to_string()
    });
    assert!(
        text.contains("runs under seccomp") && text.contains("CAP_SYS_ADMIN"),
        "{text}"
    );
    let laps = target.shared.get(0);
    target.shared.wait(0, laps + 1000);
}

#[test]
fn missing_features_leave_the_process_untouched() {
    let target = sleeper();
    let error = RemoteUserfault::create(target.pid, Features(1 << 40)).unwrap_err();
    assert!(
        Report::new(&error)
            .to_string()
            .contains("does not support feature bit 40"),
        "{error}"
    );
    assert!(!has_userfault(&target));
}

#[test]
fn open_userfaults_are_found_adopted_and_closed() {
    let target = sleeper();
    let process = Arc::new(Process::open(target.pid).unwrap());
    assert_eq!(open_userfaults(&process).unwrap(), []);

    let first = create(&target);
    first.leave_open_on_drop();
    let number = first.remote();
    drop(first);
    let [found] = open_userfaults(&process).unwrap()[..] else {
        panic!("one leftover expected");
    };
    assert_eq!(found.number, number);
    assert_eq!(found.features, Features::FOR_MISSING);
    assert_eq!((found.unread, found.waiting), (0, 0));

    let adopted = RemoteUserfault::adopt(&process, number).unwrap();
    adopted.close_remote().unwrap();
    adopted.close_remote().unwrap();
    assert_eq!(open_userfaults(&process).unwrap(), []);
    close_remote(&process, number).unwrap();

    let error = RemoteUserfault::adopt(&process, 0).unwrap_err();
    assert!(matches!(
        error,
        RemoteUserfaultError::NotUserfault { number: 0, .. }
    ));
    let error = close_remote(&process, 0).unwrap_err();
    assert!(
        Report::new(&error)
            .to_string()
            .contains("now refers to a different file"),
        "{error}"
    );
}
