//! Signals that are sent during an injection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hikkoshi_userfault::{Features, RemoteUserfault};

use crate::common::{Shared, Target, eventually};

use super::{create, create_and_close, has_userfault};

/// Every queued signal arrives exactly once, at whatever time it was sent.
#[test]
fn no_signal_is_lost_or_doubled() {
    use std::sync::atomic::AtomicPtr;
    static SHARED: AtomicPtr<Shared> = AtomicPtr::new(std::ptr::null_mut());
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
    eventually("the stop", || target.state() == 'T');
    let before = target.shared.get(0);
    for _ in 0..5 {
        let remote = create(&target);
        assert!(has_userfault(&target));
        remote.close_remote().unwrap();
        assert!(!has_userfault(&target));
        eventually("the stop to hold again", || target.state() == 'T');
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
        eventually("the stop", || target.state() == 'T');
        let before = target.shared.get(0);
        target.kill(libc::SIGCONT);
        target.shared.wait(0, before + 2);
    }
}
