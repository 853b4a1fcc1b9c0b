//! Threads that calculate, wait for each other, cannot stop, or have exited.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hikkoshi_linux::InjectError;
use hikkoshi_userfault::{Features, RemoteUserfault, RemoteUserfaultError};

use crate::common::{Shared, Target, eventually};

use super::{create, create_and_close, has_userfault};

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
fn vfork(shared: &'static Shared, word: usize) {
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
    eventually("the main thread to end", || target.state() == 'Z');
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
            RemoteUserfaultError::Inject(InjectError::NoThreadStops { .. })
        ),
        "{error}"
    );
    target.shared.set(1, 1);
    assert_eq!(target.join(), 0);
    assert_eq!(target.shared.get(2), 1);
}
