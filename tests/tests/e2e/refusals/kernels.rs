//! Privileges, kernels and file systems without which a guest cannot be moved.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use hikkoshi_tests::{
    Guest, KernelFeature, MigrationPlan, QemuState, TestEnv, assert_command_refused,
    assert_refused, copy_hikkoshi, log,
};

use super::{UNCHANGED, light_guest};

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
    let before = QemuState::of_vm(guest.vm());
    // A copy that other users can execute.
    let program = env.folder().join("hikkoshi");
    copy_hikkoshi(&program);
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
    assert_command_refused(not_the_process, 1, &["CAP_SYS_PTRACE", UNCHANGED]);

    // Root without this one capability.
    let all_but_one = ["--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"];
    let without = with_privileges(&all_but_one, program, &migrate);
    assert_command_refused(without, 1, &["CAP_SYS_PTRACE", UNCHANGED]);

    before.assert_unchanged(guest.vm());
    guest.assert_healthy();
}

/// Kernels that cannot track writes: refused before connecting to the destination. Post-copy does
/// not need write tracking.
#[test]
fn a_kernel_that_cannot_track_writes() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, light_guest());
    let before = QemuState::of_vm(guest.vm());
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
            ended.assert(1, &[UNCHANGED, "--mode postcopy needs no"]);
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
            QemuState::assert_no_userfaultfd(&migration.destination);
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
        QemuState::assert_no_userfaultfd(&migration.destination);
        migration.receive.interrupt();
        let (_, finished) = migration.wait();
        guest.assert_stayed(finished, &format!("{mode} into huge pages"));
    }
    guest.migrate(&MigrationPlan::new("precopy").destination_config(there()));
}
