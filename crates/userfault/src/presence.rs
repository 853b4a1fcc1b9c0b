//! Which huge pages are there: what an engine must know that takes over from one that was killed.

use std::os::fd::AsFd;

use rustix::io::Errno;

use crate::abi;
use crate::userfault::{RangeError, Userfault, pause_before_retry};
use hikkoshi_linux::HostRange;

impl Userfault {
    /// Whether hugetlbfs has the huge page at `page` (one whole host page, registered), mapped or
    /// not. Neither `lseek` nor `mincore` can tell.
    ///
    /// `UFFDIO_CONTINUE` maps what the file has there: it succeeds, or says `EEXIST` for what is
    /// mapped already, or `EFAULT` for what the file has not (ioctl_userfaultfd(2)). To map a page
    /// that is there changes nothing for whoever uses it, and nothing is allocated for one that is
    /// not. Tried on Linux 6.18, without a registration for MINOR faults.
    ///
    /// # Errors
    ///
    /// When the range is not registered, the process has ended, or its layout keeps changing for
    /// longer than 0.3 s.
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
