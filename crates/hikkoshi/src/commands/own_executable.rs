//! Another process of this program.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// The program that runs here (proc(5)). Not by its path: the file may have been
/// replaced or removed since (an upgrade), and another program, or none, would be
/// started.
const SELF: &str = "/proc/self/exe";

/// A command that starts this program once more.
pub fn command() -> Command {
    let mut command = Command::new(SELF);
    command.arg0("hikkoshi");
    command
}
