//! Whether tests under KVM can run here.

use crate::log;
use std::fs::OpenOptions;

/// Whether this host has KVM. Without it nothing is tested, which is logged, and a run of CI fails.
///
/// # Panics
/// In CI, without KVM.
pub fn kvm_present() -> bool {
    match OpenOptions::new().read(true).write(true).open("/dev/kvm") {
        Ok(_) => true,
        Err(error) => {
            let ci = std::env::var_os("CI").is_some_and(|ci| ci == "true");
            assert!(!ci, "no test under KVM can run: /dev/kvm: {error}");
            log(format!("NOT TESTED: under KVM: /dev/kvm: {error}"));
            false
        }
    }
}
