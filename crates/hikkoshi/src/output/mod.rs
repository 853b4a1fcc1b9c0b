//! What the program writes, and how it ends.

pub mod error_chain;
pub mod exit;
pub mod log;
pub mod progress;
pub mod reason;
pub mod report;
pub mod streams;
