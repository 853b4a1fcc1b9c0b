//! What is refused: with a helpful message, with the correct exit code, and without changing the
//! guest.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::{Mount, Ram, VmConfig, Workload};
use hikkoshi_tests::{
    Breakpoint, Guest, KernelFeature, MessageKind, MigrationPlan, Program, QemuState, TestEnv,
    assert_command_refused, assert_refused, hikkoshi, log,
};
use serde_json::json;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;

/// For a guest that was inspected.
const UNTOUCHED: &str = "the guest still runs at the source; nothing was changed";

/// For a guest that was not inspected.
const UNCHANGED: &str = "nothing was changed";

fn light_guest() -> VmConfig {
    VmConfig::new().workload(Workload::verify(16).rate(5000).option("every_ms", 200))
}

/// Starts a machine without waiting for its guest.
fn start_guest(env: &TestEnv, config: VmConfig) -> Guest<'_> {
    Guest::start(env, config)
}

/// Asserts that `hikkoshi migrate` refuses this guest, and changes nothing.
fn source_refused(guest: &Guest<'_>, code: i32, parts: &[&str]) {
    let before = QemuState::of(guest.vm());
    let qmp = guest.vm().qmp_path().to_str().unwrap();
    let mut parts = parts.to_vec();
    parts.push(UNTOUCHED);
    assert_refused(&["migrate", "unix:/nowhere", "--qmp", qmp], code, &parts);
    before.assert_unchanged(guest.vm());
    assert_eq!(guest.vm().status().unwrap(), "running");
}

#[test]
fn memory_on_an_unknown_file_system() {
    let env = TestEnv::new();
    let unknown = Mount::ramfs(env.lab(), "unknown").unwrap();
    let guest = start_guest(&env, light_guest().ram_directory(unknown.path()));
    source_refused(&guest, 1, &["which is not on tmpfs, hugetlbfs, ext4"]);
}

#[test]
fn a_device_of_another_process() {
    let env = TestEnv::new();
    let socket = env.folder().join("crypto");
    let chardev = format!("socket,id=c,path={},server=on,wait=off", socket.display());
    let device = [
        "-chardev",
        &chardev,
        "-object",
        "cryptodev-vhost-user,id=v,chardev=c",
    ];
    let guest = start_guest(&env, light_guest().arguments(device));
    source_refused(&guest, 1, &["cryptodev-vhost-user", "unplug it"]);
}

#[test]
fn a_block_job_that_is_running() {
    let env = TestEnv::new();
    let guest = start_guest(&env, light_guest());
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
fn sockets_without_qmp_or_in_use() {
    let env = TestEnv::new();
    let path = |name: &str| env.folder().join(name).to_str().unwrap().to_owned();
    let both = |qmp: &str, parts: &[&str]| {
        assert_refused(&["migrate", "unix:/nowhere", "--qmp", qmp], 1, parts);
        assert_refused(
            &["receive", "--listen", &env.unused_socket(), "--qmp", qmp],
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
    both(&monitor, &["not a QMP socket"]);

    let guest = Guest::boot(&env, light_guest());
    let busy = guest.vm().qmp_path().to_str().unwrap();
    let holder = UnixStream::connect(busy).unwrap();
    assert_refused(
        &["migrate", "unix:/nowhere", "--qmp", busy],
        1,
        &["no greeting", "one client at a time", UNCHANGED],
    );
    drop(holder);
    guest.assert_healthy();
}

/// A TCP port of this machine on which no socket listens as long as the returned socket exists.
fn closed_port() -> (OwnedFd, String) {
    use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = SocketAddrV4::try_from(getsockname(&socket).unwrap()).unwrap();
    (socket, address.to_string())
}

#[test]
fn a_destination_that_does_not_listen() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, light_guest());
    let qmp = guest.vm().qmp_path().to_str().unwrap().to_owned();
    let before = QemuState::of(guest.vm());
    // Bound, so that no other process can use the port.
    let (_bound, port) = closed_port();
    let why = [
        "there is no such socket: does 'hikkoshi receive' run there?",
        "runs at the source",
    ];
    assert_refused(&["migrate", &env.unused_socket(), "--qmp", &qmp], 1, &why);
    let closed = [
        &port,
        "Connection refused",
        "does 'hikkoshi receive' run there, and listen on this port?",
        "runs at the source",
    ];
    assert_refused(&["migrate", &port, "--qmp", &qmp], 1, &closed);
    // The program's file has been replaced by an upgrade; the guard process is started
    // nevertheless.
    let copy = env.folder().join("hikkoshi");
    // By another process: a child that another test starts at this moment would inherit a
    // descriptor that is open for writing, and then the file could not be executed.
    let copied = Command::new("cp").arg(hikkoshi()).arg(&copy).status();
    assert!(copied.unwrap().success());
    let program = std::fs::File::open(&copy).unwrap();
    std::fs::remove_file(&copy).unwrap();
    let mut replaced = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()));
    replaced.args(["migrate", &env.unused_socket(), "--qmp", &qmp]);
    assert_command_refused(replaced, 1, &why);
    // Too long for a host name, so it is refused without a network query.
    let unknown = format!("{}.invalid:7000", "a".repeat(64));
    assert_refused(
        &["migrate", &unknown, "--qmp", &qmp],
        2,
        &["cannot look up the host", "getent hosts aaaa"],
    );
    before.assert_unchanged(guest.vm());

    // Another server listens there.
    let path = env.folder().join("web");
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.unwrap().write_all(&[b'x'; 100]);
        }
    });
    let address = format!("unix:{}", path.display());
    assert_refused(
        &["migrate", &address, "--qmp", &qmp],
        1,
        &["another program answers there", "runs at the source"],
    );
    before.assert_unchanged(guest.vm());
    guest.migrate(&MigrationPlan::new("hybrid"));
}

#[test]
fn destinations_that_do_not_fit() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, light_guest());
    let cases: [(&str, VmConfig, &[&str]); 6] = [
        (
            "smaller",
            light_guest().ram(Ram::shared(192)),
            &["256 MiB", "192 MiB"],
        ),
        (
            "layout",
            light_guest().ram(Ram::shared(0).numa(&[128, 128])),
            &["\"ram\""],
        ),
        (
            "machine",
            light_guest().machine("pc-i440fx-7.2"),
            &["pc-q35-7.2", "pc-i440fx-7.2"],
        ),
        (
            "processors",
            light_guest().cpus(2),
            &["number of virtual CPUs", "1", "2"],
        ),
        (
            "device",
            light_guest().arguments(["-device", "virtio-rng-pci,addr=9"]),
            &["pcie.0/09.0", "the source has nothing", "virtio-rng-pci"],
        ),
        (
            "processor",
            light_guest().arguments(["-cpu", "Nehalem"]),
            &["the model-id is", "Nehalem"],
        ),
    ];
    for (what, config, parts) in cases {
        let mut migration =
            guest.start_migration(&MigrationPlan::new("hybrid").destination_config(config));
        let ended = migration.migrate.wait();
        ended.assert(1, parts);
        ended.assert(
            1,
            &["the destination refuses the guest", "runs at the source"],
        );
        // The destination continues to wait for a guest that fits.
        migration.receive.wait_stderr("refused a guest");
        migration.receive.interrupt();
        let (exits, finished) = migration.wait();
        exits.assert_destination(1, parts);
        guest.assert_stayed(finished, &format!("another {what}"));
    }
    guest.migrate(&MigrationPlan::new("hybrid"));
}

#[test]
fn a_destination_without_enough_memory() {
    let env = TestEnv::new();
    let small = Mount::tmpfs(env.lab(), "small", 64).unwrap();
    let vm = light_guest()
        .ram_directory(small.path())
        .incoming()
        .start(env.lab(), "narrow")
        .unwrap();
    let qmp = vm.qmp_path().to_str().unwrap();
    let receive = ["receive", "--listen", &env.unused_socket(), "--qmp", qmp];
    let before = QemuState::of(&vm);
    assert_refused(&receive, 1, &["bytes free", "enlarge it"]);
    before.assert_unchanged(&vm);
}

#[test]
fn a_destination_that_does_not_wait_for_a_guest() {
    let env = TestEnv::new();
    let guest = start_guest(&env, light_guest());
    let qmp = guest.vm().qmp_path().to_str().unwrap();
    let receive = ["receive", "--listen", &env.unused_socket(), "--qmp", qmp];
    let before = QemuState::of(guest.vm());
    assert_refused(&receive, 2, &["-incoming defer"]);
    before.assert_unchanged(guest.vm());
    assert_eq!(guest.vm().status().unwrap(), "running");
    // A QEMU that waits for a guest is not a source.
    let waiting = light_guest()
        .incoming()
        .start(env.lab(), "waiting")
        .unwrap();
    let qmp = waiting.qmp_path().to_str().unwrap();
    assert_refused(
        &["migrate", "unix:/nowhere", "--qmp", qmp],
        1,
        &["still waits for an incoming migration"],
    );
    // The address is in use.
    let path = env.folder().join("taken");
    let _listener = UnixListener::bind(&path).unwrap();
    let taken = format!("unix:{}", path.display());
    assert_refused(
        &["receive", "--listen", &taken, "--qmp", qmp],
        2,
        &["listening at", "in use"],
    );
}

/// Runs a program under `setpriv` with these options.
fn with_privileges(options: &[&str], program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command.args(options).arg(program).args(arguments);
    command
}

#[test]
fn missing_privileges() {
    let env = TestEnv::new();
    let guest = Guest::boot(&env, light_guest());
    let qmp = guest.vm().qmp_path();
    let before = QemuState::of(guest.vm());
    // A copy that other users can execute.
    let program = env.folder().join("hikkoshi");
    std::fs::copy(hikkoshi(), &program).unwrap();
    let program = program.to_str().unwrap();
    let migrate = ["migrate", "unix:/nowhere", "--qmp", qmp.to_str().unwrap()];
    let unprivileged = ["--reuid=65534", "--regid=65534", "--clear-groups"];

    let not_the_socket = with_privileges(&unprivileged, program, &migrate);
    assert_command_refused(
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
    let not_the_process = with_privileges(&unprivileged, program, &migrate);
    assert_command_refused(not_the_process, 1, &["CAP_SYS_PTRACE", UNTOUCHED]);

    // Root without this one capability.
    let all_but_one = ["--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"];
    let without = with_privileges(&all_but_one, program, &migrate);
    assert_command_refused(without, 1, &["CAP_SYS_PTRACE", UNTOUCHED]);

    before.assert_unchanged(guest.vm());
    guest.assert_healthy();
}

/// Kernels that cannot track writes: refused before connecting to the destination. Post-copy does
/// not need write tracking.
#[test]
fn a_kernel_that_cannot_track_writes() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, light_guest());
    let before = QemuState::of(guest.vm());
    let qmp = guest.vm().qmp_path().to_str().unwrap().to_owned();
    for (feature, parts) in [
        (
            KernelFeature::Userfault,
            [
                "no asynchronous write protection (Linux 6.7 and later have it)",
                "userfaultfd",
            ],
        ),
        (
            KernelFeature::UserfaultFeatures,
            [
                "no asynchronous write protection (Linux 6.7 and later have it)",
                "WP_ASYNC (Linux 6.7)",
            ],
        ),
        (
            KernelFeature::PagemapScan,
            [
                "write tracking does not work on this kernel",
                "PAGEMAP_SCAN requires Linux 6.7",
            ],
        ),
    ] {
        for mode in ["precopy", "hybrid"] {
            let ended = feature.run_without(|| {
                let migrate = ["migrate", "unix:/nowhere", "--mode", mode, "--qmp", &qmp];
                assert_refused(&migrate, 1, &parts)
            });
            ended.assert(1, &["runs at the source", "--mode postcopy needs no"]);
            before.assert_unchanged(guest.vm());
        }
        // Post-copy gets as far as connecting.
        feature.run_without(|| {
            let migrate = ["migrate", &env.unused_socket(), "--mode", "postcopy"];
            let migrate = migrate.into_iter().chain(["--qmp", &qmp]);
            let migrate: Vec<_> = migrate.collect();
            assert_refused(&migrate, 1, &["does 'hikkoshi receive' run there?"]);
        });
        before.assert_unchanged(guest.vm());
    }
    guest.assert_healthy();
    guest.migrate(&MigrationPlan::new("hybrid"));
}

/// A destination that cannot catch faults, for several reasons: refused with the reason before
/// anything is sent, and its QEMU is unchanged. Pre-copy does not need it.
#[test]
fn a_destination_that_cannot_catch_faults() {
    let env = TestEnv::new();
    // Without a disk: QEMU's user may not have access to the image in the build folder.
    let mut guest = Guest::boot_without_extra_disk(&env, light_guest());
    // QEMU's user may not create a userfaultfd, and has no device to create one.
    let powerless = light_guest().arguments(["-run-with", "user=nobody"]);
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
    let mut refused_plans = Vec::new();
    if everybody {
        log("vm.unprivileged_userfaultfd is 1 here: every process may catch faults");
    } else {
        let plan = MigrationPlan::new("postcopy").destination_config(powerless.clone());
        let plan = match device {
            true => plan.receive_launcher(&without_device),
            false => plan,
        };
        let parts = [
            "lacks the capability CAP_SYS_PTRACE",
            "opening /dev/userfaultfd",
            "sysctl vm.unprivileged_userfaultfd=1",
        ];
        refused_plans.push((plan, parts.to_vec()));
    }
    let old =
        MigrationPlan::new("postcopy").receive_without_feature(KernelFeature::UserfaultFeatures);
    refused_plans.push((old, vec!["creating a userfaultfd in process"]));
    for (plan, parts) in &refused_plans {
        for mode in ["postcopy", "hybrid"] {
            let mut migration = guest.start_migration(&plan.clone().with_mode(mode));
            let ended = migration.migrate.wait();
            ended.assert(1, parts);
            ended.assert(
                1,
                &["the destination refuses the guest", "runs at the source"],
            );
            migration.receive.wait_stderr("refused a guest");
            assert!(QemuState::of(&migration.destination).has_no_userfaultfd());
            migration.receive.interrupt();
            let (_, finished) = migration.wait();
            guest.assert_stayed(finished, &format!("{mode}: {}", parts[0]));
        }
    }
    for (plan, _) in &refused_plans {
        guest.migrate(&plan.clone().with_mode("precopy"));
    }
    // With the device, the privileges of QEMU's user do not matter.
    if device || everybody {
        guest.migrate(&MigrationPlan::new("postcopy").destination_config(powerless));
    }
}

/// A tmpfs mounted with huge pages.
struct HugeTmpfs(std::path::PathBuf);

impl HugeTmpfs {
    fn mount(env: &TestEnv) -> Option<Self> {
        let path = env.folder().join("huge-tmpfs");
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

/// Parts of a huge page cannot be dropped and installed reliably: refused before anything is sent.
/// Pre-copy does not need it.
#[test]
fn postcopy_into_a_tmpfs_with_huge_pages() {
    let env = TestEnv::new();
    let overrule = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    let Ok(overrule) = std::fs::read_to_string(overrule) else {
        log("NOT TESTED: this kernel has no huge pages in tmpfs");
        return;
    };
    let huge = HugeTmpfs::mount(&env).unwrap();
    let mut guest = Guest::boot(&env, light_guest());
    let there = || light_guest().ram_directory(&huge.0);
    for mode in ["postcopy", "hybrid"] {
        let plan = MigrationPlan::new(mode).destination_config(there());
        if overrule.contains("[deny]") {
            log("this machine forbids huge pages in tmpfs, regardless of mount options");
            guest.migrate(&plan);
            continue;
        }
        let mut migration = guest.start_migration(&plan);
        let ended = migration.migrate.wait();
        ended.assert(
            1,
            &[
                "the destination refuses the guest",
                "mount option huge=always",
                "huge=never",
                "runs at the source",
            ],
        );
        migration.receive.wait_stderr("refused a guest");
        assert!(QemuState::of(&migration.destination).has_no_userfaultfd());
        migration.receive.interrupt();
        let (_, finished) = migration.wait();
        guest.assert_stayed(finished, &format!("{mode} into huge pages"));
    }
    guest.migrate(&MigrationPlan::new("precopy").destination_config(there()));
}

/// Unknown clients are rejected, and the expected source is accepted.
#[test]
fn unknown_clients_at_the_destination() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, light_guest());
    let plan = MigrationPlan::new("hybrid").hold_at(Breakpoint::before(MessageKind::HelloControl));
    let migration = guest.start_migration(&plan);
    migration.wait_held();
    let address = migration
        .listen_address()
        .strip_prefix("unix:")
        .unwrap()
        .to_owned();
    for words in [
        &b"GET / HTTP/1.1\r\nHost: nowhere.example.org\r\n\r\n"[..],
        &[0; 200],
        b"x",
    ] {
        let mut stranger = UnixStream::connect(&address).unwrap();
        stranger.write_all(words).unwrap();
    }
    migration.relay().release();
    let (exits, finished) = migration.wait();
    guest.complete_migration(&exits, finished, "running");
}

/// A second `hikkoshi migrate` for a guest that is being migrated.
#[test]
fn two_sources_at_once() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, light_guest());
    let migration = guest.start_migration(
        &MigrationPlan::new("precopy").hold_at(Breakpoint::after(MessageKind::Pages).nth(10)),
    );
    migration.wait_held();
    // The second one finds QMP in use, and changes nothing.
    let mut second = Command::new(hikkoshi());
    second.args(["migrate", "unix:/nowhere", "--qmp"]);
    second.arg(guest.vm().qmp_path());
    let ended = Program::start("second", second).wait();
    ended.assert(1, &["one client at a time", UNCHANGED]);
    migration.relay().release();
    let (exits, finished) = migration.wait();
    guest.complete_migration(&exits, finished, "running");
}
