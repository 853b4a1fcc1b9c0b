//! What an engine reports while a guest moves: on a terminal, and to a pipe that nobody reads.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use MessageKind::*;
use hikkoshi_tests::{
    Breakpoint, Guest, MessageKind, MigrationPlan, Terminal, TestEnv, Transport, busy_guest,
    eventually,
};

/// What only a progress line has.
const PARTS: [&str; 4] = ["pre-copy, round", "%", "MiB/s", "=="];

fn is_progress(row: &str) -> bool {
    PARTS.iter().any(|part| row.contains(part))
}

/// A person makes the window narrower and wider while a guest moves, and the links are lost while
/// nobody reads what the engines report.
///
/// A thread of an engine that waited for a reader would not connect again, while the guest waits
/// for its pages.
#[test]
#[ignore = "several moves: make test-control"]
fn a_move_does_not_depend_on_who_reads() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    resized_terminal(&mut guest);
    links_lost_while_nobody_reads(&mut guest);
}

fn resized_terminal(guest: &mut Guest<'_>) {
    let terminal = Terminal::new(120);
    // It does not end by itself.
    let plan = MigrationPlan::new("precopy")
        .migrate_args(&["--bandwidth", "2M", "--max-downtime", "1"])
        .migrate_on(&terminal);
    let migration = guest.start_migration(&plan);
    for (columns, expected) in [
        (120, " pre-copy, round "),
        (40, "pre-copy, round "),
        (12, "%"),
        (90, " pre-copy, round "),
        (26, "pre-copy, round "),
        (130, " pre-copy, round "),
    ] {
        terminal.resize(columns);
        eventually("one progress line of the terminal's width", || {
            let rows = terminal.rows();
            let (last, above) = rows.split_last().ok_or("nothing")?;
            let fits = last.contains(expected) && last.len() < usize::from(columns);
            match fits && !above.iter().any(|row| is_progress(row)) {
                true => Ok(()),
                false => Err(format!("{columns} columns: {rows:#?}")),
            }
        });
    }
    migration.migrate.interrupt();
    let (exits, finished) = migration.wait();
    assert_eq!(exits.migrate.code, Some(1), "{exits:?}");
    // The program has written everything when it exits, and the terminal shows it soon.
    eventually("the end on the terminal", || {
        let rows = terminal.rows();
        let ended = rows
            .iter()
            .any(|row| row.contains("the guest still runs at the source"));
        match ended && !rows.iter().any(|row| is_progress(row)) {
            true => Ok(()),
            false => Err(format!("{rows:#?}")),
        }
    });
    guest.assert_stayed(finished, "cancelled on a terminal");
}

fn links_lost_while_nobody_reads(guest: &mut Guest<'_>) {
    let patient = ["--retry-for", "200"];
    let plan = MigrationPlan::new("postcopy")
        .transport(Transport::Tcp)
        .migrate_args(&patient)
        .receive_args(&patient)
        .hold_at(Breakpoint::after(Pages).nth(300));
    let migration = guest.start_migration(&plan);
    migration.wait_held();
    migration.migrate.block_stderr();
    migration.receive.block_stderr();
    migration.relay().reset_links();
    let (exits, finished) = migration.wait();
    for engine in [&exits.migrate, &exits.receive] {
        assert_eq!(engine.code, Some(0), "{engine:?}");
        assert!(
            !engine.stderr.contains("reconnected"),
            "nobody has read: {engine:?}"
        );
    }
    guest.complete_resumed_migration(&exits, finished, "links lost while nobody reads");
}
