//! `hikkoshi --version` names the revision that the program was built from.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use std::path::Path;
use std::process::Command;

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_version_names_the_revision() {
    let said = output(Command::new(env!("CARGO_BIN_EXE_hikkoshi")).arg("--version"));
    let version = concat!("hikkoshi ", env!("CARGO_PKG_VERSION"));
    let top = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    if !Path::new(top).join(".git").exists() {
        assert_eq!(said, format!("{version}\n"), "a source archive has no git");
        return;
    }
    let commit = ["log", "-1", "--abbrev=10", "--format=%h %cs"];
    let commit = output(Command::new("git").args(["-C", top]).args(commit));
    let expected = format!("{version} ({}", commit.trim());
    let rest = said.strip_prefix(&expected);
    assert!(
        matches!(rest, Some(")\n" | ", modified)\n")),
        "'{said}' instead of '{expected})'"
    );
}
