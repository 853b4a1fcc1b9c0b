//! A QEMU of a version that is newer than all that hikkoshi was tested with.
//!
//! It is not refused as such. Unknown types are (`known_types.rs`), and so is a text of another
//! form (`info network`, `info ramblock`, …). This file checks what else can be found out while the
//! guest runs: that QEMU has the commands, and that it drains. `docs/devices.md` has a table of
//! everything that hikkoshi relies on.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Refusal, Side, needs_drain};
use crate::qmp::{Client, QmpError, Version};

/// The newest QEMU that the tests have: its first two numbers.
pub(super) const NEWEST_TESTED: (u32, u32) = (11, 1);

/// What its user should know; `None` for a version that is not newer than the tested ones.
pub(crate) fn note(version: Version) -> Option<String> {
    let (major, minor) = NEWEST_TESTED;
    is_untested(version).then(|| {
        format!(
            "this is QEMU {version}, and hikkoshi was tested with QEMU up to {major}.{minor}: what \
             it relies on is checked as far as possible, and unknown types of devices are refused"
        )
    })
}

fn is_untested(version: Version) -> bool {
    (version.major, version.minor) > NEWEST_TESTED
}

/// Commands that are needed after the guest was paused, or to resume it.
fn needed(side: Side) -> &'static [&'static str] {
    match side {
        Side::Source => &["cont", "remove-fd", "stop", "xen-save-devices-state"],
        Side::Destination => &["cont", "migrate-incoming", "query-migrate", "stop"],
    }
}

/// The commands that an untested QEMU does not have.
pub(super) fn check_commands(client: &mut Client, side: Side) -> Result<Option<Refusal>, QmpError> {
    if !is_untested(client.version()) {
        return Ok(None);
    }
    let answer = client.execute("query-commands", json!({}))?;
    let rows = answer
        .as_array()
        .ok_or_else(|| QmpError::unexpected("query-commands", "not a list"))?;
    let has = |name: &str| {
        rows.iter()
            .any(|row| row.get("name").and_then(Value::as_str) == Some(name))
    };
    let missing: Vec<_> = needed(side)
        .iter()
        .copied()
        .filter(|name| !has(name))
        .collect();
    let version = client.version();
    Ok((!missing.is_empty()).then(|| Refusal::NoCommands {
        version,
        commands: missing.join(", "),
    }))
}

/// Whether an untested QEMU drains its disks, if the guest has one for which rounds have to.
pub(crate) fn check_drain(client: &mut Client) -> Result<Option<Refusal>, QmpError> {
    if !is_untested(client.version()) || !needs_drain(client)? {
        return Ok(None);
    }
    let why = match try_drains(client, DRAIN) {
        Ok(Drains::Yes) => return Ok(None),
        Ok(Drains::No) => "it did not wait for a read in progress".to_owned(),
        Ok(Drains::Unknown) => {
            "each read ended before the drain: is the host overloaded?".to_owned()
        }
        Err(QmpError::Refused {
            command,
            description,
            ..
        }) => {
            format!("QEMU refused the command {command}: {description}")
        }
        Err(error) => return Err(error),
    };
    let version = client.version();
    Ok(Some(Refusal::DoesNotDrain { version, why }))
}

/// A command and its arguments.
pub(crate) type Command = (&'static str, fn() -> Value);

/// An empty `transaction` drains all block devices and does nothing else (`qmp_transaction` in
/// QEMU's `blockdev.c`). QEMU does not document it; it was tested with 7.2, 10.0 and 11.1.
pub(crate) const DRAIN: Command = ("transaction", || json!({ "actions": [] }));

/// Whether a command drains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Drains {
    Yes,
    No,
    /// The trials did not show it.
    Unknown,
}

/// How often a drain must have waited.
const TRIALS: usize = 3;

/// How long a read takes, ms: the next one if the host is too busy for the one before. The guest's
/// own requests wait as long.
const READS_MS: [u64; 3] = [20, 80, 320];

/// Names of our job and nodes.
const JOB: &str = "hikkoshi-drain";
const SLOW: &str = "hikkoshi-drain-from";
const SINK: &str = "hikkoshi-drain-to";

/// How long to wait for the end of the job.
const JOB_LIMIT: Duration = Duration::from_secs(10);

/// Tries whether a command waits for a read in progress: that of a job of ours, from a block node
/// of ours, which has no file and is slow (`null-co`). All commands are sent at once. The job,
/// which reads once, has not ended when it is looked at right before the command, and has ended
/// right after it.
///
/// The read is QEMU's own. That the drain waits for the guest's as well follows from QEMU's code:
/// `bdrv_drain_all` counts the requests of all nodes.
pub(super) fn try_drains(client: &mut Client, command: Command) -> Result<Drains, QmpError> {
    // Those of a killed engine.
    remove(client)?;
    let mut waited = 0;
    for ms in READS_MS {
        while waited < TRIALS {
            let found = try_once(client, command, ms);
            remove(client)?;
            match found? {
                Drains::Yes => waited += 1,
                Drains::No => return Ok(Drains::No),
                Drains::Unknown => break,
            }
        }
    }
    Ok(match waited {
        TRIALS => Drains::Yes,
        _ => Drains::Unknown,
    })
}

fn try_once(client: &mut Client, command: Command, ms: u64) -> Result<Drains, QmpError> {
    // One cluster of a copy.
    let node = |name| json!({ "driver": "null-co", "node-name": name, "size": 1 << 16 });
    let mut slow = node(SLOW);
    slow["latency-ns"] = json!(ms * 1_000_000);
    let copy = json!({ "job-id": JOB, "device": SLOW, "target": SINK, "sync": "full" });
    let submitted = client.submit([
        ("blockdev-add", slow),
        ("blockdev-add", node(SINK)),
        ("blockdev-backup", copy),
        ("query-jobs", json!({})),
        ("query-jobs", json!({})),
        (command.0, command.1()),
        ("query-jobs", json!({})),
    ])?;
    // Each answer has to be taken, also after an error.
    let answers = submitted.map(|submitted| client.answer(&submitted));
    let [slow, sink, copy, started, before, executed, after] = answers;
    for answer in [slow, sink, copy, executed] {
        answer?;
    }
    Ok(
        match (
            is_running(&started?)?,
            is_running(&before?)?,
            is_running(&after?)?,
        ) {
            (true, true, false) => Drains::Yes,
            (true, true, true) => Drains::No,
            _ => Drains::Unknown,
        },
    )
}

/// Whether our job is in this list. QEMU removes it when it has ended.
fn is_running(jobs: &Value) -> Result<bool, QmpError> {
    let jobs = jobs
        .as_array()
        .ok_or_else(|| QmpError::unexpected("query-jobs", "not a list"))?;
    let mut ids = jobs.iter().filter_map(|job| job.get("id"));
    Ok(ids.any(|id| id == JOB))
}

/// Waits for the end of our job, and removes our nodes.
fn remove(client: &mut Client) -> Result<(), QmpError> {
    let deadline = Instant::now() + JOB_LIMIT;
    while is_running(&client.execute("query-jobs", json!({}))?)? && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    for name in [SLOW, SINK] {
        match client.execute("blockdev-del", json!({ "node-name": name })) {
            Err(error) if !error.is_refusal() => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qmp::scripted;

    #[test]
    fn only_newer_versions_are_untested() {
        for (major, minor) in [(7, 2), (10, 0), (11, 1)] {
            assert_eq!(note(Version::new(major, minor, 99)), None);
        }
        for (major, minor) in [(11, 2), (12, 0)] {
            let text = note(Version::new(major, minor, 3)).unwrap();
            let expected =
                format!("QEMU {major}.{minor}.3, and hikkoshi was tested with QEMU up to 11.1");
            assert!(text.contains(&expected), "{text}");
        }
    }

    /// What is found of a QEMU of version 99 with a disk that pins pages, whose job has or has not
    /// ended in the answers to `query-jobs`.
    fn found(running: &'static [bool]) -> Option<String> {
        let mut running = running.iter();
        let (mut client, qemu) = scripted::session_of(99, move |command| match command {
            "query-named-block-nodes" => Ok(json!([{
                "node-name": "n", "drv": "file", "file": "/disk", "cache": { "direct": true }
            }])),
            "query-jobs" => Ok(match running.next() {
                Some(true) => json!([{ "id": JOB }]),
                _ => json!([]),
            }),
            "blockdev-add" | "blockdev-backup" | "blockdev-del" | "transaction" => Ok(json!({})),
            _ => Err("not expected"),
        });
        let found = check_drain(&mut client).unwrap();
        drop(client);
        let commands = qemu.join().unwrap();
        assert_eq!(
            commands.last().map(String::as_str),
            Some("blockdev-del"),
            "nothing is left"
        );
        found.map(|refusal| refusal.to_string())
    }

    #[test]
    fn a_qemu_that_does_not_drain_is_refused_for_rounds() {
        // The list before, three in the trial, one afterwards.
        let waited = [true, true, false, false];
        let all = [&[false][..], &waited, &waited, &waited].concat();
        assert_eq!(found(all.leak()), None);
        let text = found(&[false, true, true, true, true, false]).unwrap();
        for part in [
            "QEMU 99.0.0",
            "did not wait",
            "--mode postcopy",
            "up to 11.1",
        ] {
            assert!(text.contains(part), "{part:?} is not in: {text}");
        }
        // Once is not enough: the read may have ended by itself.
        let text = found(&[false, true, true, false, false, true, true, true, false]).unwrap();
        assert!(text.contains("did not wait"), "{text}");
        // It had ended before the drain, each time.
        let text = found(&[]).unwrap();
        assert!(text.contains("overloaded"), "{text}");
    }

    #[test]
    fn commands_that_a_qemu_lacks_are_named() {
        let check = |side, names: &[&str]| {
            let rows: Vec<_> = names.iter().map(|name| json!({ "name": name })).collect();
            let (mut client, _qemu) = scripted::session_of(99, move |_| Ok(json!(rows)));
            check_commands(&mut client, side)
                .unwrap()
                .map(|refusal| refusal.to_string())
        };
        assert_eq!(check(Side::Source, needed(Side::Source)), None);
        let text = check(Side::Source, &["stop", "cont", "remove-fd"]).unwrap();
        assert!(
            text.contains("QEMU 99.0.0") && text.contains("xen-save-devices-state"),
            "{text}"
        );
        assert!(!text.contains("stop"), "{text}");
        assert!(
            check(Side::Destination, &[])
                .unwrap()
                .contains("migrate-incoming")
        );
    }
}
