//! Sessions on the monitor of a domain of a real daemon.
//!
//! The daemon runs in namespaces of its own (`guest/lab/libvirt/host.sh`).
//! [`on_a_host_with_libvirt`] runs this program there again, for the other tests.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use hikkoshi_libvirt::{DEFAULT_URI, Domain, DomainError};
use hikkoshi_qemu::qmp::{Client, QmpEvent, Version};
use serde_json::json;

const PROJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const UUID: &str = "6695eb01-f6a4-8304-79aa-97f2502e193f";

#[test]
fn on_a_host_with_libvirt() {
    let project = Path::new(PROJECT).canonicalize().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut host = Command::new("unshare");
    host.args([
        "--mount",
        "--pid",
        "--net",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ])
    .arg(project.join("guest/lab/libvirt/host.sh"))
    .args([&project.join("build"), folder.path()])
    .arg(std::env::current_exe().unwrap())
    .args(["--ignored", "--test-threads=1", "--nocapture"]);
    let output = host.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("7 passed"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A domain without a disk. Destroyed on drop.
struct Guest;

impl Guest {
    fn start() -> Self {
        let xml = format!(
            "<domain type='qemu'><name>guest</name><uuid>{UUID}</uuid><memory unit='MiB'>64</memory>\
             <os><type arch='x86_64' machine='pc-q35-7.2'>hvm</type></os><features><acpi/></features>\
             <devices><memballoon model='none'/></devices></domain>"
        );
        let file = std::env::temp_dir().join("guest.xml");
        std::fs::write(&file, xml).unwrap();
        virsh(&["create", file.to_str().unwrap()]);
        Self
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = Command::new("virsh").args(["destroy", "guest"]).output();
    }
}

fn virsh(words: &[&str]) -> String {
    let output = Command::new("virsh")
        .arg("-q")
        .args(words)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "virsh {words:?}: {text}{errors}");
    text
}

fn event(client: &mut Client, name: &str) {
    let until = Instant::now() + Duration::from_secs(60);
    let found = client.wait_event(name, until, |event| (event.name == name).then_some(()));
    assert_eq!(found.unwrap(), Some(()), "no event {name}");
}

#[test]
#[ignore = "only on a host that another test makes"]
fn a_session_is_like_one_with_qemu() {
    let _guest = Guest::start();
    let domain = Domain::open(DEFAULT_URI, "guest").unwrap();
    let mut client = domain.monitor().unwrap();
    assert!(client.version() >= Version::new(10, 0, 0));
    assert_eq!(client.peer(), Some(domain.process().unwrap().pid()));
    client.execute("stop", json!({})).unwrap();
    event(&mut client, "STOP");
    assert_eq!(virsh(&["domstate", "guest"]), "paused");
    let state = client.execute("query-status", json!({})).unwrap();
    assert_eq!(state["status"], "paused");
    client.execute("cont", json!({})).unwrap();
    event(&mut client, "RESUME");
    assert_eq!(virsh(&["domstate", "guest"]), "running");
    let error = client.execute("no-such-command", json!({})).unwrap_err();
    assert!(error.to_string().contains("has not been found"), "{error}");
    // What libvirt does itself, and what it knows.
    client.execute("stop", json!({})).unwrap();
    assert!(domain.is_paused().unwrap());
    domain.resume().unwrap();
    event(&mut client, "RESUME");
    assert!(!domain.is_paused().unwrap());
    // Two at once, and their events.
    let mut other = Domain::open(DEFAULT_URI, UUID).unwrap().monitor().unwrap();
    other.execute("stop", json!({})).unwrap();
    event(&mut client, "STOP");
    event(&mut other, "STOP");
}

#[test]
#[ignore = "only on a host that another test makes"]
fn descriptors_reach_qemu() {
    let _guest = Guest::start();
    let domain = Domain::open(DEFAULT_URI, "guest").unwrap();
    let mut client = domain.monitor().unwrap();
    client.execute("stop", json!({})).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    // QEMU looks for a descriptor of the access mode that it opens files with.
    let to_write = File::options().write(true).open(file.path()).unwrap();
    let set = json!({ "fdset-id": 77 });
    client
        .execute_with_fd("add-fd", set, to_write.as_fd())
        .unwrap();
    let to = json!({ "filename": "/dev/fdset/77", "live": false });
    client.execute("xen-save-devices-state", to).unwrap();
    let saved = std::fs::read(file.path()).unwrap();
    assert_eq!(saved.get(..4), Some(&b"QEVM"[..]), "{} bytes", saved.len());
}

#[test]
#[ignore = "only on a host that another test makes"]
fn a_session_ends_with_the_domain() {
    let guest = Guest::start();
    let domain = Domain::open(DEFAULT_URI, "guest").unwrap();
    let mut client = domain.monitor().unwrap();
    drop(guest);
    let error = client.execute("query-status", json!({})).unwrap_err();
    assert!(error.to_string().contains("libvirt: "), "{error}");
    assert!(matches!(
        domain.process(),
        Err(DomainError::NoProcess { .. })
    ));
    let error = Domain::open(DEFAULT_URI, "guest").unwrap_err();
    assert!(matches!(error, DomainError::Lookup { .. }), "{error}");
}

#[test]
#[ignore = "only on a host that another test makes"]
fn a_domain_is_described_to_another_host() {
    let _guest = Guest::start();
    let domain = Domain::open(DEFAULT_URI, "guest").unwrap();
    let xml = domain.migratable_xml().unwrap();
    assert!(xml.contains(UUID), "{xml}");
    assert!(!xml.contains("<alias"), "{xml}");
    assert_eq!(domain.inactive_xml().unwrap(), None, "it is transient");
    assert_eq!((domain.name(), domain.uuid()), ("guest", UUID));
}

/// The domain runs on, and what was opened before can still be used.
#[test]
#[ignore = "only on a host that another test makes"]
fn the_daemon_is_restarted() {
    let _guest = Guest::start();
    let domain = Domain::open(DEFAULT_URI, "guest").unwrap();
    let mut client = domain.monitor().unwrap();
    let daemon = std::fs::read_to_string("/run/libvirtd.pid").unwrap();
    let killed = Command::new("kill").args(["-KILL", daemon.trim()]).status();
    assert!(killed.unwrap().success());
    let starting = std::thread::spawn(|| {
        std::thread::sleep(Duration::from_millis(500));
        let started = Command::new("libvirtd").arg("--daemon").status();
        assert!(started.unwrap().success());
    });
    // The session does not wait for the daemon, nor does the guest.
    client.execute("stop", json!({})).unwrap();
    event(&mut client, "STOP");
    domain.resume().unwrap();
    let state = client.execute("query-status", json!({})).unwrap();
    assert_eq!(state["status"], "running");
    starting.join().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    // The daemon notices it when it has reached QEMU.
    while domain.is_paused().unwrap() {
        assert!(
            Instant::now() < until,
            "libvirt does not notice that the guest runs"
        );
    }
    // As soon as the session uses the daemon again, its events come, too.
    loop {
        client.execute("query-status", json!({})).unwrap();
        virsh(&["suspend", "guest"]);
        virsh(&["resume", "guest"]);
        let soon = Instant::now() + Duration::from_secs(1);
        let is_resume = |event: &QmpEvent| (event.name == "RESUME").then_some(());
        if client
            .wait_event("RESUME", soon, is_resume)
            .unwrap()
            .is_some()
        {
            break;
        }
        assert!(Instant::now() < until, "no events");
    }
    let known = Domain::known(DEFAULT_URI, UUID, "guest");
    for domain in [domain, known] {
        let mut client = domain.monitor().unwrap();
        client.execute("query-status", json!({})).unwrap();
    }
}

/// The daemon, stopped: it neither answers nor ends. Continued on drop.
struct StoppedDaemon(String);

impl StoppedDaemon {
    fn stop() -> Self {
        let pid = std::fs::read_to_string("/run/libvirtd.pid").unwrap();
        let daemon = Self(pid.trim().to_owned());
        daemon.signal("-STOP");
        daemon
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill").args([name, &self.0]).status();
        assert!(status.unwrap().success());
    }
}

impl Drop for StoppedDaemon {
    fn drop(&mut self) {
        self.signal("-CONT");
    }
}

/// It is not waited for without a limit, whatever it is asked.
#[test]
#[ignore = "only on a host that another test makes"]
fn a_daemon_that_hangs_is_named() {
    let _guest = Guest::start();
    let domain = Domain::open(DEFAULT_URI, "guest").unwrap();
    let mut client = domain.monitor().unwrap();
    let daemon = StoppedDaemon::stop();
    let mut errors = vec![
        client
            .execute("query-status", json!({}))
            .unwrap_err()
            .to_string(),
    ];
    errors.extend(
        [
            domain.is_paused().unwrap_err(),
            domain.monitor().unwrap_err(),
            Domain::open(DEFAULT_URI, "guest").unwrap_err(),
        ]
        .map(|error| error.to_string()),
    );
    for error in errors {
        let hangs = "libvirt's daemon at qemu:///system has not answered for ";
        assert!(error.contains(hangs), "{error}");
    }
    drop(daemon);
    // What was opened before can still be used.
    let state = client.execute("query-status", json!({})).unwrap();
    assert_eq!(state["status"], "running");
    assert!(!domain.is_paused().unwrap());
    domain.monitor().unwrap();
}

#[test]
#[ignore = "only on a host that another test makes"]
fn errors_say_what_is_wrong() {
    let error = Domain::open(DEFAULT_URI, "nobody").unwrap_err().to_string();
    assert!(
        error.starts_with("looking for the domain nobody at qemu:///system:"),
        "{error}"
    );
    let uri = "qemu:///system?socket=/nothing";
    let error = Domain::open(uri, "guest").unwrap_err().to_string();
    assert!(
        error.starts_with("connecting to libvirt at qemu:///system?socket=/nothing:"),
        "{error}"
    );
    let xml = "<domain type='qemu'><name>off</name><memory unit='MiB'>64</memory>\
               <os><type>hvm</type></os></domain>";
    let file = std::env::temp_dir().join("off.xml");
    std::fs::write(&file, xml).unwrap();
    virsh(&["define", file.to_str().unwrap()]);
    let error = Domain::open(DEFAULT_URI, "off").unwrap_err();
    assert!(matches!(error, DomainError::NotRunning { .. }), "{error}");
    virsh(&["undefine", "off"]);
}
