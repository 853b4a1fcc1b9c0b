//! Threads of the kernel.

/// `PF_KTHREAD` of `linux/sched.h`.
const PF_KTHREAD: u64 = 0x0020_0000;

/// The name of the kernel's thread with this ID, such as `kworker/0:1-events`. `None` if there is
/// no such thread, if it belongs to a process, or if it is not visible: kernel threads are only
/// visible in the initial PID namespace.
pub fn kernel_thread_name(id: u32) -> Option<String> {
    parse(&std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?)
}

/// Whether the kernel's thread with this name executes work for others (`kworker`,
/// `kernel/workqueue.c`). KVM's asynchronous page faults are such work.
pub fn is_kernel_worker(name: &str) -> bool {
    name.starts_with("kworker/")
}

/// Parses `/proc/PID/stat`: the second field is the name in brackets, and the ninth the flags.
fn parse(stat: &str) -> Option<String> {
    let (name, fields) = stat.split_once('(')?.1.rsplit_once(") ")?;
    let flags: u64 = fields.split(' ').nth(6)?.parse().ok()?;
    (flags & PF_KTHREAD != 0).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_kernels_threads_have_a_name() {
        let worker = "14 (kworker/0:1-events) I 2 0 0 0 -1 69238880 0 0 0 0 0 0 0 0 20 0 1 0 21 0";
        let name = parse(worker).unwrap();
        assert_eq!(name, "kworker/0:1-events");
        assert!(is_kernel_worker(&name));
        // A process can have any name.
        let process = "77 (kworker/0:1) ) S 2 0 0 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 21 0";
        assert_eq!(parse(process), None);
        for broken in ["", "1 (", "1 (a)", "1 (a) S 1", "1 (a) S 0 0 0 0 0 x"] {
            assert_eq!(parse(broken), None, "{broken}");
        }
        assert!(!is_kernel_worker("vhost-4711"));
        assert_eq!(kernel_thread_name(std::process::id()), None);
        assert_eq!(kernel_thread_name(u32::MAX), None);
    }
}
