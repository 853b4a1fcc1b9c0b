//! What QEMU refuses while a guest is moved, whichever program asks, with real QEMUs.

use std::io::{self, BufRead, BufReader, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime};

use error_reporter::Report;
use hikkoshi_engine::{Mode, SourceGuest, SourceProcess};
use hikkoshi_linux::Process;
use hikkoshi_qemu::qmp::{Client, ConnectError, Monitor, MonitorAddress, MonitorSocket};
use hikkoshi_qemu::{Allowed, QemuSource, QmpListener, Settings, UndoOutcome, UndoRecord, undo};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Program, Qemu, RamPath, device_state, eventually, says, with_each};

/// The block node by which QEMU refuses.
const NODE: &str = "moved-by-hikkoshi";

/// QEMU's reason to refuse `cont`.
const LOCKED: &str = r#"Failed to get shared "write" lock"#;

/// A monitor that other programs use as well, as libvirt's is. Records what it is told.
#[derive(Debug)]
struct SharedMonitor {
    socket: MonitorSocket,
    told: Mutex<Vec<&'static str>>,
    paused: Mutex<Option<SystemTime>>,
}

impl SharedMonitor {
    fn of(qemu: &Qemu) -> Arc<Self> {
        Arc::new(Self {
            socket: MonitorSocket::new(qemu.qmp()),
            told: Mutex::default(),
            paused: Mutex::default(),
        })
    }

    fn told(&self) -> Vec<&'static str> {
        self.told.lock().unwrap().clone()
    }
}

impl Monitor for SharedMonitor {
    fn address(&self) -> &MonitorAddress {
        self.socket.address()
    }

    fn open(&self, timeout: Duration) -> Result<Client, ConnectError> {
        self.socket.open(timeout)
    }

    fn listener(&self) -> io::Result<QmpListener> {
        self.socket.listener()
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn handing_over(&self, paused: Option<SystemTime>) {
        self.told.lock().unwrap().push("handing over");
        *self.paused.lock().unwrap() = paused;
    }

    fn taken_back(&self) {
        self.told.lock().unwrap().push("taken back");
    }
}

/// Sessions of a [`SharedMonitor`] in which the answers to some commands are lost, as if libvirt's
/// daemon was away for too long: QEMU has executed them.
#[derive(Debug)]
struct Forgetful(Arc<SharedMonitor>);

impl Monitor for Forgetful {
    fn address(&self) -> &MonitorAddress {
        self.0.address()
    }

    fn open(&self, timeout: Duration) -> Result<Client, ConnectError> {
        let MonitorAddress::Socket(path) = self.address() else {
            panic!("{self:?}");
        };
        // QEMU serves one client at a time.
        let pid = self.0.open(timeout)?.peer().unwrap();
        let qemu = UnixStream::connect(path).unwrap();
        let (client, relay) = UnixStream::pair().unwrap();
        let lost = Arc::new(Mutex::new(Vec::new()));
        let (commands, answers) = (relay.try_clone().unwrap(), qemu.try_clone().unwrap());
        let lost_answers = Arc::clone(&lost);
        thread::spawn(move || relay_commands(&commands, &qemu, &lost));
        thread::spawn(move || relay_answers(answers, relay, &lost_answers));
        let process = Arc::new(Process::open(pid).unwrap());
        Client::over(client, self.address(), process, timeout)
    }

    fn listener(&self) -> io::Result<QmpListener> {
        self.0.listener()
    }

    fn is_shared(&self) -> bool {
        true
    }
}

/// Passes commands on, with their descriptors. `lost` gets the identifiers of those whose answers
/// are lost: `blockdev-add`, and the query after it.
fn relay_commands(from: &UnixStream, to: &UnixStream, lost: &Mutex<Vec<Value>>) {
    let mut added = false;
    loop {
        let mut buffer = [0; 1 << 16];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let slices = &mut [IoSliceMut::new(&mut buffer)];
        let read = recvmsg(from, slices, &mut control, RecvFlags::CMSG_CLOEXEC);
        let Ok(length @ 1..) = read.map(|read| read.bytes) else {
            let _ = to.shutdown(std::net::Shutdown::Both);
            return;
        };
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                descriptors.extend(received);
            }
        }
        for line in buffer[..length].split(|byte| *byte == b'\n') {
            let command: Value = serde_json::from_slice(line).unwrap_or_default();
            let is_lost = match command["execute"].as_str() {
                Some("blockdev-add") => {
                    added = true;
                    true
                }
                Some("query-named-block-nodes") => std::mem::take(&mut added),
                _ => false,
            };
            if is_lost {
                lost.lock().unwrap().push(command["id"].clone());
            }
        }
        let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !borrowed.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(&borrowed)));
        }
        let slices = [IoSlice::new(&buffer[..length])];
        let _ = sendmsg(to, &slices, &mut control, SendFlags::NOSIGNAL);
    }
}

/// Passes answers on, but errors instead of those that are `lost`.
fn relay_answers(from: UnixStream, mut to: UnixStream, lost: &Mutex<Vec<Value>>) {
    for line in BufReader::new(from).lines().map_while(Result::ok) {
        let answer: Value = serde_json::from_str(&line).unwrap_or_default();
        let is_lost = !answer["id"].is_null() && lost.lock().unwrap().contains(&answer["id"]);
        let line = match is_lost {
            true => json!({ "id": answer["id"],
                "error": { "class": "GenericError", "desc": "libvirt: no answer" } })
            .to_string(),
            false => line,
        };
        if writeln!(to, "{line}").is_err() {
            return;
        }
    }
}

/// A QEMU whose guest has a disk, and what moves it.
fn attach(program: &Program) -> (Qemu, RamPath, Arc<SharedMonitor>, QemuSource) {
    let image = RamPath::image();
    let drive = format!(
        "-blockdev raw,node-name=disk,file.driver=file,file.filename={} \
         -device virtio-blk-pci,drive=disk",
        image.as_str()
    );
    let qemu = Qemu::usual(program, &drive);
    let monitor = SharedMonitor::of(&qemu);
    let source = attach_by(&monitor);
    (qemu, image, monitor, source)
}

fn attach_by(monitor: &Arc<SharedMonitor>) -> QemuSource {
    let monitor = Arc::<SharedMonitor>::clone(monitor);
    QemuSource::attach_for(monitor, &Allowed::default(), Mode::Hybrid).unwrap()
}

/// Pauses the guest and saves its device state.
fn save(source: &mut QemuSource) {
    source.pause().unwrap();
    device_state(source);
}

/// QEMU's reason to refuse this command of another program.
fn refusal(qemu: &Qemu, command: &str) -> String {
    let arguments = match command {
        "migrate" => json!({ "uri": "exec:cat >/dev/null" }),
        _ => json!({}),
    };
    let refused = qemu.client().execute(command, arguments);
    refused.unwrap_err().to_string()
}

fn has_node(qemu: &Qemu) -> bool {
    let nodes = qemu.execute("query-named-block-nodes", json!({ "flat": true }));
    let mut nodes = nodes.as_array().unwrap().iter();
    nodes.any(|node| node["node-name"] == NODE)
}

/// Lets another program reset the paused guest.
fn reset(qemu: &Qemu) {
    qemu.execute("system_reset", json!({}));
    eventually("the reset", || qemu.state() == "prelaunch");
}

/// This QEMU without the image format vdi, in a folder.
fn without_vdi(program: &Program) -> (TempDir, Program) {
    let folder = tempfile::tempdir().unwrap();
    let root = program.run.parent().unwrap().join("root");
    let name = "usr/bin/qemu-system-x86_64";
    let mut binary = std::fs::read(root.join(name)).unwrap();
    let at = binary.windows(5).position(|bytes| bytes == b"\0vdi\0");
    binary[at.unwrap() + 3] = b'x';
    let binary_path = folder.path().join("qemu");
    executable(&binary_path, &binary);
    let script = std::fs::read_to_string(&program.run).unwrap();
    let script = script
        .replace(
            r#"$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)/root"#,
            root.to_str().unwrap(),
        )
        .replace(&format!("$root/{name}"), binary_path.to_str().unwrap());
    let run = folder.path().join("run");
    executable(&run, script.as_bytes());
    let label = program.label.clone();
    (folder, Program { label, run })
}

/// Another process writes the file: one that this process has open for writing, and for a moment a
/// child of another thread, cannot be executed.
fn executable(path: &Path, content: &[u8]) {
    let draft = path.with_extension("draft");
    std::fs::write(&draft, content).unwrap();
    let mut install = Command::new("install");
    let status = install
        .args(["-m", "755"])
        .args([draft.as_path(), path])
        .status();
    assert!(status.unwrap().success(), "{install:?}");
}

#[test]
fn other_programs_neither_migrate_nor_resume_the_guest() {
    with_each(|program| {
        let (qemu, _image, monitor, mut source) = attach(program);
        source.start_dirty_log().unwrap();
        assert!(refusal(&qemu, "migrate").contains(NODE));
        let before = SystemTime::now();
        save(&mut source);
        // Before the state is sent, the destination is ready, and *commit* is recorded.
        assert!(refusal(&qemu, "cont").contains(LOCKED));
        source.check_device_state().unwrap();
        assert!(refusal(&qemu, "migrate").contains(NODE));
        source.handing_over();
        let paused = monitor.paused.lock().unwrap().unwrap();
        assert!(before <= paused && paused <= SystemTime::now());
        assert!(refusal(&qemu, "cont").contains(LOCKED));
        // The destination declines.
        source.resume().unwrap();
        assert_eq!(monitor.told(), ["handing over", "taken back"]);
        assert_eq!(qemu.state(), "running");
        assert!(!has_node(&qemu));
    });
}

/// QEMU has the node, and hikkoshi does not know.
#[test]
fn a_node_whose_addition_was_not_answered_is_removed() {
    with_each(|program| {
        let (qemu, _image, monitor, source) = attach(program);
        drop(source);
        let forgetful = Arc::new(Forgetful(monitor));
        let allowed = Allowed::default();
        let mut source = QemuSource::attach_for(forgetful, &allowed, Mode::Hybrid).unwrap();
        source.start_dirty_log().unwrap();
        assert!(has_node(&qemu));
        source.release().unwrap();
        assert!(!has_node(&qemu));
    });
}

/// It refuses to run the guest all the same.
#[test]
fn a_qemu_without_vdi_does_not_resume_the_guest() {
    with_each(|program| {
        let (_folder, program) = without_vdi(program);
        let (qemu, _image, _monitor, mut source) = attach(&program);
        save(&mut source);
        source.check_device_state().unwrap();
        assert!(refusal(&qemu, "cont").contains(LOCKED));
        source.resume().unwrap();
        assert_eq!(qemu.state(), "running");
        assert!(!has_node(&qemu));
        // That it cannot refuse.
        drop(source);
        let mut source = attach_by(&SharedMonitor::of(&qemu));
        source.start_dirty_log().unwrap();
        assert!(has_node(&qemu));
        qemu.execute("migrate", json!({ "uri": "exec:cat >/dev/null" }));
        eventually("the migration of another program", || {
            qemu.state() == "postmigrate"
        });
    });
}

#[test]
fn a_guest_that_others_resume_or_reset_before_the_handover_stays() {
    with_each(|program| {
        for is_reset in [false, true] {
            let (qemu, _image, monitor, mut source) = attach(program);
            match is_reset {
                true => {
                    save(&mut source);
                    reset(&qemu);
                }
                // Once the guest is saved, QEMU refuses.
                false => {
                    source.pause().unwrap();
                    qemu.execute("cont", json!({}));
                    device_state(&mut source);
                    assert_eq!(qemu.state(), "running");
                }
            }
            let error = Report::new(source.check_device_state().unwrap_err()).to_string();
            let expected = "another program has resumed or reset the guest";
            assert!(error.contains(expected), "{error}");
            source.resume().unwrap();
            // Also if it did not have to be resumed.
            assert_eq!(monitor.told(), ["taken back"]);
            assert_eq!(qemu.state(), "running");
            assert!(!has_node(&qemu));
        }
    });
}

/// Its owner may resume it then.
#[test]
fn a_guest_that_its_owner_had_paused_is_taken_back() {
    with_each(|program| {
        let (qemu, _image, monitor, mut source) = attach(program);
        qemu.execute("stop", json!({}));
        save(&mut source);
        source.check_device_state().unwrap();
        source.handing_over();
        source.resume().unwrap();
        assert_eq!(monitor.told(), ["handing over", "taken back"]);
        assert_eq!(qemu.state(), "paused");
        qemu.execute("cont", json!({}));
        assert_eq!(qemu.state(), "running");
    });
}

/// A killed engine had written what it was about to do, and had not done it yet.
#[test]
fn the_node_of_an_engine_that_was_killed_before_the_pause_is_removed() {
    with_each(|program| {
        let (qemu, _image, monitor, mut source) = attach(program);
        drop(source.start_dirty_log().unwrap());
        let identity = source.reattach_info().identity;
        source.leave();
        drop(source);
        assert!(has_node(&qemu) && !qemu.is_marked());
        let record = UndoRecord {
            copies: 0,
            settings: Settings::default(),
            stopped: Some(true),
        };
        let state = UndoOutcome::Restored {
            state: "running".to_owned(),
        };
        assert_eq!(undo(&identity, &record, &*monitor).unwrap(), state);
        assert!(!has_node(&qemu));
    });
}

/// By a socket that no other program owns. After a refused `cont` QEMU has the images again, and
/// would write to them when it ends.
#[test]
fn a_qemu_that_was_asked_to_run_a_moved_guest_is_killed() {
    with_each(|program| {
        for was_asked in [false, true] {
            let (mut qemu, _image, _monitor, source) = attach(program);
            drop(source);
            let mut source = qemu.source();
            save(&mut source);
            source.check_device_state().unwrap();
            source.handing_over();
            if was_asked {
                assert!(refusal(&qemu, "cont").contains(LOCKED));
            }
            source.release().unwrap();
            source.quit().unwrap();
            let ended = match was_asked {
                false => (Some(0), None),
                true => (None, Some(rustix::process::Signal::KILL.as_raw())),
            };
            assert_eq!(qemu.wait(), ended);
        }
    });
}

/// While no engine runs.
#[test]
fn a_reset_of_a_handed_over_guest_is_reported_once() {
    with_each(|program| {
        let (qemu, _image, monitor, mut source) = attach(program);
        save(&mut source);
        source.check_device_state().unwrap();
        let reattach_info = source.reattach_info();
        source.leave();
        drop(source);
        let check = || {
            let monitor = Arc::<SharedMonitor>::clone(&monitor);
            let source = QemuSource::reattach(&reattach_info, monitor).unwrap();
            let mut source = source.unwrap();
            let checked = source.check_paused();
            source.leave();
            checked
        };
        check().unwrap();
        reset(&qemu);
        says(&check().unwrap_err(), &["was reset at the source"]);
        check().unwrap();
        assert!(refusal(&qemu, "cont").contains(LOCKED));
    });
}
