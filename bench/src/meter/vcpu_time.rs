//! Processor time of a guest's virtual processors.

use std::fs;

use hikkoshi_lab::{LabError, Vm};

/// Nanoseconds that the threads of all virtual processors ran: the first number of
/// `/proc/PID/task/TID/schedstat` (the kernel's `Documentation/scheduler/sched-stats.rst`).
///
/// # Errors
/// When QEMU does not list them.
pub(crate) fn vcpu_time_ns(vm: &Vm) -> Result<u64, LabError> {
    sum(vm, "schedstat", first_number)
}

/// Clock ticks that the threads of all virtual processors spent in the kernel: `stime` of
/// `/proc/PID/task/TID/stat` (`Documentation/filesystems/proc.rst`, table 1-4). The kernel divides
/// the time that a thread ran by what each timer interrupt has found, so this is a sample.
///
/// # Errors
/// When QEMU does not list them.
pub(crate) fn vcpu_kernel_ticks(vm: &Vm) -> Result<u64, LabError> {
    sum(vm, "stat", kernel_ticks)
}

/// A number of a file of each thread, added up.
fn sum(vm: &Vm, file: &str, number: impl Fn(&str) -> Option<u64>) -> Result<u64, LabError> {
    let answer = vm.qmp().execute("query-cpus-fast", serde_json::json!({}))?;
    let threads = answer.as_array().cloned().unwrap_or_default();
    Ok(threads
        .iter()
        .filter_map(|cpu| cpu["thread-id"].as_u64())
        .filter_map(|thread| {
            let path = format!("/proc/{}/task/{thread}/{file}", vm.pid());
            number(&fs::read_to_string(path).ok()?)
        })
        .sum())
}

fn first_number(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

/// Field 15. The name, field 2, is in parentheses and may have spaces.
fn kernel_ticks(text: &str) -> Option<u64> {
    let (_, after_name) = text.rsplit_once(')')?;
    after_name.split_whitespace().nth(12)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_thread_has_processor_time() {
        // The kernel updates the counter when the thread leaves the processor.
        std::thread::sleep(std::time::Duration::from_millis(1));
        let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        assert!(first_number(&text) > Some(0), "{text}");
        assert_eq!(first_number(""), None);
    }

    #[test]
    fn kernel_time_follows_the_name() {
        let text = "7 (CPU 0) TCG) R 1 7 7 0 -1 4194560 11 0 0 0 1234 56 0 0 20 0 3 0 99";
        assert_eq!(kernel_ticks(text), Some(56));
        assert_eq!(kernel_ticks("7 (CPU"), None);
        let own = fs::read_to_string("/proc/thread-self/stat").unwrap();
        assert!(kernel_ticks(&own).is_some(), "{own}");
    }
}
