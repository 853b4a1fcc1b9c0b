//! Programs of two releases move a guest together, and the new one resumes what the old one has
//! begun: what `CONTRIBUTING.md` promises.

use MessageKind::Pages;
use hikkoshi_tests::{
    Breakpoint, Guest, MessageKind, MigrationPlan, TestEnv, Transport, Victim, busy_guest,
    hikkoshi, release_before,
};

#[test]
#[ignore = "two releases: make test-release-before"]
fn two_releases_move_a_guest_in_each_mode() {
    let (before, now) = (release_before(), hikkoshi());
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    for programs in [[&before, &now], [&now, &before]] {
        for mode in ["precopy", "postcopy", "hybrid"] {
            let plan = MigrationPlan::new(mode).transport(Transport::Tcp);
            guest.migrate(&plan.begun_by(programs.map(AsRef::as_ref)));
        }
    }
}

#[test]
#[ignore = "two releases: make test-release-before"]
fn what_the_release_before_has_begun_is_resumed() {
    let before = release_before();
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    for mode in ["postcopy", "hybrid"] {
        let plan = MigrationPlan::new(mode).begun_by([&before, &before]);
        let at = Breakpoint::after(Pages).nth(300);
        Victim::Both.interrupt(&mut guest, plan, at);
    }
    guest.migrate(&MigrationPlan::new("hybrid"));
}
