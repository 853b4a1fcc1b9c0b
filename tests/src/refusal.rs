//! What `hikkoshi` refuses.

use crate::{Ended, Program, Scene, hikkoshi, tell};
use std::ffi::OsStr;
use std::process::Command;

/// Runs `hikkoshi` with these arguments; it must end with `code` and say each of `parts`.
///
/// # Panics
/// When not.
pub fn refused<A: AsRef<OsStr>>(arguments: &[A], code: i32, parts: &[&str]) -> Ended {
    let mut command = Command::new(hikkoshi());
    command.args(arguments);
    refused_command(command, code, parts)
}

/// Runs that command; it must end with `code` and say each of `parts`.
///
/// # Panics
/// When not.
pub fn refused_command(command: Command, code: i32, parts: &[&str]) -> Ended {
    let ended = Program::start("hikkoshi", command).wait();
    ended.assert(code, parts);
    assert!(ended.printed.is_empty(), "{ended:?}");
    let first = ended.said.lines().next().unwrap_or_default();
    tell(format!("{code}: {first}"));
    ended
}

impl Scene {
    /// A path for a socket that is not there.
    pub fn nowhere(&self) -> String {
        format!("unix:{}", self.folder().join("nowhere").display())
    }
}
