//! What a program's threads were given of the processors.

use std::fs;

/// `SCHED_OTHER` (sched(7)).
const OTHER: u32 = 0;
/// `SCHED_BATCH`.
const BATCH: u32 = 3;

/// How the kernel ranks a thread.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ThreadScheduling {
    /// The thread's name.
    pub thread: String,
    /// `SCHED_…`.
    pub policy: u32,
    /// Its nice value.
    pub nice: i32,
    /// The time that it asks for at once, ns, where the kernel tells.
    pub slice: Option<u64>,
}

impl ThreadScheduling {
    /// Those of a process's threads that have names.
    ///
    /// # Panics
    /// When the process has gone.
    pub fn of_threads(pid: u32) -> Vec<Self> {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        // A thread that ends meanwhile is not of interest.
        tasks
            .flatten()
            .filter_map(|task| Self::read(&task.path()))
            .collect()
    }

    fn read(task: &std::path::Path) -> Option<Self> {
        // proc_pid_stat(5): 2 is the name in parentheses, 19 the nice value, 41 the policy.
        let stat = fs::read_to_string(task.join("stat")).ok()?;
        let (name, fields) = stat.rsplit_once(") ")?;
        let field = |number: usize| fields.split_whitespace().nth(number - 3);
        // Only on kernels with CONFIG_SCHED_DEBUG, as distributions' are.
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

    /// Whether this thread comes before `other` on a processor: it may take a core from it when it
    /// wakes, and asks for less time at once or weighs more.
    pub fn has_priority_over(&self, other: &Self) -> bool {
        self.policy == OTHER
            && other.policy == BATCH
            && (self.nice < other.nice || self.slice < other.slice)
    }

    /// Whether neither comes before the other.
    pub fn has_same_priority_as(&self, other: &Self) -> bool {
        (self.policy, self.nice, self.slice) == (other.policy, other.nice, other.slice)
    }
}
