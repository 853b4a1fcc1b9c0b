//! Older kernels, as a program sees them: a system call that they do not have fails.

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use std::collections::BTreeMap;

/// What a kernel lacks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum KernelFeature {
    /// userfaultfd altogether: no system call (`ENOSYS`), and a device that makes none.
    Userfault,
    /// The features that are asked for: `UFFDIO_API` refuses them (`EINVAL`).
    UserfaultFeatures,
    /// `PAGEMAP_SCAN` (`ENOTTY`, as before Linux 6.7).
    PagemapScan,
}

// asm-generic/unistd.h has other numbers; the laboratory is for x86-64.
const SYS_USERFAULTFD: i64 = 323;
const SYS_IOCTL: i64 = 16;

// linux/userfaultfd.h and linux/fs.h.
const USERFAULTFD_IOC_NEW: u64 = 0xaa00;
const UFFDIO_API: u64 = 0xc018_aa3f;
const PAGEMAP_SCAN: u64 = 0xc060_6610;

const EINVAL: u32 = 22;
const ENOTTY: u32 = 25;
const ENOSYS: u32 = 38;

impl KernelFeature {
    /// Does something on such a kernel: programs that are started meanwhile stay on it.
    ///
    /// # Panics
    /// When there are no filters for system calls here.
    pub fn run_without<T: Send>(self, work: impl FnOnce() -> T + Send) -> T {
        // A filter is its thread's and its descendants', and for good: hence a thread of its own.
        std::thread::scope(|scope| {
            let filtered = scope.spawn(move || {
                match self {
                    Self::Userfault => {
                        refuse(SYS_USERFAULTFD, None, ENOSYS);
                        refuse(SYS_IOCTL, Some(USERFAULTFD_IOC_NEW), ENOTTY);
                    }
                    Self::UserfaultFeatures => refuse(SYS_IOCTL, Some(UFFDIO_API), EINVAL),
                    Self::PagemapScan => refuse(SYS_IOCTL, Some(PAGEMAP_SCAN), ENOTTY),
                }
                work()
            });
            filtered.join().unwrap()
        })
    }
}

/// From now on this thread's system call `number` (with `request` as its second argument, if
/// given) fails with `errno`.
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
