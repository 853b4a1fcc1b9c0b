//! The program under test, and files that a test makes and executes.
//!
//! Those are written by another process: a child that another test starts at this moment would
//! inherit a descriptor that is open for writing, and until it executes its own program, the file
//! could not be executed (`ETXTBSY`, execve(2)).

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The release build of `hikkoshi`: `$HIKKOSHI_BIN`, or the one in this build's target folder.
///
/// # Panics
/// When there is none.
pub fn hikkoshi() -> PathBuf {
    if let Some(path) = std::env::var_os("HIKKOSHI_BIN") {
        return path.into();
    }
    // …/target/debug/deps/test → …/target/release/hikkoshi
    let test = std::env::current_exe().unwrap();
    let target = test.ancestors().nth(3).unwrap();
    let path = target.join("release/hikkoshi");
    assert!(
        path.exists(),
        "{} is not there; run `cargo build --release --package hikkoshi` first, or set HIKKOSHI_BIN",
        path.display()
    );
    path
}

/// The program of the release before the one under test: `$HIKKOSHI_RELEASE_BEFORE`.
///
/// # Panics
/// When it is not set.
pub fn release_before() -> PathBuf {
    let path = std::env::var_os("HIKKOSHI_RELEASE_BEFORE");
    path.expect("HIKKOSHI_RELEASE_BEFORE is not set: run `make test-release-before`")
        .into()
}

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
