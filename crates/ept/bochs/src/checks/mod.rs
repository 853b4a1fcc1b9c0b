//! What is checked, one file each.

pub mod forms;
pub mod processor;
