//! Why a kernel cannot track writes; which huge pages it can track.

use std::io;

use hikkoshi_pages::PAGE_BYTES;
use hikkoshi_userfault::CreateError;
use thiserror::Error;

/// This kernel cannot track writes from outside. Pre-copy and hybrid migration need that; post-copy
/// does not.
#[derive(Debug, Error)]
pub enum UnsupportedKernel {
    /// There is no userfaultfd with asynchronous write protection.
    #[error("no asynchronous write protection (Linux 6.7 and later have it)")]
    Userfault(#[from] CreateError),
    /// The test on memory of this process failed.
    #[error("write tracking does not work on this kernel (PAGEMAP_SCAN requires Linux 6.7)")]
    Tracking(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The test on memory of this process had a wrong result.
    #[error(
        "this kernel's write tracking is wrong: pages {expected:?} of test memory were written, but \
         {found:?} were reported; a migration would corrupt the guest's memory"
    )]
    Wrong {
        /// The pages that were written.
        expected: Vec<u64>,
        /// The pages that were reported.
        found: Vec<u64>,
    },
    /// There is no memory for the test.
    #[error("allocating memory to test write tracking")]
    Memory(#[from] io::Error),
    /// Huge pages on a kernel that hangs when it scans them.
    #[error(
        "2 MiB hugetlb pages can be tracked only on Linux 6.18 and later, this is {release}: on older \
         kernels the scan of unpopulated huge pages can hang forever; use 4 KiB pages, or migrate \
         the guest by post-copy (--mode postcopy)"
    )]
    HugetlbRelease {
        /// The release of the running kernel.
        release: String,
    },
    /// Huge pages that no kernel can track.
    #[error(
        "hugetlb pages of {bytes} bytes cannot be tracked: the kernel does not write-protect them; \
         use 2 MiB or 4 KiB pages, or migrate the guest by post-copy (--mode postcopy)"
    )]
    HugetlbSize {
        /// The page size.
        bytes: u64,
    },
}

/// Whether writes to memory with pages of `host_page` bytes can be tracked. Always true for 4 KiB
/// pages.
///
/// This function does use the kernel's version: a test could hang the calling thread forever
/// (`PM_SCAN_WP_MATCHING` on hugetlb memory with holes). Linux 6.18 was tested and does not hang.
///
/// # Errors
///
/// Says why not.
pub fn hugetlb_support(host_page: u64) -> Result<(), UnsupportedKernel> {
    const TWO_MIB: u64 = 2 << 20;
    match host_page {
        PAGE_BYTES => Ok(()),
        TWO_MIB => {
            let release = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
            if is_at_least(&release, (6, 18)) {
                Ok(())
            } else {
                let release = release.trim().to_owned();
                Err(UnsupportedKernel::HugetlbRelease { release })
            }
        }
        bytes => Err(UnsupportedKernel::HugetlbSize { bytes }),
    }
}

fn is_at_least(release: &str, wanted: (u32, u32)) -> bool {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|number| number.parse().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    version >= wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_as_numbers() {
        for (release, at_least) in [
            ("6.18.44-fc-v445\n", true),
            ("6.18", true),
            ("6.9.3", false),
            ("6.17.99-1-amd64", false),
            ("7.0-rc1", true),
            ("10.1", true),
            ("", false),
        ] {
            assert_eq!(is_at_least(release, (6, 18)), at_least, "{release}");
        }
    }

    #[test]
    fn support_by_page_size() {
        hugetlb_support(PAGE_BYTES).unwrap();
        let error = hugetlb_support(1 << 30).unwrap_err();
        assert!(error.to_string().contains("post-copy"), "{error}");
    }
}
