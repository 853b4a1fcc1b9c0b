//! Network traffic is readable by the two sides only, and only the two sides can connect.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::{HostPair, Ram, Vm, VmConfig, Workload};
use hikkoshi_tests::{
    Breakpoint, CertificateAuthority, Exit, Guest, JsonReport, MessageKind, Migration,
    MigrationPlan, PacketCapture, Program, TestEnv, Transport, address_in, assert_refused,
    eventually, free_huge_pages, hikkoshi, log, unique_address,
};
use std::fs;
use std::process::Command;

/// Minimum number of captured bytes of a migration.
const MIN_BYTES: u64 = 20 << 20;

fn busy_guest() -> VmConfig {
    VmConfig::new().workload(Workload::verify(48).rate(8000).option("every_ms", 200))
}

/// Migrates a guest over a network, and captures every packet.
fn capture_migration(env: &TestEnv, plan: MigrationPlan, transport: Transport) -> u64 {
    let line = HostPair::new(None).unwrap();
    let config = busy_guest().namespace(line.source());
    let mut guest = Guest::boot(env, config);
    let tap = PacketCapture::start(line.destination());
    guest.migrate(
        &plan
            .transport(transport)
            .between_namespaces(line.source(), line.destination()),
    );
    let captured = tap.finish();
    log(format!("{captured:?}"));
    assert!(captured.bytes > MIN_BYTES, "{captured:?}");
    captured.pages
}

fn there() -> String {
    format!("{}:7200", HostPair::DESTINATION)
}

#[test]
#[ignore = "one of its kind runs in CI: make test-ssh"]
fn invitation_traffic_is_encrypted() {
    let env = TestEnv::new();
    let captured = capture_migration(
        &env,
        MigrationPlan::new("hybrid"),
        Transport::Invitation(there()),
    );
    assert_eq!(captured, 0);
}

#[test]
#[ignore = "one of its kind runs in CI: make test-ssh"]
fn invitation_traffic_of_several_links_is_encrypted() {
    let env = TestEnv::new();
    let plan = MigrationPlan::new("postcopy").migrate_args(&["--links", "3"]);
    assert_eq!(
        capture_migration(&env, plan, Transport::Invitation(there())),
        0
    );
}

#[test]
#[ignore = "one of its kind runs in CI: make test-ssh"]
fn certificate_traffic_is_encrypted() {
    let env = TestEnv::new();
    let authority = CertificateAuthority::new(env.folder());
    let source = authority.issue("source.example");
    let destination = authority.issue(HostPair::DESTINATION);
    let plan = MigrationPlan::new("hybrid")
        .migrate_args(&arguments(&source))
        .receive_args(&arguments(&destination));
    assert_eq!(capture_migration(&env, plan, Transport::Tls(there())), 0);
}

/// Shows that the tests above would detect unencrypted pages.
#[test]
#[ignore = "one of its kind runs in CI: make test-ssh"]
fn plaintext_traffic_shows_pages() {
    let env = TestEnv::new();
    let captured = capture_migration(
        &env,
        MigrationPlan::new("hybrid"),
        Transport::Address(there()),
    );
    assert!(captured > 100, "{captured}");
}

/// Both engines are killed in post-copy, and new ones resume from the journals, without the
/// invitation or certificates.
fn killed_and_resumed(env: &TestEnv, plan: MigrationPlan) {
    let mut guest = Guest::boot(env, busy_guest());
    // Nothing is pushed, so the migration stays in post-copy.
    let plan = plan.migrate_args(&["--background-delay", "3600000"]);
    let mut migration = guest.start_migration(&plan);
    migration.receive.wait_stderr("the guest runs here now");
    migration.migrate.kill();
    migration.receive.kill();
    migration
        .migrate
        .wait_stderr("'hikkoshi migrate' was interrupted");
    assert_eq!(migration.journals().len(), 2, "one journal per side");
    for side in ["receive", "migrate"] {
        let journal = migration.journal_folders()[0].to_str().unwrap();
        let plainly = [side, "--resume", "--journal", journal, "--plaintext"];
        let parts = [
            "this migration began with encryption",
            "leave --plaintext out",
        ];
        assert_refused(&plainly, 3, &parts);
    }
    assert_eq!(migration.journals().len(), 2);
    migration.resume_receive(&[]);
    migration.resume_migrate(&["--background-delay", "0"]);
    let (exits, finished) = migration.wait();
    guest.complete_resumed_migration(&exits, finished, "both engines killed");
}

#[test]
#[ignore = "one of its kind runs in CI: make test-ssh"]
fn resume_needs_no_invitation() {
    let env = TestEnv::new();
    let plan = MigrationPlan::new("postcopy").transport(Transport::Invitation(unique_address()));
    killed_and_resumed(&env, plan.receive_args(&["--invite"]));
}

#[test]
#[ignore = "one of its kind runs in CI: make test-ssh"]
fn resume_needs_no_certificates() {
    let env = TestEnv::new();
    let authority = CertificateAuthority::new(env.folder());
    let source = authority.issue("source.example");
    let address = unique_address();
    let (host, _) = address.split_once(':').unwrap();
    let destination = authority.issue(host);
    let plan = MigrationPlan::new("postcopy")
        .transport(Transport::Tls(address))
        .migrate_args(&arguments(&source))
        .receive_args(&arguments(&destination));
    killed_and_resumed(&env, plan);
}

fn arguments(files: &[String; 6]) -> [&str; 6] {
    files.each_ref().map(String::as_str)
}

/// `hikkoshi receive` with its QEMU and its address.
struct WaitingDestination<'a> {
    receive: Program,
    address: String,
    source: &'a Vm,
    _destination: Vm,
}

impl<'a> WaitingDestination<'a> {
    /// Starts a destination for the guest in `source`, which is to be refused.
    fn start(env: &TestEnv, guest: &'a Guest<'_>, more: &[&str]) -> Self {
        Self::start_at(&unique_address(), env, guest, more)
    }

    fn start_at(address: &str, env: &TestEnv, guest: &'a Guest<'_>, more: &[&str]) -> Self {
        let config = guest.config().clone().incoming();
        let destination = config.start(env.lab(), "there").unwrap();
        let mut command = Command::new(hikkoshi());
        command.args(["receive", "--listen", address, "--qmp"]);
        command.arg(destination.qmp_path()).args(more);
        let receive = Program::start("receive", command);
        let line = receive.wait_stderr("waiting for a guest at ");
        let address = address_in(&line).to_owned();
        Self {
            receive,
            address,
            source: guest.vm(),
            _destination: destination,
        }
    }

    fn invitation(&self) -> String {
        self.receive.wait_stdout("hikkoshi1:")
    }

    /// Asserts that `hikkoshi migrate` with these arguments is refused, and that the destination
    /// continues to wait.
    fn assert_refuses(&mut self, arguments: &[&str], code: i32, parts: &[&str]) -> Exit {
        let qmp = self.source.qmp_path().to_str().unwrap();
        let mut all = vec!["migrate", "--qmp", qmp];
        all.extend(arguments);
        let ended = assert_refused(&all, code, parts);
        assert!(!self.receive.has_exited(), "{}", self.receive.stderr());
        assert_eq!(self.source.status().unwrap(), "running");
        ended
    }
}

#[test]
fn wrong_invitations_are_refused_with_a_reason() {
    let env = TestEnv::new();
    let guest = Guest::boot(&env, busy_guest());
    let mut waiting = WaitingDestination::start(&env, &guest, &["--invite"]);
    let good = waiting.invitation();
    let said = waiting.receive.stderr();
    let where_it_is = ", from a source with the invitation: the line on standard output. It is a \
                       secret, and valid for one migration: 'hikkoshi migrate --qmp PATH --to -' \
                       reads it from standard input";
    assert!(said.contains(where_it_is), "{said}");
    let (keys, address) = good.split_once('@').unwrap();
    let (fingerprint, secret) = keys.split_once('.').unwrap();
    let other = |text: &str| {
        let last = if text.ends_with('A') { 'Q' } else { 'A' };
        format!("{}{last}", &text[..text.len() - 1])
    };
    let first = if keys.as_bytes()[10] == b'A' {
        'B'
    } else {
        'A'
    };
    let wrong_key = format!("hikkoshi1:{first}{}.{secret}@{address}", &fingerprint[11..]);
    waiting.assert_refuses(
        &["--to", &wrong_key],
        1,
        &["does not have the key of the invitation"],
    );
    let wrong_secret = format!("{fingerprint}.{}@{address}", other(secret));
    waiting.assert_refuses(
        &["--to", &wrong_secret],
        1,
        &["does not know the secret in the invitation"],
    );
    // Without an invitation.
    let plain = waiting.address.clone();
    waiting.assert_refuses(&[&plain], 1, &["requires TLS", "--to"]);
    // A truncated invitation is not tried, and not printed.
    let cut = &good[..good.len() / 2];
    let ended = waiting.assert_refuses(&["--to", cut], 2, &["the invitation is damaged"]);
    assert!(!ended.stderr.contains(&cut[12..]), "{ended:?}");
    let empty = [
        "--to -: there is no invitation on standard input",
        "hikkoshi1:",
    ];
    waiting.assert_refuses(&["--to", "-"], 2, &empty);
    for why in [
        "the invitation of another 'hikkoshi receive'",
        "does not know the secret of the invitation that is shown here",
    ] {
        waiting.receive.wait_stderr(why);
    }
    let said = waiting.receive.stderr();
    assert!(
        said.contains("connection rejected") && !said.contains(secret),
        "{said}"
    );
    guest.assert_healthy();
}

/// While one source's guest is being migrated, another source uses the same invitation.
#[test]
#[ignore = "one of its kind runs in CI: make test-ssh"]
fn an_invitation_is_accepted_once() {
    let env = TestEnv::new();
    let elsewhere = env.another();
    let guest = Guest::boot(&env, busy_guest());
    let second = Guest::boot(&elsewhere, busy_guest());
    let mut waiting = WaitingDestination::start(&env, &guest, &["--invite"]);
    waiting.source = second.vm();
    let invitation = waiting.invitation();
    let mut first = Command::new(hikkoshi());
    first.args([
        "migrate",
        "--mode",
        "precopy",
        "--bandwidth",
        "1M",
        "--to",
        "-",
        "--qmp",
    ]);
    first.arg(guest.vm().qmp_path());
    let mut first = Program::start_with_input("migrate", first, &invitation);
    waiting.receive.wait_stderr("a guest arrives from ");
    let used = ["used already"];
    waiting.assert_refuses(&["--to", &invitation], 1, &used);
    assert!(!first.has_exited(), "{}", first.stderr());
    first.interrupt();
    assert_eq!(first.wait().code, Some(1));
    assert_eq!(guest.vm().status().unwrap(), "running");
    guest.assert_healthy();
    second.assert_healthy();
}

#[test]
fn tls_on_one_side_only_is_reported() {
    let env = TestEnv::new();
    let guest = Guest::boot(&env, busy_guest());
    let mut plain = WaitingDestination::start(&env, &guest, &[]);
    let authority = CertificateAuthority::new(env.folder());
    let source = authority.issue("source.example");
    let mut with = vec![plain.address.clone()];
    with.extend(source.iter().cloned());
    let with: Vec<&str> = with.iter().map(String::as_str).collect();
    plain.assert_refuses(&with, 1, &["both sides must use TLS, or both --plaintext"]);
    guest.assert_healthy();
}

#[test]
fn invalid_certificates_are_refused() {
    let env = TestEnv::new();
    let guest = Guest::boot(&env, busy_guest());
    let [ours, theirs] = ["ours", "theirs"].map(|name| {
        let folder = env.folder().join(name);
        std::fs::create_dir(&folder).unwrap();
        CertificateAuthority::new(folder)
    });
    let address = unique_address();
    let (host, _) = address.split_once(':').unwrap();
    let destination = ours.issue(host);
    let mut waiting =
        WaitingDestination::start_at(&address, &env, &guest, &arguments(&destination));
    let mut assert_refuses = |files: &[String; 6], code, parts: &[&str]| {
        let mut all = vec![address.as_str()];
        all.extend(arguments(files));
        waiting.assert_refuses(&all, code, parts);
    };
    assert_refuses(
        &theirs.issue("source.example"),
        1,
        &["certificate is not accepted"],
    );
    assert_refuses(
        &ours.expired("source.example"),
        2,
        &[
            "it expired on 2001-01-01 00:00:00 UTC",
            "this host's clock says",
        ],
    );
    // Our certificate with their authority: the source accepts the destination, but is not accepted
    // by it.
    let mut mixed = theirs.issue("source.example");
    mixed[1].clone_from(&ours.issue("x.example")[1]);
    assert_refuses(&mixed, 1, &["does not accept this side"]);
    let mut missing = ours.issue("source.example");
    missing[3] = "/nowhere/there".to_owned();
    assert_refuses(&missing, 2, &["/nowhere/there", "certificate"]);
    missing.swap(3, 5);
    assert_refuses(&missing, 2, &["there is no certificate in"]);
    guest.assert_healthy();
}

#[test]
fn plaintext_beyond_this_machine_needs_an_option() {
    let parts = ["is beyond this host", "--to INVITATION", "--plaintext"];
    assert_refused(
        &["migrate", "192.0.2.1:7000", "--qmp", "/nowhere"],
        2,
        &parts,
    );
}

/// Checks the threads of `pid` whose names begin with one of `names`: each exists, and has no
/// capabilities and few system calls.
fn confined(pid: u32, names: &[&str]) -> Result<(), String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).map_err(|error| error.to_string())?;
    // A thread that ends meanwhile is skipped.
    let threads: Vec<String> = tasks
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("status")).ok())
        .collect();
    for name in names {
        // proc_pid_status(5)
        let named = format!("Name:\t{name}");
        let mut these = threads
            .iter()
            .filter(|status| status.starts_with(&named))
            .peekable();
        these.peek().ok_or(format!("no {name}"))?;
        let given_up = ["CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"];
        if let Some(free) = these.find(|status| !given_up.iter().all(|fact| status.contains(fact)))
        {
            return Err(free.clone());
        }
    }
    Ok(())
}

/// In the middle of post-copy all threads that read messages of the other side are confined; the
/// migration succeeds nevertheless.
fn moved_by_confined_threads(guest: &mut Guest<'_>, plan: MigrationPlan) -> [JsonReport; 2] {
    // Then the source pushes pages. (A number of messages with pages does not tell: a huge page
    // that the destination needs to load the device state is sent in many.)
    let migration: Migration =
        guest.start_migration(&plan.hold_at(Breakpoint::after(MessageKind::GuestResumed)));
    migration.wait_held();
    eventually("confined", || {
        let source = ["src-control", "src-urgent", "src-push-"];
        confined(migration.migrate.pid(), &source)?;
        let destination = ["dst-control", "dst-urgent", "dst-back-"];
        confined(migration.receive.pid(), &destination)
    });
    migration.relay().release();
    let (exits, finished) = migration.wait();
    guest.complete_migration(&exits, finished, "running");
    exits.json_reports.map(Option::unwrap)
}

#[test]
#[ignore = "one of its kind runs in CI: make test-ssh"]
fn confined_threads_assemble_huge_pages() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest().ram(Ram::huge_2m(256)));
    let plan = MigrationPlan::new("postcopy").migrate_args(&["--links", "2"]);
    let [source, _] = moved_by_confined_threads(&mut guest, plan);
    assert!(source.pages.urgent > 0 && source.pages.background > 0);
}

#[test]
#[ignore = "one of its kind runs in CI: make test-ssh"]
fn huge_pages_are_rebuilt_beside_confined_threads() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    let plan = MigrationPlan::new("postcopy").receive_args(&["--collapse=2G"]);
    let before = free_huge_pages();
    let [_, there] = moved_by_confined_threads(&mut guest, plan);
    let collapse = there.collapse.clone().unwrap();
    assert!(collapse.tried > 0, "{collapse:?}");
    hikkoshi_tests::assert_rebuilt(&collapse, before);
}
