//! What this kernel does, as a row of the table in docs/versions.md (`make test-kernels`).

use std::sync::Arc;

use hikkoshi_dirty::{DirtyLog, PagemapLog, hugetlb_support, support};

use crate::common::{HugePages, aloud};
use crate::process::Process;
use crate::{HUGE, SMALL};

/// Whether a scan for written pages reports memory that was never used, with 4 KiB pages.
fn reports_holes(process: &Process) -> &'static str {
    let taken = process.take_userfault();
    let userfault = Arc::clone(taken.userfault());
    let log = PagemapLog::start_with(userfault, &process.layout, &process.hosts(), true, |it| it)
        .unwrap();
    let pages = log.count(process.layout.all()).unwrap();
    log.stop().unwrap();
    taken.close_remote().unwrap();
    if pages == process.layout.pages() {
        "reported by the kernel"
    } else {
        "found by hikkoshi"
    }
}

#[test]
fn what_this_kernel_does() {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let release = release.trim();
    let row = match support() {
        Err(_) => "post-copy only | |".to_owned(),
        Ok(()) => {
            let blocks = [(4 * HUGE, SMALL)];
            let private = reports_holes(&Process::private(&blocks));
            let shared = reports_holes(&Process::new(&blocks));
            // The log's own test is with shared memory only.
            assert_eq!(private, shared, "private and shared memory");
            let huge = match hugetlb_support(HUGE) {
                Err(_) => "post-copy only",
                Ok(()) if HugePages::reserve(4).is_some() => "all; holes are found by hikkoshi",
                Ok(()) => "not tested",
            };
            format!("all | {private} | {huge}")
        }
    };
    aloud(&format!("ROW | {release} | {row} |"));
}
