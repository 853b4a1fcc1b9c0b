//! Programs of two releases move a guest together, and the new one resumes what the old one has
//! begun: what `CONTRIBUTING.md` promises.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use std::path::{Path, PathBuf};
use std::process::Command;

use MessageKind::{Commit, Pages};
use hikkoshi_tests::{
    Breakpoint, Guest, MessageKind, MigrationPlan, TestEnv, Transport, Victim, busy_guest,
    hikkoshi, release_before,
};

/// The minor version of a program, such as `0.1`.
fn minor_version(program: &Path) -> String {
    let output = Command::new(program).arg("--version").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let version = text.split_whitespace().nth(1).unwrap();
    version.rsplit_once('.').unwrap().0.to_owned()
}

#[test]
#[ignore = "two releases: make test-release-before"]
fn two_releases_move_a_guest_in_each_mode() {
    let (before, now): (PathBuf, PathBuf) = (release_before(), hikkoshi());
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    for programs in [[&before, &now], [&now, &before]] {
        for mode in ["precopy", "postcopy", "hybrid"] {
            let plan = MigrationPlan::new(mode).transport(Transport::Tcp);
            let plan = plan.begun_by(programs.map(AsRef::as_ref));
            let (exits, finished) = guest.start_migration(&plan).wait();
            guest.complete_resumed_migration(&exits, finished, mode);
        }
    }
}

/// Within a minor version.
#[test]
#[ignore = "two releases: make test-release-before"]
fn what_the_release_before_has_begun_is_resumed() {
    let before = release_before();
    let versions = [&before, &hikkoshi()].map(|program| minor_version(program));
    if versions[0] != versions[1] {
        println!(
            "SKIPPED: {versions:?} are different minor versions, for which it is not promised"
        );
        return;
    }
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    for (mode, at) in [
        ("postcopy", Breakpoint::after(Pages).nth(300)),
        ("hybrid", Breakpoint::after(Commit)),
    ] {
        let plan = MigrationPlan::new(mode).begun_by([&before, &before]);
        Victim::Both.interrupt(&mut guest, plan, at);
    }
    guest.migrate(&MigrationPlan::new("hybrid"));
}
