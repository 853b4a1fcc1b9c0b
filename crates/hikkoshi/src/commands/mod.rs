//! The commands.

pub mod demo;
pub mod give_up;
pub mod guard;
pub mod migrate;
mod own_executable;
pub mod receive;
pub mod resume;
mod signals;
mod wait_for_source;
