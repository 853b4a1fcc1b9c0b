//! The `ip` command.

use crate::{LabError, spawn};
use std::process::Command;

/// Runs `ip` with these arguments.
pub(crate) fn ip(arguments: &[&str]) -> Result<String, LabError> {
    spawn::run(Command::new("ip").args(arguments))
}
