//! Simulates older kernels: system calls of missing features fail.

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use std::collections::BTreeMap;

/// A kernel feature that can be disabled.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum KernelFeature {
    /// userfaultfd altogether: no system call (`ENOSYS`), and a device that creates none.
    Userfault,
    /// The userfaultfd features: `UFFDIO_API` rejects them (`EINVAL`).
    UserfaultFeatures,
    /// `PAGEMAP_SCAN` (`ENOTTY`, as before Linux 6.7).
    PagemapScan,
    /// The right to trace processes: `ptrace` fails (`EPERM`), so no system call is injected.
    Tracing,
}

// Numbers for x86-64, the only architecture of the lab; asm-generic/unistd.h has others.
const SYS_USERFAULTFD: i64 = 323;
const SYS_IOCTL: i64 = 16;
const SYS_PTRACE: i64 = 101;
/// The kernel has not had it since Linux 3.1.
const SYS_NFSSERVCTL: i64 = 180;

// linux/userfaultfd.h and linux/fs.h.
const USERFAULTFD_IOC_NEW: u64 = 0xaa00;
const UFFDIO_API: u64 = 0xc018_aa3f;
const PAGEMAP_SCAN: u64 = 0xc060_6610;

const EPERM: u32 = 1;
const EINVAL: u32 = 22;
const ENOTTY: u32 = 25;
const ENOSYS: u32 = 38;

impl KernelFeature {
    /// Runs `work` without this feature; programs started by it do not have the feature either.
    ///
    /// # Panics
    /// When the kernel does not support seccomp filters.
    pub fn run_without<T: Send>(self, work: impl FnOnce() -> T + Send) -> T {
        // A filter cannot be removed from a thread and its descendants, so `work` runs on a
        // separate thread.
        std::thread::scope(|scope| {
            let filtered = scope.spawn(move || {
                match self {
                    Self::Userfault => {
                        refuse(SYS_USERFAULTFD, None, ENOSYS);
                        refuse(SYS_IOCTL, Some(USERFAULTFD_IOC_NEW), ENOTTY);
                    }
                    Self::UserfaultFeatures => refuse(SYS_IOCTL, Some(UFFDIO_API), EINVAL),
                    Self::PagemapScan => refuse(SYS_IOCTL, Some(PAGEMAP_SCAN), ENOTTY),
                    Self::Tracing => refuse(SYS_PTRACE, None, EPERM),
                }
                work()
            });
            filtered.join().unwrap()
        })
    }
}

/// Runs `work` under a seccomp filter that refuses nothing that is used, as in a container.
/// Programs started by it run under the filter, too.
///
/// # Panics
/// When the kernel does not support seccomp filters.
pub fn run_under_seccomp<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let filtered = scope.spawn(|| {
            refuse(SYS_NFSSERVCTL, None, ENOSYS);
            work()
        });
        filtered.join().unwrap()
    })
}

/// Makes this thread's system call `number` fail with `errno`, if `request` is its second argument
/// or not given.
fn refuse(number: i64, request: Option<u64>, errno: u32) {
    let rules = request.map(|request| {
        let same = SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, request);
        SeccompRule::new(vec![same.unwrap()]).unwrap()
    });
    let filter = SeccompFilter::new(
        BTreeMap::from([(number, rules.into_iter().collect())]),
        SeccompAction::Allow,
        SeccompAction::Errno(errno),
        std::env::consts::ARCH.try_into().unwrap(),
    );
    let program: BpfProgram = filter.unwrap().try_into().unwrap();
    seccompiler::apply_filter(&program).unwrap();
}
