//! Starts another process of this program.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// The program of this process (proc(5)). Not its path: after an upgrade another program, or none,
/// may be there.
const SELF: &str = "/proc/self/exe";

/// A command that runs this program.
pub(super) fn command() -> Command {
    let mut command = Command::new(SELF);
    command.arg0("hikkoshi");
    command
}
