//! System calls that are interrupted and restarted.

use std::time::{Duration, Instant};

use crate::common::{Target, eventually};

use super::create_and_close;

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
            eventually("the system call, or its end", || {
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
