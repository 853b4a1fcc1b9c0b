//! Starts another process of this program.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// The program of this process (proc(5)). Not its path: after an upgrade another program, or none,
/// may be there.
pub(super) const SELF: &str = "/proc/self/exe";

/// A command that runs this program.
pub(super) fn command() -> Command {
    command_of(Path::new(SELF))
}

/// A command that runs `program`, which is this one but in tests.
pub(super) fn command_of(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.arg0("hikkoshi");
    command
}
