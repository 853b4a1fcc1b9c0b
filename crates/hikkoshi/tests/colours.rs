//! Failures are coloured where colours are wanted, and nowhere else.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use std::process::{Command, Stdio};

/// What `hikkoshi cancel` says of a migration that does not exist.
fn failure(environment: &[(&str, &str)]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_hikkoshi"))
        .args(["cancel", "nothing", "--journal"])
        .arg(folder.path())
        .env_remove("NO_COLOR")
        .env_remove("CLICOLOR_FORCE")
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn colours_are_used_where_they_are_wanted() {
    let plain = "hikkoshi: there is no migration of \"nothing\" on this host\n";
    for environment in [
        &[][..],
        &[("NO_COLOR", "1")],
        &[("NO_COLOR", "1"), ("CLICOLOR_FORCE", "1")],
    ] {
        let said = failure(environment);
        assert!(said.starts_with(plain), "{environment:?}: {said:?}");
        assert!(!said.contains('\u{1b}'), "{environment:?}: {said:?}");
    }
    let coloured = failure(&[("CLICOLOR_FORCE", "1")]);
    assert!(coloured.starts_with("\u{1b}["), "{coloured:?}");
    let line = plain.trim_end();
    assert!(
        coloured.contains(&format!("{line}\u{1b}[0m\n")),
        "{coloured:?}"
    );
}
