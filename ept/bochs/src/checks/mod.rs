//! The checks, one file for each subject.

pub mod log_methods;
pub mod measurements;
pub mod paging;
pub mod pml_full;
pub mod processor;
pub mod superpages;
pub mod throughput;
pub mod tracked_ranges;
pub mod vcpus;
pub mod views;
pub mod violations;
