//! The program works if standard error and standard output are closed.

use std::process::{Command, Stdio};

#[test]
fn closed_output_causes_no_panic() {
    for progress in ["auto", "json"] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_hikkoshi"))
            .args([
                "receive",
                "--listen",
                "127.0.0.1:0",
                "--qmp",
                "/nowhere/qmp",
            ])
            .args(["--progress", progress])
            .env("HIKKOSHI_LOG", "trace")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // The reading ends are gone before it can have said anything of use.
        drop(child.stderr.take());
        drop(child.stdout.take());
        let status = child.wait().unwrap();
        assert_eq!(status.code(), Some(1), "{progress}: {status}");
    }
}
