//! Engines of different revisions work together: `make test-upgrade` builds an earlier one.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::{VmConfig, Workload};
use hikkoshi_tests::{Guest, MigrationPlan, TestEnv, Transport, hikkoshi, log, unique_address};
use std::fs;
use std::path::{Path, PathBuf};

fn busy_guest() -> VmConfig {
    VmConfig::new().workload(Workload::verify(48).rate(8000).option("every_ms", 200))
}

/// A program that `make test-upgrade` has built.
fn built(variable: &str) -> PathBuf {
    let path = PathBuf::from(std::env::var_os(variable).unwrap_or_default());
    assert!(
        path.exists(),
        "{variable} names a program, {}: make test-upgrade",
        path.display()
    );
    path
}

/// The program of the earlier revision.
fn earlier() -> PathBuf {
    built("HIKKOSHI_EARLIER")
}

/// This revision's program with one more version of the protocol, and one more capability.
fn later() -> PathBuf {
    built("HIKKOSHI_LATER")
}

/// A later program without the versions of this revision.
fn apart() -> PathBuf {
    built("HIKKOSHI_APART")
}

/// The programs of both sides. They are read from files when an engine starts, so that another one
/// can resume.
struct Programs {
    source: PathBuf,
    destination: PathBuf,
}

impl Programs {
    fn new(env: &TestEnv, source: &Path, destination: &Path) -> Self {
        let programs = Self {
            source: env.folder().join("source-program"),
            destination: env.folder().join("destination-program"),
        };
        programs.set(source, destination);
        programs
    }

    fn set(&self, source: &Path, destination: &Path) {
        fs::write(&self.source, source.to_str().unwrap()).unwrap();
        fs::write(&self.destination, destination.to_str().unwrap()).unwrap();
    }

    /// A plan whose engines are these programs.
    fn plan(&self, mode: &'static str) -> MigrationPlan {
        // The plan adds the path of today's program, which is the first argument here.
        let script = "program=$(cat \"$0\"); shift; exec \"$program\" \"$@\"";
        let launcher =
            |file: &Path| ["sh", "-c", script, file.to_str().unwrap()].map(str::to_owned);
        let (source, destination) = (launcher(&self.source), launcher(&self.destination));
        MigrationPlan::new(mode)
            .migrate_launcher(&source.each_ref().map(String::as_str))
            .receive_launcher(&destination.each_ref().map(String::as_str))
    }
}

#[test]
#[ignore = "builds an earlier revision: make test-upgrade"]
fn guests_move_between_revisions_in_both_directions_and_all_modes() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    let (earlier, today, later) = (earlier(), hikkoshi(), later());
    for (source, destination) in [
        (&earlier, &today),
        (&today, &earlier),
        (&later, &today),
        (&today, &later),
        (&earlier, &later),
        (&later, &earlier),
    ] {
        let programs = Programs::new(&env, source, destination);
        for mode in ["precopy", "postcopy", "hybrid"] {
            let invited = Transport::Invitation(unique_address());
            for plan in [
                programs.plan(mode),
                programs
                    .plan(mode)
                    .transport(invited)
                    .receive_args(&["--invite"]),
            ] {
                let (exits, finished) = guest.start_migration(&plan).wait();
                exits.assert_source(0, &[]);
                exits.assert_destination(0, &[]);
                let what = format!("{mode}, {} → {}", source.display(), destination.display());
                guest.move_to_destination(finished, &what);
            }
        }
    }
}

/// The guest stays, and both sides say which one is older.
#[test]
#[ignore = "builds another version: make test-upgrade"]
fn programs_without_a_common_version_of_the_protocol_move_nothing() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    let (apart, today) = (apart(), hikkoshi());
    for (source, destination) in [(&apart, &today), (&today, &apart)] {
        let programs = Programs::new(&env, source, destination);
        let invited = Transport::Invitation(unique_address());
        for plan in [
            programs.plan("hybrid"),
            programs
                .plan("hybrid")
                .transport(invited)
                .receive_args(&["--invite"]),
        ] {
            let mut migration = guest.start_migration(&plan);
            let parts = [
                "agreeing with the peer on a protocol version",
                "update the older side",
            ];
            migration.migrate.wait().assert(1, &parts);
            for part in parts {
                migration.receive.wait_stderr(part);
            }
            migration.receive.interrupt();
            let (_, finished) = migration.wait();
            let what = format!("{} → {}", source.display(), destination.display());
            guest.assert_stayed(finished, &what);
        }
    }
}

#[test]
#[ignore = "builds an earlier revision: make test-upgrade"]
fn a_migration_of_an_earlier_revision_is_resumed_after_the_upgrade() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    let (earlier, today) = (earlier(), hikkoshi());
    let programs = Programs::new(&env, &earlier, &earlier);
    for (source, destination) in [(&today, &today), (&today, &earlier), (&earlier, &today)] {
        programs.set(&earlier, &earlier);
        // Nothing is pushed, so the migration stays in post-copy.
        let plan = programs
            .plan("postcopy")
            .migrate_args(&["--background-delay", "3600000"]);
        let mut migration = guest.start_migration(&plan);
        migration.receive.wait_stderr("the guest runs here now");
        migration.migrate.kill();
        migration.receive.kill();
        programs.set(source, destination);
        migration.resume_receive(&[]);
        migration.resume_migrate(&["--background-delay", "0"]);
        let (exits, finished) = migration.wait();
        let what = format!(
            "resumed by {} → {}",
            source.display(),
            destination.display()
        );
        log(&what);
        guest.complete_resumed_migration(&exits, finished, &what);
    }
}
