//! A QEMU that another migration uses, has used or is prepared for.

use std::os::unix::net::UnixListener;

use error_reporter::Report;
use hikkoshi_engine::{DestinationGuest, SourceGuest};
use hikkoshi_qemu::QemuDestination;
use serde_json::json;

use crate::support::{Qemu, eventually, print_always, says, with_each};

use super::refused;

#[test]
fn conflicting_capabilities() {
    with_each(|program| {
        for name in ["postcopy-ram", "background-snapshot"] {
            let qemu = Qemu::usual(program, "");
            let set = json!({ "capabilities": [{ "capability": name, "state": true }] });
            let accepted = qemu.client().execute("migrate-set-capabilities", set);
            if let Err(error) = accepted {
                // QEMU first checks the kernel's support.
                print_always(&format!("NOT TESTED with QEMU {}: {error}", program.label));
                continue;
            }
            refused(&qemu, &[name, "turn it off"]);
        }
    });
}

/// Bytes of content in a guest's memory, more than a socket holds.
const CONTENT: usize = 4 << 20;

#[test]
fn a_migration_in_progress_and_one_that_has_ended() {
    with_each(|program| {
        let folder = tempfile::tempdir().unwrap();
        let content = folder.path().join("content");
        std::fs::write(&content, vec![7; CONTENT]).unwrap();
        let loader = format!(
            "-vga std -device loader,addr=0x400000,force-raw=on,file={}",
            content.display()
        );
        let qemu = Qemu::usual(program, &loader);
        // The stream is not read, and the first round does not fit into the socket: while QEMU sent
        // the last one, it would answer nothing.
        let deaf = folder.path().join("deaf");
        let _listener = UnixListener::bind(&deaf).unwrap();
        let uri = format!("unix:{}", deaf.display());
        qemu.execute("migrate", json!({ "uri": uri }));
        eventually("the migration is in progress", || {
            qemu.execute("query-migrate", json!({}))["status"] == "active"
        });
        refused(&qemu, &["already has a migration", "migrate_cancel"]);
        qemu.execute("migrate_cancel", json!({}));
        eventually("the migration is cancelled", || {
            qemu.execute("query-migrate", json!({}))["status"] == "cancelled"
        });
        // A cancelled migration does not prevent a move, a completed one does.
        qemu.source();
        let fast = json!({ "max-bandwidth": 1u64 << 40 });
        qemu.execute("migrate-set-parameters", fast);
        qemu.execute("migrate", json!({ "uri": "exec:cat > /dev/null" }));
        eventually("the migration completes", || qemu.state() == "postmigrate");
        let error = refused(&qemu, &["postmigrate", "never resume it here", "cont"]);
        assert!(error.may_be_handed_over());
        qemu.execute("cont", json!({}));
        qemu.source();
    });
}

#[test]
fn the_wrong_side() {
    with_each(|program| {
        let waits = Qemu::usual(program, "-incoming defer");
        refused(&waits, &["inmigrate", "destination's socket"]);
        let runs = Qemu::usual(program, "");
        let error = QemuDestination::attach(&runs.qmp()).unwrap_err();
        says(&error, &["-incoming defer"]);
        assert_eq!(runs.state(), "running");
    });
}

#[test]
fn a_dirty_log_of_a_killed_run_is_closed_only_at_the_source() {
    with_each(|program| {
        for incoming in [false, true] {
            let more = if incoming { "-incoming defer" } else { "" };
            let qemu = Qemu::usual(program, more);
            let left = hikkoshi_userfault::RemoteUserfault::create(
                qemu.pid(),
                hikkoshi_userfault::Features::FOR_DIRTY_LOG,
            )
            .unwrap();
            left.leave_open_on_drop();
            drop(left);
            assert_eq!(qemu.descriptors("userfaultfd"), 1);
            if incoming {
                let error = QemuDestination::attach(&qemu.qmp()).unwrap_err();
                let said = Report::new(&error).to_string();
                assert!(said.contains("restart this QEMU"), "{said}");
                assert_eq!(qemu.descriptors("userfaultfd"), 1);
            } else {
                let mut source = qemu.source();
                assert_eq!(qemu.descriptors("userfaultfd"), 0);
                source.start_dirty_log().unwrap();
                assert_eq!(qemu.descriptors("userfaultfd"), 1);
            }
        }
    });
}

#[test]
fn a_destination_that_has_changed() {
    with_each(|program| {
        let qemu = Qemu::usual(program, "-incoming defer");
        let mut destination = qemu.destination();
        let folder = tempfile::tempdir().unwrap();
        let uri = format!("unix:{}/incoming", folder.path().display());
        qemu.execute("migrate-incoming", json!({ "uri": uri }));
        let error = destination
            .prepare()
            .and_then(|()| destination.load_device_state(vec![0; 100]))
            .unwrap_err();
        says(&error, &["QEMU refused"]);
    });
}
