//! The few things asked of the kernel besides memory.

use std::io;

/// Processors that this program may run on.
pub(crate) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Keeps the calling thread on one processor.
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

/// Seconds since the kernel started, for the line that says how long booting took.
pub(crate) fn uptime() -> f64 {
    std::fs::read_to_string("/proc/uptime")
        .ok()
        .and_then(|text| text.split(' ').next().and_then(|first| first.parse().ok()))
        .unwrap_or(0.0)
}

/// Switches the guest off; only its first process asks for it.
pub(crate) fn power_off() {
    // SAFETY: no memory is involved; the caller is the guest's first process.
    unsafe {
        libc::sync();
        libc::reboot(libc::RB_POWER_OFF);
    }
}
