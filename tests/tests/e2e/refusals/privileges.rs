//! The least privileges that the engines need: the table of docs/operating.md. Each set of
//! capabilities moves a guest, and without one of them the move is refused with its name.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::{GuestNetwork, VmConfig, Workload};
use hikkoshi_tests::{
    Breakpoint, Guest, LONG, MessageKind, MigrationPlan, Program, QemuState, TestEnv, Transport,
    assert_command_refused, copy_hikkoshi, hikkoshi, log,
};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A user that owns nothing here, neither QEMU nor its files.
const NOBODY: u32 = 65534;

/// What both engines need for a guest whose QEMU, of another user, is not confined.
const LEAST: [&str; 2] = ["sys_ptrace", "dac_override"];

/// What both engines need for a guest of a QEMU with `-sandbox on`.
const SANDBOXED: [&str; 3] = ["sys_ptrace", "dac_override", "sys_admin"];

/// As `CapabilityBoundingSet=` of the units.
const UNITS: [&str; 7] = [
    "sys_ptrace",
    "sys_admin",
    "dac_override",
    "kill",
    "net_raw",
    "net_admin",
    "sys_nice",
];

fn light_guest() -> VmConfig {
    VmConfig::new().workload(Workload::verify(16).rate(2000).option("every_ms", 200))
}

/// The options of `setpriv` for a user with exactly these capabilities.
fn options(capabilities: &[&str]) -> Vec<String> {
    let set = |sign: &str| {
        capabilities
            .iter()
            .map(|name| format!(",{sign}{name}"))
            .collect::<String>()
    };
    vec![
        format!("--reuid={NOBODY}"),
        format!("--regid={NOBODY}"),
        "--clear-groups".to_owned(),
        format!("--inh-caps=-all{}", set("+")),
        format!("--ambient-caps=-all{}", set("+")),
        format!("--bounding-set=-all{}", set("+")),
    ]
}

/// A copy of the program and a run folder, for that user.
struct OtherUser {
    program: PathBuf,
    journals: [PathBuf; 2],
}

impl OtherUser {
    fn new(env: &TestEnv) -> Self {
        let program = env.folder().join("hikkoshi");
        copy_hikkoshi(&program);
        // Each folder below which the user's files are.
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(env.folder(), open).unwrap();
        let journals = ["source-journals", "destination-journals"].map(|name| {
            let folder = env.folder().join(name);
            std::fs::create_dir(&folder).unwrap();
            chown(&folder, Some(NOBODY), Some(NOBODY)).unwrap();
            folder
        });
        Self { program, journals }
    }

    /// A plan in which the engines have these capabilities only.
    fn plan(&self, mode: &'static str, source: &[&str], destination: &[&str]) -> MigrationPlan {
        // The plan adds the program's path, which is the first argument here.
        let launcher = |capabilities: &[&str]| {
            let script = format!(
                "shift; exec setpriv {} {} \"$@\"",
                options(capabilities).join(" "),
                self.program.display()
            );
            ["sh".to_owned(), "-c".to_owned(), script, "sh".to_owned()]
        };
        let (source, destination) = (launcher(source), launcher(destination));
        MigrationPlan::new(mode)
            .migrate_launcher(&source.each_ref().map(String::as_str))
            .receive_launcher(&destination.each_ref().map(String::as_str))
            .journals_at(&self.journals[0], &self.journals[1])
    }

    /// `hikkoshi migrate` with these capabilities only.
    fn migrate(&self, capabilities: &[&str], qmp: &Path) -> Command {
        let mut command = Command::new("setpriv");
        command.args(options(capabilities)).arg(&self.program);
        command.args(["migrate", "unix:/nowhere", "--qmp"]).arg(qmp);
        command.arg("--journal").arg(&self.journals[0]);
        command
    }
}

/// Those of `all` without one.
fn without<'a>(all: &[&'a str], one: &str) -> Vec<&'a str> {
    all.iter().copied().filter(|other| *other != one).collect()
}

#[test]
fn a_user_with_two_capabilities_moves_a_guest_of_root() {
    let env = TestEnv::new();
    let user = OtherUser::new(&env);
    let mut guest = Guest::boot(&env, light_guest());
    let before = QemuState::of_vm(guest.vm());
    let qmp = guest.vm().qmp_path().to_owned();
    for (missing, parts) in [
        ("sys_ptrace", ["CAP_SYS_PTRACE", "nothing was changed"]),
        (
            "dac_override",
            ["connecting to the QMP socket", "Permission denied"],
        ),
    ] {
        let command = user.migrate(&without(&LEAST, missing), &qmp);
        assert_command_refused(command, 1, &parts);
    }
    before.assert_unchanged(guest.vm());
    guest.migrate(&user.plan("hybrid", &LEAST, &LEAST));
}

#[test]
#[ignore = "more of the same: make test-privileges"]
fn all_modes_work_with_the_least_capabilities() {
    let env = TestEnv::new();
    let user = OtherUser::new(&env);
    let mut guest = Guest::boot(&env, light_guest());
    for mode in ["precopy", "postcopy", "hybrid"] {
        guest.migrate(&user.plan(mode, &LEAST, &LEAST));
    }
}

#[test]
#[ignore = "more of the same: make test-privileges"]
fn a_confined_qemu_needs_one_more() {
    let env = TestEnv::new();
    let user = OtherUser::new(&env);
    let sandboxed = light_guest().arguments(["-sandbox", "on"]);
    let mut guest = Guest::boot(&env, sandboxed);
    let before = QemuState::of_vm(guest.vm());
    let qmp = guest.vm().qmp_path().to_owned();
    let command = user.migrate(&LEAST, &qmp);
    assert_command_refused(command, 1, &["CAP_SYS_ADMIN", "seccomp"]);
    before.assert_unchanged(guest.vm());
    for mode in ["precopy", "postcopy", "hybrid"] {
        guest.migrate(&user.plan(mode, &SANDBOXED, &SANDBOXED));
    }
    // The destination refuses the guest without it, too.
    let mut migration = guest.start_migration(&user.plan("postcopy", &SANDBOXED, &LEAST));
    let ended = migration.migrate.wait();
    ended.assert(1, &["CAP_SYS_ADMIN", "runs at the source"]);
    migration.receive.interrupt();
    let (_, finished) = migration.wait();
    guest.assert_stayed(finished, "the destination's engine lacks CAP_SYS_ADMIN");
}

/// A command that runs another one as root with these capabilities only.
fn bounded_to(capabilities: &[&str]) -> [String; 4] {
    let set: String = capabilities
        .iter()
        .map(|name| format!(",+{name}"))
        .collect();
    [
        "setpriv".to_owned(),
        format!("--bounding-set=-all{set}"),
        "--inh-caps=-all".to_owned(),
        "--no-new-privs".to_owned(),
    ]
}

/// Root with the bounding set of the units, and no other capability.
#[test]
#[ignore = "more of the same: make test-privileges"]
fn the_capabilities_of_the_units_are_sufficient() {
    let unit = include_str!("../../../../packaging/systemd/hikkoshi-receive@.service");
    let line = unit
        .lines()
        .find_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    let mut named: Vec<_> = line
        .unwrap()
        .split(' ')
        .map(|name| name.trim_start_matches("CAP_").to_lowercase())
        .collect();
    let mut expected = UNITS.map(str::to_owned).to_vec();
    named.sort();
    expected.sort();
    assert_eq!(named, expected, "the table and the unit differ");

    let env = TestEnv::new();
    let bounded = bounded_to(&UNITS);
    let bounded: Vec<&str> = bounded.iter().map(String::as_str).collect();
    let config = light_guest().arguments(["-sandbox", "on", "-run-with", "user=nobody"]);
    let config = config.version(hikkoshi_lab::QemuVersion::V10_0);
    let mut guest = Guest::boot_without_extra_disk(&env, config);
    for mode in ["precopy", "postcopy", "hybrid"] {
        guest.migrate(
            &MigrationPlan::new(mode)
                .migrate_launcher(&bounded)
                .receive_launcher(&bounded),
        );
    }
    log("the bounding set of the units moves a guest of another user's confined QEMU");
}

/// Without a capability that is for one function only, the guest is moved without that function,
/// and the engines say so.
#[test]
#[ignore = "more of the same: make test-privileges"]
fn each_further_capability_has_its_use() {
    let network = GuestNetwork::new().unwrap();
    let env = TestEnv::new();
    let nics = |config| network.nics().fold(config, VmConfig::nic);
    // The engines have to find the devices' namespace by the devices themselves.
    let on = |host| nics(light_guest()).pass_taps_of(host);
    let mut hosts = [network.source(), network.destination()];
    let mut guest = Guest::boot_without_extra_disk(&env, on(hosts[0]));
    for missing in [None, Some("net_raw"), Some("net_admin"), Some("sys_nice")] {
        let set = missing.map_or(UNITS.to_vec(), |one| without(&UNITS, one));
        let bounded = bounded_to(&set);
        let bounded: Vec<&str> = bounded.iter().map(String::as_str).collect();
        let there = on(hosts[1]);
        let plan = MigrationPlan::new("hybrid")
            .migrate_launcher(&bounded)
            .receive_launcher(&bounded)
            .receive_args(&["--collapse=2G"])
            .destination_config(there.clone());
        let (exits, finished) = guest.start_migration(&plan).wait();
        let collapse = exits.json_reports[1].as_ref().unwrap().collapse.clone();
        let report = guest.complete_migration(&exits, finished, "running");
        let said = &exits.migrate.stderr;
        match missing {
            None => assert!(report.frames.is_some() && !said.contains("CAP_"), "{said}"),
            Some("sys_nice") => {
                assert!(report.frames.is_some(), "{said}");
                let result = &exits.receive.stdout;
                assert!(result.contains("needs CAP_SYS_NICE"), "{result}");
            }
            Some(net) => {
                assert!(report.frames.is_none(), "{said}");
                let reason = format!("CAP_{}", net.to_uppercase());
                assert!(
                    said.contains("are lost") && said.contains(&reason),
                    "{said}"
                );
            }
        }
        let rebuilt = collapse.is_some_and(|collapse| collapse.rebuilt > 0);
        assert_eq!(rebuilt, missing != Some("sys_nice"));
        guest.set_config(there);
        hosts.reverse();
    }
}

/// A destination's QEMU of another user, which must not run the guest, is ended by an engine with
/// CAP_KILL. One without says what is left to do, and its journal stays.
#[test]
#[ignore = "more of the same: make test-privileges"]
fn the_qemu_of_another_user_is_ended_with_cap_kill() {
    let env = TestEnv::new();
    let config = light_guest().arguments(["-run-with", "user=nobody"]);
    let config = config.version(hikkoshi_lab::QemuVersion::V10_0);
    let mut guest = Guest::boot_without_extra_disk(&env, config);
    let bounded = bounded_to(&without(&UNITS, "kill"));
    let bounded: Vec<&str> = bounded.iter().map(String::as_str).collect();
    let plan = MigrationPlan::new("postcopy")
        .transport(Transport::Tcp)
        .receive_launcher(&bounded)
        .hold_at(Breakpoint::after(MessageKind::Pages).nth(300));
    let mut migration = guest.start_migration(&plan);
    migration.wait_held();
    migration.migrate.kill();
    migration.receive.kill();
    migration.relay().cut();
    let options = ["--give-up", "--other-side-is-lost"];

    migration.start_receive_resume(&options);
    let parts = ["ending QEMU", "CAP_KILL", "Operation not permitted"];
    migration.receive.wait().assert(3, &parts);
    assert_eq!(migration.journals().len(), 2);

    let mut command = Command::new(hikkoshi());
    command.args(["receive", "--resume"]).args(options);
    command.arg("--qmp").arg(migration.destination.qmp_path());
    command
        .arg("--journal")
        .arg(&migration.journal_folders()[1]);
    let ended = Program::start("receive --resume", command).wait();
    ended.assert(4, &["the guest has ended here"]);
    migration.destination.wait_exit(LONG).unwrap();

    migration.resume_migrate(&options);
    migration.migrate.wait().assert(1, &["runs at the source"]);
    guest.assert_healthy();
}
