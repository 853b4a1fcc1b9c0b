//! Checks whether a huge page is present. Needed to resume a migration whose engine was killed.

use std::os::fd::AsFd;

use rustix::io::Errno;

use crate::abi;
use crate::userfault::{RangeError, Userfault, pause_before_retry};
use hikkoshi_linux::HostRange;

impl Userfault {
    /// Whether hugetlbfs has the huge page at `page` (one whole host page, registered), mapped or
    /// not. `lseek` and `mincore` do not report this.
    ///
    /// `UFFDIO_CONTINUE` maps the page that the file has: it succeeds, or returns `EEXIST` if the
    /// page is already mapped, or `EFAULT` if the file does not have the page
    /// (ioctl_userfaultfd(2)). Mapping a present page has no effect on its users, and for a missing
    /// page nothing is allocated. Tested on Linux 6.18, without a registration for MINOR faults.
    ///
    /// # Errors
    ///
    /// When the range is not registered, the process has exited, or its memory layout keeps
    /// changing for longer than 0.3 s.
    pub fn holds_huge_page(&self, page: HostRange) -> Result<bool, RangeError> {
        let mut attempts = 0;
        loop {
            let mut argument = abi::Continue {
                range: abi::Range::from(page),
                ..Default::default()
            };
            match abi::ioctl(self.as_fd(), &mut argument) {
                Ok(()) | Err(Errno::EXIST) => return Ok(true),
                Err(Errno::FAULT) => return Ok(false),
                Err(Errno::AGAIN) if pause_before_retry(attempts) => attempts += 1,
                Err(source) => {
                    return Err(RangeError::new("checking the presence of", page, source));
                }
            }
        }
    }
}
