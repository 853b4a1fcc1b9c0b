//! A host with a libvirt daemon of its own.

use std::path::Path;
use std::process::Command;

use hikkoshi_lab::libvirt::LibvirtVersion;

use crate::Exit;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../guest/lab/libvirt/host.sh");
const BUILD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../build");

/// Runs a shell script on a host with libvirt, in namespaces of its own
/// (`guest/lab/libvirt/host.sh`).
/// `folder` is visible there, for files.
///
/// # Panics
/// When it cannot be started.
pub fn on_libvirt_host(folder: &Path, script: &str) -> Exit {
    let build = Path::new(BUILD).canonicalize().unwrap();
    let [version, _] = LibvirtVersion::usual().unwrap();
    let output = Command::new("unshare")
        .args([
            "--mount",
            "--pid",
            "--net",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ])
        .env("HOST_LIBVIRT", version.number())
        .arg(SCRIPT)
        .args([&build, folder])
        .args(["bash", "-euo", "pipefail", "-c", script])
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    Exit {
        code: output.status.code(),
        stdout: text(&output.stdout),
        stderr: text(&output.stderr),
    }
}
