//! What is checked, one file each.

pub mod figures;
pub mod forms;
pub mod full;
pub mod paging;
pub mod processor;
pub mod ranges;
pub mod superpages;
pub mod vcpus;
pub mod views;
pub mod violations;
