//! Whether others use the machine too.

use std::fs;
use std::time::{Duration, Instant};

/// Below this, others do not matter, in processors.
const QUIET: f64 = 0.25;
/// How long one look takes.
const LOOK: Duration = Duration::from_millis(500);
/// The kernel's clock ticks a second in `/proc` (`USER_HZ`, 100 on every architecture that
/// hikkoshi runs on).
const TICKS: f64 = 100.0;

/// Waits until nobody else keeps the machine busy, no longer than `patience`.
pub fn wait_until_idle(patience: Duration) {
    let begun = Instant::now();
    loop {
        let before = busy_seconds();
        std::thread::sleep(LOOK);
        if (busy_seconds() - before) / LOOK.as_secs_f64() < QUIET || begun.elapsed() > patience {
            return;
        }
    }
}

/// Processor time that processes of ours and of others use between two moments.
#[derive(Debug)]
pub struct CpuMeter {
    begun: Instant,
    busy: f64,
    own: f64,
}

impl CpuMeter {
    /// From now on; `pids` are the processes of ours besides this one and its children.
    pub fn start(pids: &[u32]) -> Self {
        Self {
            begun: Instant::now(),
            busy: busy_seconds(),
            own: own_seconds(pids),
        }
    }

    /// What others have used since, in processors. Interrupts on behalf of the line count as
    /// others', too: nobody can tell whose they are.
    pub fn others_cores(&self, pids: &[u32]) -> f64 {
        let others = (busy_seconds() - self.busy) - (own_seconds(pids) - self.own);
        (others / self.begun.elapsed().as_secs_f64().max(1e-3)).max(0.0)
    }

    /// What ours have used since, in seconds.
    pub fn own_seconds(&self, pids: &[u32]) -> f64 {
        own_seconds(pids) - self.own
    }
}

/// Seconds that the processors were not idle, summed over them: user, nice, system, irq, softirq.
fn busy_seconds() -> f64 {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let fields: Vec<f64> = text
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(1)
        .filter_map(|word| word.parse().ok())
        .collect();
    [0, 1, 2, 5, 6]
        .iter()
        .filter_map(|&at| fields.get(at))
        .sum::<f64>()
        / TICKS
}

fn own_seconds(pids: &[u32]) -> f64 {
    // This process with the children it has waited for, and those that run.
    stat("self", &[11, 12, 13, 14])
        + pids
            .iter()
            .map(|pid| stat(&pid.to_string(), &[11, 12]))
            .sum::<f64>()
}

/// Adds up fields of `/proc/PID/stat`, counted from the state on (proc(5) has them from 3).
fn stat(pid: &str, fields: &[usize]) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let words: Vec<&str> = text
        .rsplit_once(')')
        .map(|(_, rest)| rest.split_whitespace().collect())
        .unwrap_or_default();
    fields
        .iter()
        .filter_map(|&at| words.get(at)?.parse::<f64>().ok())
        .sum::<f64>()
        / TICKS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_process_does_is_not_others_doing() {
        let meter = CpuMeter::start(&[]);
        // Until some hundredths of a second are counted, however long that takes on a busy
        // machine; the limit only ends a test that hangs.
        let begun = Instant::now();
        while meter.own_seconds(&[]) < 0.05 && begun.elapsed() < Duration::from_secs(60) {
            std::hint::spin_loop();
        }
        assert!(meter.own_seconds(&[]) > 0.0);
        assert!(meter.others_cores(&[]) >= 0.0);
    }
}
