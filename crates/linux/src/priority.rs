//! Scheduling of threads: urgent threads run before background threads.
//!
//! Urgent threads (they read faults and requests, and send and install urgent pages) sleep most of
//! the time and then work for some microseconds; they must get a core soon after they wake.
//! Background threads work all the time and must not delay urgent threads. Neither setting needs
//! more privilege than attaching to the guest:
//!
//! * Background: `SCHED_BATCH`, which does not preempt other threads when it wakes. A thread may
//!   always lower its own priority. The nice value is unchanged: a higher one starves the migration
//!   when other programs need the core, and on two cores with a busy vCPU it does not make urgent
//!   pages faster (`docs/preemption.md`).
//! * Urgent: a short time slice. The kernel's scheduler (EEVDF, Linux 6.12 and later) serves
//!   threads with shorter slices sooner; when such a thread wakes, it can preempt the running
//!   thread before its slice ends. With CAP_SYS_NICE also a lower nice value.
//!
//! Both are relative to the settings with which the program was started. If it was started with
//! another scheduling policy (`chrt`), the policy is not changed.

use std::time::Duration;

use error_reporter::Report;
use rustix::io::Errno;

use crate::schedule::{Policy, Schedule};

/// Time slice of an urgent thread: the minimum that the kernel allows.
const URGENT_SLICE: Duration = Duration::from_micros(100);

/// Change of an urgent thread's nice value, if permitted.
const URGENT_NICE: i32 = -10;

/// The scheduling class of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PriorityClass {
    /// The guest waits for the work of this thread.
    Urgent,
    /// No thread of the guest waits for the work of this thread.
    Background,
}

/// Whether thread priorities are set at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Priority(bool);

impl Default for Priority {
    fn default() -> Self {
        Self::ON
    }
}

impl Priority {
    /// Urgent threads run before background threads.
    pub const ON: Self = Self(true);

    /// All threads keep the settings with which the program was started.
    pub const OFF: Self = Self(false);

    /// Sets the scheduling of the calling thread. Call it once, when the thread starts.
    ///
    /// A failure is only logged at debug level: without its priority a thread is at worst slower.
    pub fn apply(self, class: PriorityClass) {
        if !self.0 {
            return;
        }
        match apply(class) {
            Ok(got) => tracing::debug!(?class, ?got, "thread priority set"),
            Err(error) => {
                tracing::debug!(?class, error = %Report::new(&error), "thread priority not set")
            }
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

    /// Returns the scheduling of a new thread before and after it applies `class`.
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
    fn background_threads_use_batch_scheduling() {
        let (before, after) = schedules(Priority::ON, PriorityClass::Background);
        if before.policy != Policy::Other {
            assert_eq!(after, before, "policy chosen by the user");
            return;
        }
        assert_eq!(after.policy, Policy::Batch);
        assert_eq!(after.nice, before.nice);
    }

    #[test]
    fn urgent_threads_use_a_short_slice() {
        let (before, after) = schedules(Priority::ON, PriorityClass::Urgent);
        if before.policy != Policy::Other {
            assert_eq!(after, before, "policy chosen by the user");
            return;
        }
        assert_eq!(after.policy, Policy::Other);
        // Depends on the privilege; never a higher nice value.
        let allowed = [before.nice, (before.nice + URGENT_NICE).max(-20)];
        assert!(allowed.contains(&after.nice), "{after:?}");
        // Kernels before Linux 6.12 have no slices.
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
