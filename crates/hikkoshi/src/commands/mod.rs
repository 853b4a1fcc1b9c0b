//! The commands: a file or folder each, and what several of them need.

pub mod demo;
mod find_journal;
mod give_up;
pub mod guard;
mod kernel_support;
mod late_cancel;
pub mod migrate;
mod no_journal;
mod own_executable;
mod print_result;
pub mod receive;
mod resume_command;
mod signals;
mod unfinished;
mod wait_for_source;
