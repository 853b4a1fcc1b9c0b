//! Processor time of a guest's virtual processors.

use std::fs;

use hikkoshi_lab::{LabError, Vm};

/// Nanoseconds that the threads of all virtual processors ran: the first number of
/// `/proc/PID/task/TID/schedstat` (the kernel's `Documentation/scheduler/sched-stats.rst`).
///
/// # Errors
/// When QEMU does not list them.
pub(crate) fn vcpu_time_ns(vm: &Vm) -> Result<u64, LabError> {
    let answer = vm.qmp().execute("query-cpus-fast", serde_json::json!({}))?;
    let threads = answer.as_array().cloned().unwrap_or_default();
    Ok(threads
        .iter()
        .filter_map(|cpu| cpu["thread-id"].as_u64())
        .filter_map(|thread| {
            let path = format!("/proc/{}/task/{thread}/schedstat", vm.pid());
            first_number(&fs::read_to_string(path).ok()?)
        })
        .sum())
}

fn first_number(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
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
}
