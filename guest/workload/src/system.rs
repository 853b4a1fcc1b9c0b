//! Kernel interfaces other than memory.

use std::io;

/// Number of processors that this program may use.
pub(crate) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Number of processors that are online.
pub(crate) fn online_processors() -> i64 {
    // SAFETY: no memory is involved.
    unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }
}

/// Pins the calling thread to one processor.
pub(crate) fn pin_to(processor: usize) -> io::Result<()> {
    // SAFETY: an all-zero set is a valid, empty one; `CPU_SET` ignores numbers it has no room for;
    // 0 means the calling thread.
    let done = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(processor, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Seconds since the kernel started, to report the boot time.
pub(crate) fn uptime() -> f64 {
    std::fs::read_to_string("/proc/uptime")
        .ok()
        .and_then(|text| text.split(' ').next().and_then(|first| first.parse().ok()))
        .unwrap_or(0.0)
}

/// Powers the guest off; called by its first process only.
pub(crate) fn power_off() {
    // SAFETY: no memory is involved; the caller is the guest's first process.
    unsafe {
        libc::sync();
        libc::reboot(libc::RB_POWER_OFF);
    }
}
