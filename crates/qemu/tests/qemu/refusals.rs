//! Tests that guests which cannot be moved are refused with the reason and stay
//! unchanged, with real QEMUs.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use error_reporter::Report;
use hikkoshi_engine::{DestinationGuest, Mode, SourceGuest};
use hikkoshi_qemu::qmp::{Client, MonitorSocket};
use hikkoshi_qemu::{
    AllowedTypes, AttachError, Overcommit, QemuDestination, QemuSource, Refusal, check,
};
use serde_json::json;

use crate::support::{
    Mounted, Program, Qemu, RamPath, eventually, options, print_always, usual, with_each,
};

/// Checks that the source is refused with a message that contains all of `parts`, and
/// that QEMU is unchanged.
fn refused(qemu: &Qemu, parts: &[&str]) -> AttachError {
    let before = (qemu.traces(), qemu.state());
    let error = QemuSource::attach(&qemu.qmp()).unwrap_err();
    let text = Report::new(&error).to_string();
    eprintln!("   {text}");
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
    eventually("QEMU is unchanged", || {
        (qemu.traces(), qemu.state()) == before
    });
    error
}

fn start(program: &Program, line: &str) -> Qemu {
    Qemu::start(program, RamPath::new(), &options(line))
}

/// The options of a guest whose memory is a file in `folder`.
fn memory_in(folder: &Path, share: &str) -> String {
    format!(
        "-m 32 -machine q35,memory-backend=ram \
         -object memory-backend-file,id=ram,size=32M,mem-path={}/ram,share={share}",
        folder.display()
    )
}

#[test]
fn memory_on_an_unknown_file_system() {
    let mount = Mounted::new("ramfs", "mode=700");
    with_each(|program| {
        let qemu = start(program, &memory_in(mount.path(), "on"));
        refused(&qemu, &["not on tmpfs, hugetlbfs, ext4", "share=off"]);
    });
}

/// Elsewhere such a guest can be moved in pre-copy.
#[test]
fn a_guest_that_returns_memory_to_a_disk() {
    with_each(|program| {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let magic: i64 = rustix::fs::statfs(folder.path()).unwrap().f_type;
        if ![0xef53, 0x5846_5342].contains(&magic) {
            return print_always("NOT TESTED: the build folder is not on ext4 or XFS");
        }
        let balloon = "-device virtio-balloon-pci,id=b,free-page-reporting=on";
        let line = format!("{} {balloon}", memory_in(folder.path(), "on"));
        let qemu = start(program, &line);
        let checked = check(&qemu.qmp(), &AllowedTypes::default()).unwrap();
        let noted = |note: &String| note.contains("ram is a shared file on a disk");
        assert!(checked.notes.iter().any(noted), "{:?}", checked.notes);
        let mut source = QemuSource::attach(&qemu.qmp()).unwrap();
        for mode in [Mode::Precopy, Mode::Postcopy, Mode::Hybrid] {
            let error = source.check_mode(mode).unwrap_err();
            let text = Report::new(&error).to_string();
            for part in ["/machine/peripheral/b", "free-page-reporting"] {
                assert!(text.contains(part), "{part:?} is not in: {text}");
            }
            let of_disk = text.contains("in a shared file on a disk");
            assert_eq!(of_disk, mode != Mode::Postcopy, "{mode:?}: {text}");
        }
    });
}

/// A page that is dropped there becomes the file's page, without a fault that could be handled.
#[test]
fn post_copy_into_a_file_on_a_disk() {
    for share in ["on", "off"] {
        post_copy_into_a_disk_file(share);
    }
}

fn post_copy_into_a_disk_file(share: &str) {
    with_each(|program| {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let line = format!("{} -incoming defer", memory_in(folder.path(), share));
        let qemu = start(program, &line);
        let before = qemu.traces();
        let mut destination = QemuDestination::attach(&qemu.qmp()).unwrap();
        let error = destination.take_userfault().unwrap_err();
        let text = Report::new(&error).to_string();
        for part in [
            "\"ram\"",
            "neither on tmpfs nor on hugetlbfs",
            "--mode precopy",
        ] {
            assert!(text.contains(part), "{part:?} is not in: {text}");
        }
        drop(destination);
        assert_eq!(qemu.traces(), before);
    });
}

#[test]
fn too_little_memory_at_the_destination() {
    with_each(|program| {
        // More than this host has. QEMU does not reserve it.
        let line = "-m 262144 -machine q35,memory-backend=ram -incoming defer \
             -object memory-backend-ram,id=ram,size=256G,reserve=off";
        let qemu = start(program, line);
        let error = QemuDestination::attach(&qemu.qmp()).unwrap_err();
        let text = Report::new(&error).to_string();
        for part in [
            "\"ram\" needs 262",
            "MiB are available on this host",
            "add swap",
            "--allow-overcommit",
        ] {
            assert!(text.contains(part), "{part:?} is not in: {text}");
        }
        let none = AllowedTypes::default();
        QemuDestination::attach_allowing(
            Arc::new(MonitorSocket::new(qemu.qmp())),
            &none,
            Overcommit::Allow,
        )
        .unwrap();
    });
}

/// The destination has no place for it, and the source would lose it.
#[test]
fn memory_that_is_plugged_during_the_move() {
    with_each(|program| {
        let plug = |qemu: &Qemu, id: &str| {
            let backend = json!({ "qom-type": "memory-backend-ram", "id": id, "size": 128 << 20 });
            qemu.execute("object-add", backend);
            let dimm = json!({ "driver": "pc-dimm", "id": format!("d{id}"), "memdev": id });
            qemu.execute("device_add", dimm);
        };
        let line = "-m 64M,slots=2,maxmem=1G -machine q35";
        let qemu = start(program, line);
        let mut source = QemuSource::attach(&qemu.qmp()).unwrap();
        plug(&qemu, "plugged");
        let error = source.pause().unwrap_err();
        let text = Report::new(&error).to_string();
        assert!(
            text.contains("there were 0 of the type pc-dimm, and are 1"),
            "{text}"
        );
        drop(source);
        assert_eq!(qemu.state(), "running");

        let qemu = start(program, &format!("{line} -incoming defer"));
        let mut destination = QemuDestination::attach(&qemu.qmp()).unwrap();
        plug(&qemu, "plugged");
        let error = destination.prepare().unwrap_err();
        let text = Report::new(&error).to_string();
        assert!(text.contains("\"plugged\" has been added"), "{text}");
    });
}

#[test]
fn memory_outside_the_guest_or_mapped_twice() {
    with_each(|program| {
        let (spare, ram) = (RamPath::new(), RamPath::new());
        let mut all = usual(32, &ram);
        all.extend(options(&format!(
            "-object memory-backend-file,id=spare,size=32M,mem-path={},share=on",
            spare.as_str()
        )));
        let mut qemu = Qemu::start(program, ram, &all);
        qemu.keep(spare);
        let source = QemuSource::attach(&qemu.qmp()).unwrap();
        let ram = source.ram();
        let all = ram.layout().blocks();
        let main: Vec<_> = all.filter(|(block, _)| !block.guest.is_empty()).collect();
        assert_eq!(main.len(), 1, "what is not plugged in is not the guest's");
        assert_eq!(main[0].0.id, "ram");

        let ram = RamPath::new();
        let line = format!(
            "-m 64 -machine q35 -numa node,memdev=a -numa node,memdev=b \
             -object memory-backend-file,id=a,size=32M,mem-path={0},share=on \
             -object memory-backend-file,id=b,size=32M,mem-path={0},share=on",
            ram.as_str()
        );
        let qemu = Qemu::start(program, ram, &options(&line));
        // The two mappings cannot be distinguished.
        refused(&qemu, &["is mapped 2 times"]);
    });
}

#[test]
fn a_truncated_memory_file() {
    with_each(|program| {
        let qemu = Qemu::usual(program, "-S");
        let file = std::fs::File::options().write(true).open(&qemu.ram.0);
        file.unwrap().set_len(16 << 20).unwrap();
        refused(&qemu, &["has 16777216 bytes", "33554432"]);
    });
}

#[test]
fn devices_with_another_process_that_writes_memory() {
    with_each(|program| {
        let folder = tempfile::tempdir().unwrap();
        let backend = vhost_user_backend(&folder.path().join("backend"));
        let qemu = Qemu::usual(
            program,
            &format!(
                "-chardev socket,id=c,path={}/backend -device vhost-user-rng-pci,chardev=c",
                folder.path().display()
            ),
        );
        let error = refused(
            &qemu,
            &["vhost-user-rng-pci", "cannot be tracked", "unplug"],
        );
        let is_device = |obstacle: &AttachError| {
            matches!(obstacle, AttachError::Refused(Refusal::Device { .. }))
        };
        // QEMU itself has one more: it cannot migrate this device either.
        assert!(error.all().iter().any(is_device), "{error:?}");
        drop(qemu);
        let _ = backend.join();

        let qemu = Qemu::usual(
            program,
            &format!(
                "-chardev socket,id=c,path={}/crypto,server=on,wait=off \
                 -object cryptodev-vhost-user,id=v,chardev=c",
                folder.path().display()
            ),
        );
        refused(&qemu, &["/objects/v", "cryptodev-vhost-user"]);

        let shared = RamPath::new();
        let mut qemu = Qemu::usual(
            program,
            &format!(
                "-object memory-backend-file,id=window,size=1M,mem-path={},share=on \
                 -device ivshmem-plain,memdev=window,id=w",
                shared.as_str()
            ),
        );
        qemu.keep(shared);
        // QEMU itself also objects to this one.
        refused(&qemu, &["ivshmem"]);
    });
}

#[test]
fn a_vhost_user_network_behind_an_ordinary_card() {
    with_each(|program| {
        let folder = tempfile::tempdir().unwrap();
        let backend = vhost_user_backend(&folder.path().join("backend"));
        let qemu = Qemu::usual(
            program,
            &format!(
                "-chardev socket,id=c,path={}/backend -netdev vhost-user,id=n0,chardev=c \
                 -device virtio-net-pci,netdev=n0",
                folder.path().display()
            ),
        );
        refused(&qemu, &["n0", "vhost-user network backend"]);
        drop(qemu);
        let _ = backend.join();
    });
}

/// Prevents only post-copy.
#[test]
fn a_guest_that_returns_memory_to_the_host() {
    with_each(|program| {
        for (property, more) in [
            ("free-page-reporting", ""),
            ("free-page-hint", ",iothread=io0"),
        ] {
            let balloon = format!("-device virtio-balloon-pci,id=b,{property}=on{more}");
            let qemu = Qemu::usual(program, &format!("-object iothread,id=io0 {balloon}"));
            let mut source = QemuSource::attach(&qemu.qmp()).unwrap();
            let error = source.check_mode(Mode::Hybrid).unwrap_err();
            let text = Report::new(&error).to_string();
            assert!(text.contains("/machine/peripheral/b"), "{text}");
            assert!(text.contains(property), "{text}");
            assert!(text.contains("--mode precopy"), "{text}");
            assert!(error.found_guest() && !error.may_be_handed_over());
        }
        let qemu = Qemu::usual(program, "-device virtio-balloon-pci,id=b");
        let mut source = QemuSource::attach(&qemu.qmp()).unwrap();
        source.check_mode(Mode::Hybrid).unwrap();
    });
}

/// The minimum of a vhost-user backend with which QEMU starts.
fn vhost_user_backend(path: &Path) -> std::thread::JoinHandle<()> {
    let listener = UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        // Ends when QEMU does.
        let _ = serve_vhost_user(&mut stream);
    })
}

fn serve_vhost_user(stream: &mut UnixStream) -> io::Result<()> {
    const GET_FEATURES: u32 = 1;
    const GET_PROTOCOL_FEATURES: u32 = 15;
    const GET_QUEUE_NUM: u32 = 17;
    const NEED_REPLY: u32 = 1 << 3;
    loop {
        let mut header = [0; 12];
        stream.read_exact(&mut header)?;
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
        let (request, flags) = (word(0), word(4));
        let mut payload = vec![0; word(8) as usize];
        stream.read_exact(&mut payload)?;
        let answer: u64 = match request {
            // VIRTIO_F_VERSION_1, VHOST_USER_F_PROTOCOL_FEATURES, VHOST_F_LOG_ALL.
            GET_FEATURES => 1 << 32 | 1 << 30 | 1 << 26,
            // MQ, LOG_SHMFD.
            GET_PROTOCOL_FEATURES => 1 << 0 | 1 << 1,
            GET_QUEUE_NUM => 1,
            _ if flags & NEED_REPLY != 0 => 0,
            _ => continue,
        };
        stream.write_all(&request.to_le_bytes())?;
        stream.write_all(&5u32.to_le_bytes())?;
        stream.write_all(&8u32.to_le_bytes())?;
        stream.write_all(&answer.to_le_bytes())?;
    }
}

#[test]
fn a_device_that_qemu_cannot_migrate() {
    with_each(|program| {
        let image = RamPath::new();
        std::fs::File::create(&image.0)
            .unwrap()
            .set_len(1 << 20)
            .unwrap();
        // Its guest-visible state is the directory, which does not move with the guest.
        let folder = tempfile::tempdir().unwrap();
        let qemu = Qemu::usual(
            program,
            &format!(
                "-drive file=fat:rw:{},format=raw,if=none,id=d -device virtio-blk-pci,drive=d",
                folder.path().display()
            ),
        );
        let error = refused(&qemu, &["QEMU reports", "vvfat"]);
        let is_blocked =
            |error: &AttachError| matches!(error, AttachError::Refused(Refusal::Blocked { .. }));
        assert!(error.all().iter().any(is_blocked), "{error:?}");
    });
}

/// Each disk is a temporary file of that process: a destination would open another one.
#[test]
fn a_disk_whose_writes_are_temporary() {
    with_each(|program| {
        let image = RamPath::new();
        std::fs::File::create(&image.0)
            .unwrap()
            .set_len(1 << 20)
            .unwrap();
        let disk = format!("file={},format=raw,if=none,id=d", image.as_str());
        let device = "-device virtio-blk-pci,drive=d";
        for line in [
            format!("-snapshot -drive {disk} {device}"),
            format!("-drive {disk},snapshot=on {device}"),
        ] {
            let qemu = Qemu::usual(program, &line);
            refused(&qemu, &["vl.", "is a deleted file", "snapshot=on"]);
        }
        let qemu = Qemu::usual(program, &format!("-drive {disk} {device}"));
        QemuSource::attach(&qemu.qmp()).unwrap();
    });
}

/// A destination that was started with the source's file would destroy the guest's memory.
#[test]
fn a_destination_with_the_memory_of_a_running_guest() {
    with_each(|program| {
        let running = Qemu::usual(program, "");
        let there = running.with_the_same_memory(program, "-incoming defer");
        let before = (there.traces(), there.state());
        let error = QemuDestination::attach(&there.qmp()).unwrap_err();
        let text = Report::new(&error).to_string();
        for part in ["\"ram\"", running.ram.as_str(), "is also mapped by process"] {
            assert!(text.contains(part), "{part:?} is not in: {text}");
        }
        assert_eq!((there.traces(), there.state()), before);
        QemuSource::attach(&running.qmp()).unwrap();
    });
}

/// With `async-teardown` QEMU starts a process that shares its memory.
#[test]
fn a_destination_with_a_process_for_its_teardown() {
    with_each(|program| {
        let option = match program.is_old() {
            true => "-async-teardown",
            false => "-run-with async-teardown=on",
        };
        let qemu = Qemu::usual(program, &format!("{option} -incoming defer"));
        QemuDestination::attach(&qemu.qmp()).unwrap();
    });
}

#[test]
fn conflicting_capabilities() {
    with_each(|program| {
        for name in ["postcopy-ram", "background-snapshot"] {
            let qemu = Qemu::usual(program, "");
            let set = json!({ "capabilities": [{ "capability": name, "state": true }] });
            let accepted = qemu.client().execute("migrate-set-capabilities", set);
            if let Err(error) = accepted {
                // QEMU first checks the kernel's support.
                print_always(&format!("NOT TESTED with QEMU {}: {error}", program.label));
                continue;
            }
            refused(&qemu, &[name, "turn it off"]);
        }
    });
}

#[test]
fn a_migration_in_progress_and_one_that_has_ended() {
    with_each(|program| {
        let qemu = Qemu::usual(program, "-vga std");
        // The stream is not read: with a limit in bytes it would end when little remains.
        let folder = tempfile::tempdir().unwrap();
        let deaf = folder.path().join("deaf");
        let _listener = UnixListener::bind(&deaf).unwrap();
        let uri = format!("unix:{}", deaf.display());
        qemu.execute("migrate", json!({ "uri": uri }));
        eventually("the migration is in progress", || {
            qemu.execute("query-migrate", json!({}))["status"] == "active"
        });
        refused(&qemu, &["already has a migration", "migrate_cancel"]);
        qemu.execute("migrate_cancel", json!({}));
        eventually("the migration is cancelled", || {
            qemu.execute("query-migrate", json!({}))["status"] == "cancelled"
        });
        // A cancelled migration does not prevent a move, a completed one does.
        QemuSource::attach(&qemu.qmp()).unwrap();
        let fast = json!({ "max-bandwidth": 1u64 << 40 });
        qemu.execute("migrate-set-parameters", fast);
        qemu.execute("migrate", json!({ "uri": "exec:cat > /dev/null" }));
        eventually("the migration completes", || qemu.state() == "postmigrate");
        let error = refused(&qemu, &["postmigrate", "never resume it here", "cont"]);
        assert!(error.may_be_handed_over() && !error.found_guest());
        qemu.execute("cont", json!({}));
        QemuSource::attach(&qemu.qmp()).unwrap();
    });
}

#[test]
fn the_wrong_side() {
    with_each(|program| {
        let waits = Qemu::usual(program, "-incoming defer");
        refused(&waits, &["inmigrate", "destination's socket"]);
        let runs = Qemu::usual(program, "");
        let error = QemuDestination::attach(&runs.qmp()).unwrap_err();
        assert!(
            Report::new(&error).to_string().contains("-incoming defer"),
            "{error}"
        );
        assert_eq!(runs.state(), "running");
    });
}

#[test]
fn a_qmp_socket_with_another_client() {
    with_each(|program| {
        let qemu = Qemu::usual(program, "-S");
        let held = Client::connect(&qemu.qmp(), Duration::from_secs(20)).unwrap();
        let error = QemuSource::attach(&qemu.qmp()).unwrap_err();
        assert!(
            Report::new(&error).to_string().contains("another program"),
            "{error}"
        );
        drop(held);
        QemuSource::attach(&qemu.qmp()).unwrap();
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
        assert!(
            Report::new(&error).to_string().contains("human monitor"),
            "{error}"
        );
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

#[test]
fn no_free_space_at_the_destination() {
    let mount = Mounted::new("tmpfs", "size=48m");
    with_each(|program| {
        let start = || {
            let ram = RamPath::in_folder(mount.path());
            let mut all = usual(32, &ram);
            all.extend(options("-incoming defer"));
            Qemu::start(program, ram, &all)
        };
        let first = start();
        QemuDestination::attach(&first.qmp()).unwrap();
        std::fs::write(mount.path().join("other"), vec![1; 20 << 20]).unwrap();
        let error = QemuDestination::attach(&first.qmp()).unwrap_err();
        let text = Report::new(&error).to_string();
        assert!(text.contains("33554432 more are needed"), "{text}");
        // Allocated parts of the file need no more space: 12 + 20 MiB are allocated,
        // 16 are free, 12 are needed.
        std::fs::write(mount.path().join("other"), vec![1; 12 << 20]).unwrap();
        let file = std::fs::File::options().write(true).open(&first.ram.0);
        std::os::unix::fs::FileExt::write_all_at(&file.unwrap(), &vec![1; 20 << 20], 0).unwrap();
        QemuDestination::attach(&first.qmp()).unwrap();
        std::fs::remove_file(mount.path().join("other")).unwrap();
    });
}

#[test]
fn no_huge_pages_at_the_destination() {
    let mount = Mounted::new("hugetlbfs", "pagesize=2M");
    with_each(|program| {
        let ram = RamPath::in_folder(mount.path());
        let line = format!(
            "-m 262144 -machine q35,memory-backend=ram -incoming defer \
             -object memory-backend-file,id=ram,size=256G,mem-path={},share=on,reserve=off",
            ram.as_str()
        );
        let qemu = Qemu::start(program, ram, &options(&line));
        let error = QemuDestination::attach(&qemu.qmp()).unwrap_err();
        // More than this machine has; QEMU did not reserve them.
        let text = Report::new(&error).to_string();
        assert!(text.contains("131072 more huge pages"), "{text}");
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
            .args(["--exact", "refusals::without_privileges", "--nocapture"])
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

#[test]
fn a_dirty_log_of_a_killed_run_is_closed_only_at_the_source() {
    with_each(|program| {
        for incoming in [false, true] {
            let more = if incoming { "-incoming defer" } else { "" };
            let qemu = Qemu::usual(program, more);
            let left = hikkoshi_userfault::RemoteUserfault::create(
                qemu.pid(),
                hikkoshi_userfault::Features::FOR_DIRTY_LOG,
            )
            .unwrap();
            left.leave_open_on_drop();
            drop(left);
            assert_eq!(qemu.descriptors("userfaultfd"), 1);
            if incoming {
                let error = QemuDestination::attach(&qemu.qmp()).unwrap_err();
                assert!(
                    Report::new(&error)
                        .to_string()
                        .contains("restart the destination"),
                    "{error}"
                );
                assert_eq!(qemu.descriptors("userfaultfd"), 1);
            } else {
                let mut source = QemuSource::attach(&qemu.qmp()).unwrap();
                assert_eq!(qemu.descriptors("userfaultfd"), 0);
                source.start_dirty_log().unwrap();
                assert_eq!(qemu.descriptors("userfaultfd"), 1);
            }
        }
    });
}

#[test]
fn a_destination_that_has_changed() {
    with_each(|program| {
        let qemu = Qemu::usual(program, "-incoming defer");
        let mut destination = QemuDestination::attach(&qemu.qmp()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let uri = format!("unix:{}/incoming", folder.path().display());
        qemu.execute("migrate-incoming", json!({ "uri": uri }));
        let error = destination
            .prepare()
            .and_then(|()| destination.load_device_state(vec![0; 100]))
            .unwrap_err();
        assert!(
            Report::new(&error).to_string().contains("QEMU refused"),
            "{error}"
        );
    });
}
