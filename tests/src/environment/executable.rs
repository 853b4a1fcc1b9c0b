//! Files that a test makes and executes.
//!
//! They are written by another process: a child that another test starts at this moment would
//! inherit a descriptor that is open for writing, and until it executes its own program, the file
//! could not be executed (`ETXTBSY`, execve(2)).

use crate::programs::program::hikkoshi;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Copies the program under test.
///
/// # Panics
/// When that fails.
pub fn copy_hikkoshi(to: &Path) {
    let copied = Command::new("cp").arg(hikkoshi()).arg(to).status();
    assert!(copied.unwrap().success(), "copying to {}", to.display());
}

/// Writes a script that everyone may execute.
///
/// # Panics
/// When that fails.
pub fn write_script(to: &Path, text: &str) {
    let mut writer = Command::new("sh")
        .args(["-c", "cat > \"$1\" && chmod 755 \"$1\"", "sh"])
        .arg(to)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = writer.stdin.take().unwrap();
    input.write_all(text.as_bytes()).unwrap();
    drop(input);
    assert!(writer.wait().unwrap().success(), "{}", to.display());
}
