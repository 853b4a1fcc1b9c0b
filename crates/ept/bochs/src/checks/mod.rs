//! What is checked, one file each.

pub mod processor;
