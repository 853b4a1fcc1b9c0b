//! Assertions that `hikkoshi` refuses something.

use crate::{Exit, Program, TestEnv, hikkoshi, log};
use std::ffi::OsStr;
use std::process::Command;

/// Runs `hikkoshi` with these arguments. It must exit with `code` and print each of `parts`.
///
/// # Panics
/// When it does not.
pub fn assert_refused<A: AsRef<OsStr>>(arguments: &[A], code: i32, parts: &[&str]) -> Exit {
    let mut command = Command::new(hikkoshi());
    command.args(arguments);
    assert_command_refused(command, code, parts)
}

/// Runs that command. It must exit with `code` and print each of `parts`.
///
/// # Panics
/// When it does not.
pub fn assert_command_refused(command: Command, code: i32, parts: &[&str]) -> Exit {
    let ended = Program::start("hikkoshi", command).wait();
    ended.assert(code, parts);
    assert!(ended.stdout.is_empty(), "{ended:?}");
    let first = ended.stderr.lines().next().unwrap_or_default();
    log(format!("{code}: {first}"));
    ended
}

impl TestEnv {
    /// An address of a socket that does not exist.
    pub fn unused_socket(&self) -> String {
        format!("unix:{}", self.folder().join("nowhere").display())
    }
}
