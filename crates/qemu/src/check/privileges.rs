//! What this process may do.

use std::fs;

use hikkoshi_linux::Process;

/// `CAP_NET_RAW`, `linux/capability.h`.
const CAP_NET_RAW: u32 = 13;
/// `CAP_SYS_PTRACE`, `linux/capability.h`.
const CAP_SYS_PTRACE: u32 = 19;

/// What this process, and QEMU's, may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Privileges {
    /// Trace QEMU's process: read its memory and execute system calls in it.
    pub trace: bool,
    /// Create a userfaultfd in QEMU's process that catches faults of the kernel too, as far as can
    /// be found out without trying it there.
    pub userfaultfd: bool,
    /// Capture frames of a network interface (`CAP_NET_RAW`).
    pub network_capture: bool,
}

impl Privileges {
    /// Those for this process; `None`: it cannot be traced.
    pub(super) fn of(process: Option<&Process>) -> Self {
        let own = capabilities("self");
        Self {
            trace: process.is_some(),
            userfaultfd: process.is_some_and(|process| {
                let theirs = capabilities(&process.pid().to_string());
                has(theirs, CAP_SYS_PTRACE) || unprivileged_allowed() || device_opens()
            }),
            network_capture: has(own, CAP_NET_RAW),
        }
    }
}

fn has(capabilities: u64, number: u32) -> bool {
    capabilities >> number & 1 == 1
}

/// The effective capabilities of a process; none if they cannot be read.
fn capabilities(pid: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    parse(&status).unwrap_or(0)
}

fn parse(status: &str) -> Option<u64> {
    let mut lines = status.lines();
    let mask = lines.find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

fn unprivileged_allowed() -> bool {
    let value = fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd");
    value.is_ok_and(|value| value.trim() == "1")
}

fn device_opens() -> bool {
    fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/userfaultfd")
        .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_bits_of_a_hexadecimal_number() {
        let status = "Name:\tqemu\nCapPrm:\t0000000000000000\nCapEff:\t0000000000082000\n";
        let mask = parse(status).unwrap();
        assert!(has(mask, CAP_NET_RAW) && has(mask, CAP_SYS_PTRACE));
        assert!(!has(mask, 0));
        assert_eq!(parse("CapEff:\tnothing\n"), None);
        assert_eq!(parse(""), None);
    }
}
