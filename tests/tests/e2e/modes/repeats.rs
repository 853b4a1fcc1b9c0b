//! What was sent twice, and why: the numbers of `--json`, of the status and of a relay.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_account::Repeats;
use hikkoshi_lab::{VmConfig, Workload};
use hikkoshi_status::{Recording, StatusEntryKind, StatusFolder};
use hikkoshi_tests::{
    Guest, MessageKind, Migration, MigrationPlan, TestEnv, Transport, eventually,
};
use std::time::Duration;

/// The last state of the source, from its recording.
fn recorded(folder: &std::path::Path) -> Option<Repeats> {
    let entries = StatusFolder::in_run_folder(folder).entries().unwrap();
    let of_source = |name: &str| name.starts_with("source");
    let mut files = entries
        .iter()
        .filter(|entry| entry.kind == StatusEntryKind::File);
    let file = files.find(|entry| of_source(&entry.name)).unwrap();
    Recording::read(&file.path).unwrap().state.unwrap().repeats
}

/// A guest that writes all the time is moved in two rounds and post-copy, in which all links break
/// once. A relay counts each page that passes.
#[test]
#[ignore = "long: make drills"]
fn pages_that_are_sent_twice_are_counted() {
    let env = TestEnv::new();
    let workload = Workload::verify(64).rate(20_000);
    let mut guest = Guest::boot(&env, VmConfig::new().workload(workload));
    // On a busy machine, post-copy may be over before the links break.
    let broke = (0..5).any(|_| links_break_in_postcopy(&mut guest));
    assert!(broke, "the links broke in post-copy");
}

/// Moves the guest, and returns whether the links broke in post-copy.
fn links_break_in_postcopy(guest: &mut Guest<'_>) -> bool {
    let plan = MigrationPlan::new("hybrid")
        .transport(Transport::Tcp)
        .migrate_args(&["--rounds", "2", "--retry-for", "200"])
        .receive_args(&["--retry-for", "200"])
        .delay(MessageKind::Pages, Duration::from_millis(1));
    let mut migration = guest.start_migration(&plan);
    let seen = migration.relay().sent_pages();
    let passed = |migration: &mut Migration, kind, count| {
        eventually("messages in post-copy", || {
            let passed = migration.relay().seen(kind);
            match passed >= count || migration.has_succeeded() {
                true => Ok(()),
                false => Err(format!("{passed} of {kind:?}")),
            }
        });
    };
    passed(&mut migration, MessageKind::GuestResumed, 1);
    let pages = migration.relay().seen(MessageKind::Pages);
    passed(&mut migration, MessageKind::Pages, pages + 20);
    migration.relay().reset_links();
    let folder = migration.journal_folders()[0].clone();
    let (exits, finished) = migration.wait();
    let report = exits.json_reports[0].clone().unwrap();
    guest.complete_resumed_migration(&exits, finished, "links reset once");

    let counted = report.repeats.unwrap();
    let passed = seen.repeats();
    assert_eq!(
        (counted.precopy, counted.stale),
        (passed.precopy, passed.stale)
    );
    assert_eq!(counted.host_page.pages, 0, "{counted:?}");
    assert!(
        counted.precopy.pages > 0 && counted.stale.pages > 0,
        "{counted:?}"
    );
    // What was on its way when the links broke has not passed.
    assert!(
        counted.resent.pages >= passed.resent.pages,
        "{counted:?} {passed:?}"
    );
    assert!(report.outages.len() <= 1, "{:?}", report.outages);

    // Bytes: all that was sent with content is what was sent first, and the repeats.
    assert_eq!(report.bytes.precopy, seen.precopy_bytes());
    let again = [
        counted.precopy,
        counted.stale,
        counted.host_page,
        counted.resent,
        counted.requested,
    ];
    let again: u64 = again.iter().map(|repeated| repeated.bytes).sum();
    let pages = &report.pages;
    let with_content = pages.precopy + pages.urgent + pages.background;
    assert_eq!(
        with_content * 4096,
        seen.first_with_content() * 4096 + again
    );
    assert_eq!(recorded(&folder), Some(counted));
    report.outages.len() == 1
}
