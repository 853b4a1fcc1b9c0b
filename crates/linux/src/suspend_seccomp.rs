//! Whether this process may suspend the seccomp filter of another one.

use std::os::linux::fs::MetadataExt;

use crate::process::{CAP_SYS_ADMIN, have_capability, status_field};

/// The inode of the initial user namespace in nsfs (`PROC_USER_INIT_INO`, `linux/proc_ns.h`).
const INITIAL_USER_NAMESPACE: u64 = 0xeffffffd;

/// Why this process may not suspend the seccomp filter of another process, as the end of a
/// sentence: what it "needs". `None`: it may, as far as can be found out without trying.
///
/// The rules are those of `PTRACE_O_SUSPEND_SECCOMP` (ptrace(2), `check_ptrace_options` in
/// `kernel/ptrace.c`): `CAP_SYS_ADMIN` in the initial user namespace, and no filter of its own.
#[must_use]
pub fn suspend_seccomp_obstacle() -> Option<&'static str> {
    if !have_capability(CAP_SYS_ADMIN) {
        return Some("needs CAP_SYS_ADMIN (run hikkoshi as root or with that capability)");
    }
    if !is_in_initial_user_namespace("self") {
        return Some(
            "needs CAP_SYS_ADMIN in the initial user namespace, and this program runs in another \
             one (run hikkoshi outside of that container)",
        );
    }
    let own = status_field("/proc/self/status", "Seccomp");
    own.is_some_and(|mode| mode != "0").then_some(
        "needs a program that does not run under seccomp itself, and this one does (run hikkoshi \
         without a seccomp filter, such as that of a container)",
    )
}

/// Whether the capabilities of the process `pid` (or `self`) count for the kernel, and not only in
/// a user namespace of its own. `true` if that cannot be found out.
#[must_use]
pub fn is_in_initial_user_namespace(pid: &str) -> bool {
    let namespace = std::fs::metadata(format!("/proc/{pid}/ns/user"));
    namespace.map_or(true, |namespace| {
        namespace.st_ino() == INITIAL_USER_NAMESPACE
    })
}
