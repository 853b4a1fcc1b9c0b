//! The commands: a file or folder each, and what several of them need.

pub(crate) mod check;
pub(crate) mod complete_domain;
pub(crate) mod dashboard;
pub(crate) mod demo;
pub(crate) mod dirty_rate;
pub(crate) mod estimate;
mod find_journal;
pub(crate) mod generate;
mod give_up;
pub(crate) mod guard;
mod kernel_support;
mod late_cancel;
pub(crate) mod migrate;
pub(crate) mod monitor;
mod no_journal;
mod own_executable;
mod print_result;
mod reattach_destination;
pub(crate) mod receive;
pub(crate) mod report;
mod resume_command;
mod signals;
mod unfinished_migration;
mod wait_for_source;
