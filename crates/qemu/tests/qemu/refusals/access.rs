//! A monitor or a process that this program cannot use.

use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use error_reporter::Report;
use hikkoshi_qemu::qmp::Client;
use hikkoshi_qemu::{Allowed, QemuSource};

use super::refused;
use crate::support::{Qemu, RamPath, says, usual, with_each};

#[test]
fn a_qmp_socket_with_another_client() {
    with_each(|program| {
        let qemu = Qemu::usual(program, "-S");
        let held = Client::connect(&qemu.qmp(), Duration::from_secs(20)).unwrap();
        let error = QemuSource::attach(&qemu.qmp()).unwrap_err();
        says(&error, &["another program"]);
        drop(held);
        qemu.source();
    });
}

#[test]
fn the_human_monitor() {
    with_each(|program| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hmp");
        let line = format!("-monitor unix:{},server=on,wait=off", path.display());
        let _qemu = Qemu::usual(program, &line);
        let error = QemuSource::attach(&path).unwrap_err();
        says(&error, &["human monitor"]);
    });
}

#[test]
fn a_proxy_between_us_and_qemu() {
    with_each(|program| {
        let qemu = Qemu::usual(program, "");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("proxy");
        let listener = UnixListener::bind(&path).unwrap();
        let behind = UnixStream::connect(qemu.qmp()).unwrap();
        std::thread::spawn(move || {
            let (front, _) = listener.accept().unwrap();
            let (mut from, mut to) = (front.try_clone().unwrap(), behind.try_clone().unwrap());
            std::thread::spawn(move || io::copy(&mut from, &mut to));
            let (mut from, mut to) = (behind, front);
            io::copy(&mut from, &mut to)
        });
        let error = QemuSource::attach(&path).unwrap_err();
        let text = Report::new(&error).to_string();
        let ours = format!("not mapped by process {}", std::process::id());
        assert!(text.contains(&ours), "{text}");
        assert!(
            text.contains("a -qmp socket that it opens itself"),
            "{text}"
        );
    });
}

/// Set for the copy of this program that runs without privileges.
const SOCKET: &str = "HIKKOSHI_TEST_SOCKET";

#[test]
fn without_privileges() {
    if let Some(path) = std::env::var_os(SOCKET) {
        let error = QemuSource::attach(Path::new(&path)).unwrap_err();
        println!("REFUSED {error}");
        return;
    }
    with_each(|program| {
        let qemu = Qemu::usual(program, "");
        let before = qemu.traces();
        for path in [qemu.qmp().parent().unwrap(), &qemu.qmp()] {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
            std::fs::set_permissions(path, mode).unwrap();
        }
        // A copy in a folder that all users can access.
        let folder = tempfile::tempdir().unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path(), mode).unwrap();
        let copy = folder.path().join("program");
        std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
        let output = Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(&copy)
            .args([
                "--exact",
                "refusals::access::without_privileges",
                "--nocapture",
            ])
            .env(SOCKET, qemu.qmp())
            .current_dir("/")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            text.contains("REFUSED") && text.contains("CAP_SYS_PTRACE"),
            "{text}"
        );
        assert_eq!(qemu.traces(), before);
    });
}

/// The guest of a manager is refused, and can be allowed.
#[test]
fn the_guest_of_a_manager() {
    with_each(|program| {
        let ram = RamPath::new();
        let mut words = usual(32, &ram);
        // The product has a space.
        words.extend(
            [
                "-S",
                "-smbios",
                "type=1,manufacturer=RDO,product=OpenStack Compute",
            ]
            .map(str::to_owned),
        );
        let qemu = Qemu::start(program, ram, &words);
        refused(
            &qemu,
            &[
                "managed by OpenStack",
                "product=OpenStack Compute",
                "--allow-managed",
            ],
        );
        let allowed = Allowed::default().managed(true);
        QemuSource::attach_allowing(&qemu.qmp(), &allowed).unwrap();
    });
}
