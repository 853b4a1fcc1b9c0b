//! What this process may do.

use std::{fs, io};

use hikkoshi_linux::{
    CAP_SYS_PTRACE, Process, is_in_initial_user_namespace, suspend_seccomp_obstacle,
};
use serde::Serialize;
use thiserror::Error;

/// `CAP_NET_RAW`, `linux/capability.h`.
const CAP_NET_RAW: u32 = 13;

/// What this process, and QEMU's, may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Privileges {
    /// Trace QEMU's process: read its memory and execute system calls in it.
    pub trace: bool,
    /// Create a userfaultfd in QEMU's process that catches faults of the kernel too, as far as can
    /// be found out without trying it there.
    pub userfaultfd: bool,
    /// Capture frames of a network interface (`CAP_NET_RAW`).
    pub network_capture: bool,
}

/// No way to a userfaultfd in QEMU's process is open.
#[derive(Debug, Error)]
pub enum NoUserfaultfd {
    /// The kernel does not allow it.
    #[error(
        "a userfaultfd cannot be created in QEMU's process {pid}, which lacks the capability \
         CAP_SYS_PTRACE, or has it in a user namespace only (set sysctl vm.unprivileged_userfaultfd=1, or run hikkoshi as a user that \
         may open /dev/userfaultfd, Linux 6.1 and later): opening /dev/userfaultfd"
    )]
    NotPermitted {
        /// The process.
        pid: u32,
        /// The error of the device.
        source: io::Error,
    },
    /// No system call can be executed in the process.
    #[error(
        "a userfaultfd cannot be created in QEMU's process {pid}: it runs under seccomp (QEMU's \
         -sandbox), and suspending its filter {reason}"
    )]
    Sandboxed {
        /// The process.
        pid: u32,
        /// What that needs.
        reason: &'static str,
    },
}

/// Checks that one of the ways to a userfaultfd in `process` is open
/// (`Documentation/admin-guide/mm/userfaultfd.rst`, "Creating a userfaultfd").
pub(crate) fn check_userfaultfd(process: &Process) -> Result<(), NoUserfaultfd> {
    let pid = process.pid();
    let status = status(&pid.to_string());
    if is_sandboxed(&status)
        && let Some(reason) = suspend_seccomp_obstacle()
    {
        return Err(NoUserfaultfd::Sandboxed { pid, reason });
    }
    let theirs = parse(&status).unwrap_or(0);
    let may = has(theirs, CAP_SYS_PTRACE) && is_in_initial_user_namespace(&pid.to_string());
    if may || unprivileged_allowed() {
        return Ok(());
    }
    let device = fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/userfaultfd");
    match device {
        Ok(_) => Ok(()),
        Err(source) => Err(NoUserfaultfd::NotPermitted { pid, source }),
    }
}

impl Privileges {
    /// Those for this process; `None`: it cannot be traced.
    pub(crate) fn of_process(process: Option<&Process>) -> Self {
        let own = capabilities("self");
        Self {
            trace: process.is_some(),
            userfaultfd: process.is_some_and(|process| check_userfaultfd(process).is_ok()),
            network_capture: has(own, CAP_NET_RAW),
        }
    }
}

fn has(capabilities: u64, number: u32) -> bool {
    capabilities >> number & 1 == 1
}

/// The effective capabilities of a process; none if they cannot be read.
fn capabilities(pid: &str) -> u64 {
    parse(&status(pid)).unwrap_or(0)
}

fn status(pid: &str) -> String {
    fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default()
}

/// Whether the process runs under seccomp (proc_pid_status(5)).
fn is_sandboxed(status: &str) -> bool {
    let mut lines = status.lines();
    let mode = lines.find_map(|line| line.strip_prefix("Seccomp:"));
    mode.is_some_and(|mode| mode.trim() != "0")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_bits_of_a_hexadecimal_number() {
        let status = "Name:\tqemu\nCapPrm:\t0000000000000000\nCapEff:\t0000000000082000\n";
        let mask = parse(status).unwrap();
        assert!(has(mask, CAP_NET_RAW) && has(mask, CAP_SYS_PTRACE));
        assert!(!has(mask, 0));
        assert!(!is_sandboxed(status) && !is_sandboxed("Seccomp:\t0\nSeccomp_filters:\t0\n"));
        assert!(is_sandboxed(
            "NoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t1\n"
        ));
        assert_eq!(parse("CapEff:\tnothing\n"), None);
        assert_eq!(parse(""), None);
    }
}
