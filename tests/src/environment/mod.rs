//! What a test has of this machine: its slot, addresses, huge pages, kernel features, scripts.

pub(crate) mod eventually;
pub(crate) mod executable;
pub(crate) mod free_huge_pages;
pub(crate) mod kernel_feature;
pub(crate) mod kvm;
pub(crate) mod log;
pub(crate) mod test_env;
pub(crate) mod unique_address;
