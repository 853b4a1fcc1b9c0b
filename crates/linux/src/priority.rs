//! Who gets a processor first: urgent work before background work.
//!
//! Urgent threads (they read faults and requests, send and install urgent
//! pages) sleep most of the time and work for some microseconds; what counts
//! is how soon they get a core when they wake. Background threads work all the
//! time; what counts is that they stand back. Neither needs more privilege than
//! attaching to the guest does:
//!
//! * Background: `SCHED_BATCH`, which on waking takes nobody's core away.
//!   Lowering oneself is always allowed. The nice value stays: a higher one
//!   starves the move where others want the core, and on two cores with a busy
//!   virtual processor it makes urgent pages no faster (`docs/preemption.md`).
//! * Urgent: a short time slice. The kernel's scheduler (EEVDF, Linux 6.12 and
//!   later) serves whoever asks for less time sooner, on waking even before the
//!   running thread's slice has ended. Where the privilege happens to be there
//!   (CAP_SYS_NICE), also a lower nice value.
//!
//! Both are relative to what the program was started with; a policy that
//! somebody chose for it (`chrt`) is left as it is.

use std::time::Duration;

use rustix::io::Errno;

use crate::schedule::{Policy, Schedule};

/// What an urgent thread asks for at once: the least that the kernel grants.
const URGENT_SLICE: Duration = Duration::from_micros(100);

/// How much more an urgent thread's share weighs, in nice steps, where that is
/// allowed.
const URGENT_NICE: i32 = -10;

/// What a thread does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PriorityClass {
    /// The guest waits for it.
    Urgent,
    /// Nobody waits for it.
    Background,
}

/// Whether threads are ranked at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Priority(bool);

impl Default for Priority {
    fn default() -> Self {
        Self::ON
    }
}

impl Priority {
    /// Urgent threads before background threads.
    pub const ON: Self = Self(true);

    /// All threads as the program was started.
    pub const OFF: Self = Self(false);

    /// Gives the calling thread its rank: once, at its start.
    ///
    /// What the kernel does not grant is done without, and told at debug
    /// level: a thread without its rank is late at worst.
    pub fn apply(self, class: PriorityClass) {
        if !self.0 {
            return;
        }
        match apply(class) {
            Ok(got) => tracing::debug!(?class, ?got, "thread priority set"),
            Err(error) => tracing::debug!(?class, %error, "thread priority not set"),
        }
    }
}

fn apply(class: PriorityClass) -> Result<Schedule, Errno> {
    let before = Schedule::get()?;
    if before.policy != Policy::Other {
        return Ok(before);
    }
    match class {
        PriorityClass::Background => Schedule {
            policy: Policy::Batch,
            nice: before.nice,
            slice: Duration::ZERO,
        }
        .set()?,
        PriorityClass::Urgent => {
            let short = Schedule {
                slice: URGENT_SLICE,
                ..before
            };
            let weighty = Schedule {
                nice: (before.nice + URGENT_NICE).max(-20),
                ..short
            };
            match weighty.set() {
                Err(Errno::PERM | Errno::ACCESS) => short.set()?,
                other => other?,
            }
        }
    }
    Schedule::get()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// What a new thread has before and after it took `class`.
    fn schedules(priority: Priority, class: PriorityClass) -> (Schedule, Schedule) {
        thread::spawn(move || {
            let before = Schedule::get().unwrap();
            priority.apply(class);
            (before, Schedule::get().unwrap())
        })
        .join()
        .unwrap()
    }

    #[test]
    fn background_stands_back() {
        let (before, after) = schedules(Priority::ON, PriorityClass::Background);
        if before.policy != Policy::Other {
            assert_eq!(after, before, "somebody's choice");
            return;
        }
        assert_eq!(after.policy, Policy::Batch);
        assert_eq!(after.nice, before.nice);
    }

    #[test]
    fn urgent_comes_first() {
        let (before, after) = schedules(Priority::ON, PriorityClass::Urgent);
        if before.policy != Policy::Other {
            assert_eq!(after, before, "somebody's choice");
            return;
        }
        assert_eq!(after.policy, Policy::Other);
        // By privilege the one or the other, never worse.
        let allowed = [before.nice, (before.nice + URGENT_NICE).max(-20)];
        assert!(allowed.contains(&after.nice), "{after:?}");
        // Before Linux 6.12 there are no slices.
        assert!(after.slice.is_zero() || after.slice == URGENT_SLICE);
    }

    #[test]
    fn off_changes_nothing() {
        for class in [PriorityClass::Urgent, PriorityClass::Background] {
            let (before, after) = schedules(Priority::OFF, class);
            assert_eq!(after, before);
        }
    }
}
