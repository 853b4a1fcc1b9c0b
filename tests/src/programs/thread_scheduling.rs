//! Scheduling attributes of a program's threads.

use std::fs;

/// `SCHED_OTHER` (sched(7)).
const OTHER: u32 = 0;
/// `SCHED_BATCH`.
const BATCH: u32 = 3;

/// The scheduling attributes of a thread.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ThreadScheduling {
    /// The thread's name.
    pub thread: String,
    /// `SCHED_…`.
    pub policy: u32,
    /// Its nice value.
    pub nice: i32,
    /// The requested time slice, ns, if the kernel reports it.
    pub slice: Option<u64>,
}

impl ThreadScheduling {
    /// The attributes of all threads of a process.
    ///
    /// # Panics
    /// When the process has ended.
    pub fn of_threads(pid: u32) -> Vec<Self> {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        // A thread that ends meanwhile is skipped.
        tasks
            .flatten()
            .filter_map(|task| Self::read(&task.path()))
            .collect()
    }

    fn read(task: &std::path::Path) -> Option<Self> {
        // proc_pid_stat(5): field 2 is the name in parentheses, 19 the nice value, 41 the policy.
        let stat = fs::read_to_string(task.join("stat")).ok()?;
        let (name, fields) = stat.rsplit_once(") ")?;
        let field = |number: usize| fields.split_whitespace().nth(number - 3);
        // Only on kernels with CONFIG_SCHED_DEBUG, such as those of distributions.
        let sched = fs::read_to_string(task.join("sched")).unwrap_or_default();
        let slice = sched.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name.trim() == "se.slice").then(|| value.trim().parse().ok())?
        });
        Some(Self {
            thread: name.split_once('(')?.1.to_owned(),
            policy: field(41)?.parse().ok()?,
            nice: field(19)?.parse().ok()?,
            slice,
        })
    }

    /// Whether the scheduler prefers this thread to `other`: it can preempt `other` when it wakes,
    /// and has a shorter time slice or more weight.
    pub fn has_priority_over(&self, other: &Self) -> bool {
        self.policy == OTHER
            && other.policy == BATCH
            && (self.nice < other.nice || self.slice < other.slice)
    }

    /// Whether both threads have the same scheduling attributes.
    pub fn has_same_priority_as(&self, other: &Self) -> bool {
        (self.policy, self.nice, self.slice) == (other.policy, other.nice, other.slice)
    }
}
