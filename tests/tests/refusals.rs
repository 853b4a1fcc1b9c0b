//! What is refused, in words that help, with the right exit code, and the guest untouched.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::{Mount, Ram, VmConfig, Workload};
use hikkoshi_tests::{
    Guest, Kind, Lack, Moment, Program, Scene, Traces, Trip, hikkoshi, refused, refused_command,
    tell,
};
use serde_json::json;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;

/// Of a guest that was looked at.
const UNTOUCHED: &str = "the guest runs on at the source; nothing was changed";

/// Of one that was not.
const UNCHANGED: &str = "nothing was changed";

fn quiet() -> VmConfig {
    VmConfig::new().workload(Workload::verify(16).rate(5000).option("every_ms", 200))
}

/// A machine that boots; nobody waits for it.
fn at_all(scene: &Scene, config: VmConfig) -> Guest<'_> {
    Guest::start(scene, config)
}

/// `hikkoshi migrate` of this guest is refused, and nothing of it is changed.
fn source_refused(guest: &Guest<'_>, code: i32, parts: &[&str]) {
    let before = Traces::of(guest.vm());
    let qmp = guest.vm().qmp_path().to_str().unwrap();
    let mut parts = parts.to_vec();
    parts.push(UNTOUCHED);
    refused(&["migrate", "unix:/nowhere", "--qmp", qmp], code, &parts);
    before.assert_same(guest.vm());
    assert_eq!(guest.vm().status().unwrap(), "running");
}

#[test]
fn memory_that_is_not_in_a_shared_named_file() {
    for (ram, parts) in [
        (
            Ram::Anonymous { mib: 128 },
            ["memory-backend-ram", "share=on"],
        ),
        (
            Ram::Memfd { mib: 128 },
            ["memory-backend-memfd", "named file"],
        ),
        (Ram::PrivateFile { mib: 128 }, ["share=off", "not shared"]),
    ] {
        let scene = Scene::new();
        let guest = at_all(&scene, quiet().ram(ram));
        source_refused(&guest, 1, &parts);
    }
}

#[test]
fn memory_on_a_disk() {
    let scene = Scene::new();
    let guest = at_all(&scene, quiet().ram_directory(env!("CARGO_TARGET_TMPDIR")));
    source_refused(
        &guest,
        1,
        &["neither on tmpfs nor on hugetlbfs", "/dev/shm"],
    );
}

#[test]
fn a_device_of_another_process() {
    let scene = Scene::new();
    let socket = scene.folder().join("crypto");
    let chardev = format!("socket,id=c,path={},server=on,wait=off", socket.display());
    let device = [
        "-chardev",
        &chardev,
        "-object",
        "cryptodev-vhost-user,id=v,chardev=c",
    ];
    let guest = at_all(&scene, quiet().arguments(device));
    source_refused(&guest, 1, &["cryptodev-vhost-user", "unplug it"]);
}

#[test]
fn a_block_job_that_is_running() {
    let scene = Scene::new();
    let guest = at_all(&scene, quiet());
    let qmp = guest.vm().qmp();
    for node in ["from", "to"] {
        let disk = json!({ "driver": "null-co", "node-name": node, "size": 1 << 30 });
        qmp.execute("blockdev-add", disk).unwrap();
    }
    let backup = json!({ "job-id": "bk", "device": "from", "target": "to", "sync": "full",
                         "speed": 1 });
    qmp.execute("blockdev-backup", backup).unwrap();
    source_refused(
        &guest,
        1,
        &["block job 'bk' (backup) is running", "wait for it"],
    );
}

#[test]
fn sockets_that_are_no_qmp_or_busy() {
    let scene = Scene::new();
    let path = |name: &str| scene.folder().join(name).to_str().unwrap().to_owned();
    let both = |qmp: &str, parts: &[&str]| {
        refused(&["migrate", "unix:/nowhere", "--qmp", qmp], 1, parts);
        refused(
            &["receive", "--listen", &scene.nowhere(), "--qmp", qmp],
            1,
            parts,
        );
    };
    both(&path("nothing"), &["connecting to the QMP socket"]);

    let plain = path("plain");
    std::fs::write(&plain, "").unwrap();
    both(&plain, &["connecting to the QMP socket"]);

    let monitor = path("monitor");
    let listener = UnixListener::bind(&monitor).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream
                .unwrap()
                .write_all(b"QEMU 10.0 monitor - type 'help'\n(qemu) ");
        }
    });
    both(&monitor, &["is not QMP"]);

    let guest = Guest::boot(&scene, quiet());
    let busy = guest.vm().qmp_path().to_str().unwrap();
    let holder = UnixStream::connect(busy).unwrap();
    refused(
        &["migrate", "unix:/nowhere", "--qmp", busy],
        1,
        &["no greeting", "one client at a time", UNCHANGED],
    );
    drop(holder);
    guest.is_sound();
}

/// A TCP port of this machine at which nobody listens for as long as the socket is there.
fn closed_port() -> (OwnedFd, String) {
    use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = SocketAddrV4::try_from(getsockname(&socket).unwrap()).unwrap();
    (socket, address.to_string())
}

#[test]
fn a_destination_that_is_not_there() {
    let scene = Scene::new();
    let mut guest = Guest::boot(&scene, quiet());
    let qmp = guest.vm().qmp_path().to_str().unwrap().to_owned();
    let before = Traces::of(guest.vm());
    // Bound, so that it is nobody else's, and nobody listens.
    let (_bound, port) = closed_port();
    let why = [
        "there is no such socket: does 'hikkoshi receive' run there?",
        "the guest runs on at the source",
    ];
    refused(&["migrate", &scene.nowhere(), "--qmp", &qmp], 1, &why);
    let closed = [
        &port,
        "Connection refused",
        "does 'hikkoshi receive' run there, and listen on this port?",
        "the guest runs on at the source",
    ];
    refused(&["migrate", &port, "--qmp", &qmp], 1, &closed);
    // An upgrade has replaced the program's file since it was started: the guard process is started
    // all the same.
    let copy = scene.folder().join("hikkoshi");
    std::fs::copy(hikkoshi(), &copy).unwrap();
    let program = std::fs::File::open(&copy).unwrap();
    std::fs::remove_file(&copy).unwrap();
    let mut replaced = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()));
    replaced.args(["migrate", &scene.nowhere(), "--qmp", &qmp]);
    refused_command(replaced, 1, &why);
    // Too long for a name: refused without asking anybody on a network.
    let unknown = format!("{}.invalid:7000", "a".repeat(64));
    refused(
        &["migrate", &unknown, "--qmp", &qmp],
        2,
        &["cannot look up the host", "getent hosts aaaa"],
    );
    before.assert_same(guest.vm());

    // Something else listens there.
    let path = scene.folder().join("web");
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.unwrap().write_all(&[b'x'; 100]);
        }
    });
    let address = format!("unix:{}", path.display());
    refused(
        &["migrate", &address, "--qmp", &qmp],
        1,
        &[
            "something else answers there",
            "the guest runs on at the source",
        ],
    );
    before.assert_same(guest.vm());
    guest.travel(&Trip::by("hybrid"));
}

#[test]
fn destinations_that_do_not_fit() {
    let scene = Scene::new();
    let mut guest = Guest::boot(&scene, quiet());
    let cases: [(&str, VmConfig, &[&str]); 6] = [
        (
            "smaller",
            quiet().ram(Ram::shared(192)),
            &["268435456", "201326592"],
        ),
        (
            "layout",
            quiet().ram(Ram::Numa {
                nodes: vec![128, 128],
            }),
            &["\"ram\""],
        ),
        (
            "machine",
            quiet().machine("pc-i440fx-7.2"),
            &["pc-q35-7.2", "pc-i440fx-7.2"],
        ),
        (
            "processors",
            quiet().cpus(2),
            &["number of virtual CPUs", "1", "2"],
        ),
        (
            "device",
            quiet().arguments(["-device", "virtio-rng-pci,addr=9"]),
            &["pcie.0/09.0", "the source has nothing", "virtio-rng-pci"],
        ),
        (
            "processor",
            quiet().arguments(["-cpu", "Nehalem"]),
            &["the model-id is", "Nehalem"],
        ),
    ];
    for (what, config, parts) in cases {
        let mut attempt = guest.set_out(&Trip::by("hybrid").to_like(config));
        let ended = attempt.migrate.wait();
        ended.assert(1, parts);
        ended.assert(
            1,
            &["the destination refuses the guest", "runs on at the source"],
        );
        // It goes on waiting for one that fits.
        attempt.receive.wait_said("refused a guest");
        attempt.receive.interrupt();
        let (ends, arrived) = attempt.wait();
        ends.assert_destination(1, parts);
        guest.stay(arrived, &format!("another {what}"));
    }
    guest.travel(&Trip::by("hybrid"));
}

#[test]
fn a_destination_without_room() {
    let scene = Scene::new();
    let small = Mount::tmpfs(scene.lab(), "small", 64).unwrap();
    let vm = quiet()
        .ram_directory(small.path())
        .incoming()
        .start(scene.lab(), "narrow")
        .unwrap();
    let qmp = vm.qmp_path().to_str().unwrap();
    let receive = ["receive", "--listen", &scene.nowhere(), "--qmp", qmp];
    let before = Traces::of(&vm);
    refused(&receive, 1, &["bytes free", "make it larger"]);
    before.assert_same(&vm);
}

#[test]
fn a_destination_that_does_not_wait_for_a_guest() {
    let scene = Scene::new();
    let guest = at_all(&scene, quiet());
    let qmp = guest.vm().qmp_path().to_str().unwrap();
    let receive = ["receive", "--listen", &scene.nowhere(), "--qmp", qmp];
    let before = Traces::of(guest.vm());
    refused(&receive, 2, &["-incoming defer"]);
    before.assert_same(guest.vm());
    assert_eq!(guest.vm().status().unwrap(), "running");
    // And one that waits is no source.
    let waiting = quiet().incoming().start(scene.lab(), "waiting").unwrap();
    let qmp = waiting.qmp_path().to_str().unwrap();
    refused(
        &["migrate", "unix:/nowhere", "--qmp", qmp],
        1,
        &["still waits for a guest"],
    );
    // An address that is taken.
    let path = scene.folder().join("taken");
    let _listener = UnixListener::bind(&path).unwrap();
    let taken = format!("unix:{}", path.display());
    refused(
        &["receive", "--listen", &taken, "--qmp", qmp],
        2,
        &["listening at", "in use"],
    );
}

/// `hikkoshi` under `setpriv` with these options.
fn with_privileges(options: &[&str], program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command.args(options).arg(program).args(arguments);
    command
}

#[test]
fn missing_privileges() {
    let scene = Scene::new();
    let guest = Guest::boot(&scene, quiet());
    let qmp = guest.vm().qmp_path();
    let before = Traces::of(guest.vm());
    // Where another user can start it from.
    let program = scene.folder().join("hikkoshi");
    std::fs::copy(hikkoshi(), &program).unwrap();
    let program = program.to_str().unwrap();
    let migrate = ["migrate", "unix:/nowhere", "--qmp", qmp.to_str().unwrap()];
    let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups"];

    let not_the_socket = with_privileges(&nobody, program, &migrate);
    refused_command(
        not_the_socket,
        1,
        &[
            "connecting to the QMP socket",
            "Permission denied",
            UNCHANGED,
        ],
    );

    let open = |path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    open(qmp, 0o777);
    let not_the_process = with_privileges(&nobody, program, &migrate);
    refused_command(not_the_process, 1, &["CAP_SYS_PTRACE", UNTOUCHED]);

    // Root, but for the one capability.
    let all_but_one = ["--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"];
    let without = with_privileges(&all_but_one, program, &migrate);
    refused_command(without, 1, &["CAP_SYS_PTRACE", UNTOUCHED]);

    before.assert_same(guest.vm());
    guest.is_sound();
}

/// Kernels without what tracking writes needs: told before the destination is bothered. Post-copy
/// needs none of it.
#[test]
fn a_kernel_that_cannot_track_writes() {
    let scene = Scene::new();
    let mut guest = Guest::boot(&scene, quiet());
    let before = Traces::of(guest.vm());
    let qmp = guest.vm().qmp_path().to_str().unwrap().to_owned();
    for (lack, parts) in [
        (
            Lack::Userfault,
            [
                "no asynchronous write protection (Linux 6.7 and later have it)",
                "userfaultfd",
            ],
        ),
        (
            Lack::UserfaultFeatures,
            [
                "no asynchronous write protection (Linux 6.7 and later have it)",
                "WP_ASYNC (Linux 6.7)",
            ],
        ),
        (
            Lack::PagemapScan,
            [
                "write tracking does not work on this kernel",
                "PAGEMAP_SCAN came with Linux 6.7",
            ],
        ),
    ] {
        for mode in ["precopy", "hybrid"] {
            let ended = lack.during(|| {
                let migrate = ["migrate", "unix:/nowhere", "--mode", mode, "--qmp", &qmp];
                refused(&migrate, 1, &parts)
            });
            ended.assert(
                1,
                &[
                    "the guest runs on at the source",
                    "--mode postcopy needs no",
                ],
            );
            before.assert_same(guest.vm());
        }
        // It gets as far as calling.
        lack.during(|| {
            let migrate = ["migrate", &scene.nowhere(), "--mode", "postcopy"];
            let migrate = migrate.into_iter().chain(["--qmp", &qmp]);
            let migrate: Vec<_> = migrate.collect();
            refused(&migrate, 1, &["does 'hikkoshi receive' run there?"]);
        });
        before.assert_same(guest.vm());
    }
    guest.is_sound();
    guest.travel(&Trip::by("hybrid"));
}

/// A destination that cannot catch faults, for one reason or another: refused with that reason
/// before anything has moved, and its QEMU is as it was. Pre-copy does without.
#[test]
fn a_destination_that_cannot_catch_faults() {
    let scene = Scene::new();
    // Without a disk: QEMU's user may not open the image, wherever the build folder is.
    let mut guest = Guest::boot_as_it_is(&scene, quiet());
    // QEMU's user has no right to a userfaultfd, and there is no device to make one of.
    let powerless = quiet().arguments(["-run-with", "user=nobody"]);
    let without_device = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        "mount --bind /dev/userfaultfd /dev/userfaultfd && \
         mount -o remount,bind,nodev /dev/userfaultfd && exec \"$0\" \"$@\"",
    ];
    let device = Path::new("/dev/userfaultfd").exists();
    let everybody = std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd");
    let everybody = everybody.unwrap().trim() == "1";
    let mut hopeless = Vec::new();
    if everybody {
        tell("vm.unprivileged_userfaultfd is 1 here: everybody may catch faults");
    } else {
        let trip = Trip::by("postcopy").to_like(powerless.clone());
        let trip = match device {
            true => trip.receive_by(&without_device),
            false => trip,
        };
        let parts = [
            "userfaultfd(2) in the process said",
            "opening /dev/userfaultfd",
            "sysctl vm.unprivileged_userfaultfd=1",
        ];
        hopeless.push((trip, parts.to_vec()));
    }
    let old = Trip::by("postcopy").receive_without(Lack::UserfaultFeatures);
    hopeless.push((old, vec!["taking a userfaultfd of process"]));
    for (trip, parts) in &hopeless {
        for mode in ["postcopy", "hybrid"] {
            let mut attempt = guest.set_out(&trip.clone().instead_by(mode));
            let ended = attempt.migrate.wait();
            ended.assert(1, parts);
            ended.assert(
                1,
                &[
                    "the destination refuses the guest",
                    "the guest runs on at the source",
                ],
            );
            attempt.receive.wait_said("refused a guest");
            assert!(Traces::of(&attempt.destination).are_free_of_userfaults());
            attempt.receive.interrupt();
            let (_, arrived) = attempt.wait();
            guest.stay(arrived, &format!("{mode}: {}", parts[0]));
        }
    }
    for (trip, _) in &hopeless {
        guest.travel(&trip.clone().instead_by("precopy"));
    }
    // With the device the right of QEMU's user does not matter.
    if device || everybody {
        guest.travel(&Trip::by("postcopy").to_like(powerless));
    }
}

/// A tmpfs that is mounted to use huge pages.
struct HugeTmpfs(std::path::PathBuf);

impl HugeTmpfs {
    fn mount(scene: &Scene) -> Option<Self> {
        let path = scene.folder().join("huge-tmpfs");
        std::fs::create_dir(&path).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "huge=always", "hikkoshi-tests"])
            .arg(&path)
            .status()
            .unwrap();
        mounted.success().then_some(Self(path))
    }
}

impl Drop for HugeTmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// Pages in huge ones cannot be relied on to come and go one by one: refused before anything has
/// moved. Pre-copy does without.
#[test]
fn postcopy_into_a_tmpfs_with_huge_pages() {
    let scene = Scene::new();
    let overrule = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    let Ok(overrule) = std::fs::read_to_string(overrule) else {
        tell("NOT TESTED: this kernel has no huge pages in tmpfs");
        return;
    };
    let huge = HugeTmpfs::mount(&scene).unwrap();
    let mut guest = Guest::boot(&scene, quiet());
    let there = || quiet().ram_directory(&huge.0);
    for mode in ["postcopy", "hybrid"] {
        let trip = Trip::by(mode).to_like(there());
        if overrule.contains("[deny]") {
            tell("this machine forbids huge pages in tmpfs, whatever a mount says");
            guest.travel(&trip);
            continue;
        }
        let mut attempt = guest.set_out(&trip);
        let ended = attempt.migrate.wait();
        ended.assert(
            1,
            &[
                "the destination refuses the guest",
                "mount option huge=always",
                "huge=never",
                "the guest runs on at the source",
            ],
        );
        attempt.receive.wait_said("refused a guest");
        assert!(Traces::of(&attempt.destination).are_free_of_userfaults());
        attempt.receive.interrupt();
        let (_, arrived) = attempt.wait();
        guest.stay(arrived, &format!("{mode} into huge pages"));
    }
    guest.travel(&Trip::by("precopy").to_like(there()));
}

/// A stranger at the door is turned away, and the guest that was waited for comes in.
#[test]
fn a_stranger_at_the_destinations_door() {
    let scene = Scene::new();
    let mut guest = Guest::boot(&scene, quiet());
    let trip = Trip::by("hybrid").hold(Moment::before(Kind::HelloControl));
    let attempt = guest.set_out(&trip);
    attempt.wait_held();
    let address = attempt.listens().strip_prefix("unix:").unwrap().to_owned();
    for words in [
        &b"GET / HTTP/1.1\r\nHost: nowhere.example.org\r\n\r\n"[..],
        &[0; 200],
        b"x",
    ] {
        let mut stranger = UnixStream::connect(&address).unwrap();
        stranger.write_all(words).unwrap();
    }
    attempt.relay().let_go();
    let (ends, arrived) = attempt.wait();
    guest.arrive(&ends, arrived, "running");
}

/// A guest that is on its way already.
#[test]
fn two_sources_at_once() {
    let scene = Scene::new();
    let mut guest = Guest::boot(&scene, quiet());
    let attempt = guest.set_out(&Trip::by("precopy").hold(Moment::after(Kind::Pages).nth(10)));
    attempt.wait_held();
    // A second one for the same guest finds QMP taken, and does no harm.
    let mut second = Command::new(hikkoshi());
    second.args(["migrate", "unix:/nowhere", "--qmp"]);
    second.arg(guest.vm().qmp_path());
    let ended = Program::start("second", second).wait();
    ended.assert(1, &["one client at a time", UNCHANGED]);
    attempt.relay().let_go();
    let (ends, arrived) = attempt.wait();
    guest.arrive(&ends, arrived, "running");
}
