//! Scheduling attributes of the calling thread: `sched_setattr(2)`.
//!
//! `priority.rs` uses them.

use std::time::Duration;

use rustix::io::Result;

use crate::errno::check;

/// Scheduling policies (`sched(7)`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// `SCHED_OTHER`: nice values determine the share of processor time.
    Other,
    /// `SCHED_BATCH`: like `Other`, but the thread does not preempt others when it wakes.
    Batch,
    /// `SCHED_RR` at this real-time priority, 1 (lowest) to 99.
    RoundRobin(u32),
    /// Any other policy, by its number in `linux/sched.h`.
    Unknown(u32),
}

/// Scheduling attributes of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Schedule {
    /// The scheduling policy.
    pub policy: Policy,
    /// From -20 (most processor time) to 19 (least). Not used by real-time policies.
    pub nice: i32,
    /// The requested time slice; a thread with a shorter slice runs sooner. Linux 6.12 and later,
    /// for `Other` and `Batch`, between 0.1 ms and 100 ms (`kernel/sched/syscalls.c`,
    /// `__setparam_fair`); older kernels ignore it. Zero: the default of the kernel.
    pub slice: Duration,
}

impl Schedule {
    /// Reads the attributes of the calling thread.
    ///
    /// # Errors
    /// Errors of `sched_getattr`.
    pub(crate) fn get() -> Result<Self> {
        let mut attributes = empty();
        // SAFETY: the kernel writes at most `size` bytes to the structure, which has that size and
        // contains only integers.
        let result = unsafe {
            libc::syscall(
                libc::SYS_sched_getattr,
                0,
                &raw mut attributes,
                attributes.size,
                0,
            )
        };
        check(result)?;
        Ok(Self {
            policy: match attributes.sched_policy.cast_signed() {
                libc::SCHED_OTHER => Policy::Other,
                libc::SCHED_BATCH => Policy::Batch,
                libc::SCHED_RR => Policy::RoundRobin(attributes.sched_priority),
                _ => Policy::Unknown(attributes.sched_policy),
            },
            nice: attributes.sched_nice,
            slice: Duration::from_nanos(attributes.sched_runtime),
        })
    }

    /// Sets the attributes of the calling thread. Threads that it starts inherit them.
    ///
    /// # Errors
    /// Errors of `sched_setattr`: `EPERM` when the thread asks for more than CAP_SYS_NICE or the
    /// limits `RLIMIT_NICE` and `RLIMIT_RTPRIO` allow.
    pub(crate) fn set(self) -> Result<()> {
        let mut attributes = empty();
        (attributes.sched_policy, attributes.sched_priority) = match self.policy {
            Policy::Other => (libc::SCHED_OTHER.cast_unsigned(), 0),
            Policy::Batch => (libc::SCHED_BATCH.cast_unsigned(), 0),
            Policy::RoundRobin(priority) => (libc::SCHED_RR.cast_unsigned(), priority),
            Policy::Unknown(number) => (number, 0),
        };
        attributes.sched_nice = self.nice;
        attributes.sched_runtime = u64::try_from(self.slice.as_nanos()).unwrap_or(u64::MAX);
        // SAFETY: the kernel reads `size` bytes of the structure, which has that size.
        let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
        check(result)
    }
}

/// Attributes with only the size set, which identifies the version of the interface.
fn empty() -> libc::sched_attr {
    // A small constant: not truncated.
    #[allow(clippy::cast_possible_truncation)]
    let size = size_of::<libc::sched_attr>() as u32;
    libc::sched_attr {
        size,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;
    use std::thread;

    #[test]
    fn a_thread_lowers_itself_and_reads_it_back() {
        thread::spawn(|| {
            let before = Schedule::get().unwrap();
            let lower = Schedule {
                policy: Policy::Batch,
                nice: (before.nice.max(0) + 3).min(19),
                slice: Duration::from_millis(2),
            };
            lower.set().unwrap();
            let after = Schedule::get().unwrap();
            assert_eq!((after.policy, after.nice), (lower.policy, lower.nice));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn invalid_priorities_are_refused_by_the_kernel() {
        let nonsense = Schedule {
            policy: Policy::RoundRobin(100),
            nice: 0,
            slice: Duration::ZERO,
        };
        assert_eq!(nonsense.set(), Err(Errno::INVAL));
    }
}
