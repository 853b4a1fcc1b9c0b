//! A QEMU of a version that hikkoshi was not tested with.
//!
//! It is not refused as such. Unknown types are (`known_types.rs`), and so is a text of another
//! form (`info network`, `info ramblock`, …). This file checks what else can be found out while the
//! guest runs: that QEMU has the commands, and that it drains. `docs/devices.md` has a table of
//! everything that hikkoshi relies on.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use hikkoshi_account::Side;

use super::pinning::needs_drain;
use super::refusal::Refusal;
use super::tested_versions::{TESTED_NAMES, is_untested};
use crate::qmp::{Client, QmpError, Version};

/// What its user should know; `None` for a tested version.
pub(crate) fn note(version: Version) -> Option<String> {
    is_untested(version).then(|| {
        format!(
            "this is QEMU {version}, and hikkoshi was tested with QEMU {TESTED_NAMES}: what it \
             relies on is checked as far as possible, and unknown types of devices are refused"
        )
    })
}

/// What its user should know of the QEMU with this version that libvirt starts, whose monitor
/// hikkoshi cannot use yet; `None` for a tested version.
pub fn untested_libvirt_qemu(major: u32, minor: u32, micro: u32) -> Option<String> {
    let version = Version::new(major, minor, micro);
    is_untested(version).then(|| {
        format!(
            "libvirt's QEMU here is {version}, and hikkoshi was tested with QEMU {TESTED_NAMES}: what \
             it relies on is not checked in a QEMU that libvirt starts"
        )
    })
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

/// Whether an untested QEMU drains its disks, if the guest has one for which rounds have to. It is
/// not tried again if `drains` says so, which is set when a trial has shown it.
pub(crate) fn check_drain(
    client: &mut Client,
    drains: &mut bool,
) -> Result<Option<Refusal>, QmpError> {
    if *drains || !is_untested(client.version()) || !needs_drain(client)? {
        return Ok(None);
    }
    let why = match try_drains(client, DRAIN) {
        Ok(Drains::Yes) => {
            *drains = true;
            return Ok(None);
        }
        Ok(Drains::No) => "it did not wait for a read in progress".to_owned(),
        Ok(Drains::Unknown) => {
            "no trial showed whether it waits for a read: is the host overloaded?".to_owned()
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

/// Removes what the trial of a killed engine has left. The caller has exclusive access.
pub(crate) fn remove_left(client: &mut Client) -> Result<(), QmpError> {
    match is_untested(client.version()) {
        true => remove(client),
        false => Ok(()),
    }
}

/// A command and its arguments.
pub(crate) type Command = (&'static str, fn() -> Value);

/// An empty `transaction` drains all block devices and does nothing else (`qmp_transaction` in
/// QEMU's `blockdev.c`). QEMU does not document it; `docs/direct-io.md` says what was tested.
pub(crate) const DRAIN: Command = ("transaction", || json!({ "actions": [] }));

/// A command that does not drain.
const CONTROL: Command = ("query-status", || json!({}));

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
/// right after it. If QEMU does not run for as long as the read takes, any command looks like that.
/// So such a trial counts only if the next one, with a command that does not drain, shows that.
///
/// The read is QEMU's own. That the drain waits for the guest's as well follows from QEMU's code:
/// `bdrv_drain_all` counts the requests of all nodes.
pub(super) fn try_drains(client: &mut Client, command: Command) -> Result<Drains, QmpError> {
    let mut waited = 0;
    for ms in READS_MS {
        while waited < TRIALS {
            match try_once(client, command, ms)? {
                Drains::Yes => {}
                Drains::No => return Ok(Drains::No),
                Drains::Unknown => break,
            }
            match try_once(client, CONTROL, ms)? {
                Drains::No => waited += 1,
                Drains::Yes | Drains::Unknown => break,
            }
        }
    }
    Ok(match waited {
        TRIALS => Drains::Yes,
        _ => Drains::Unknown,
    })
}

/// One trial, after which nothing is left in QEMU.
fn try_once(client: &mut Client, command: Command, ms: u64) -> Result<Drains, QmpError> {
    let found = observe(client, command, ms);
    remove(client)?;
    found
}

fn observe(client: &mut Client, command: Command, ms: u64) -> Result<Drains, QmpError> {
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

/// Waits for the end of our job, and removes our nodes. It is an error if one of them stays.
fn remove(client: &mut Client) -> Result<(), QmpError> {
    let deadline = Instant::now() + JOB_LIMIT;
    while is_running(&client.execute("query-jobs", json!({}))?)? && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    let command = "query-named-block-nodes";
    let nodes = client.execute(command, json!({ "flat": true }))?;
    let nodes = nodes
        .as_array()
        .ok_or_else(|| QmpError::unexpected(command, "not a list"))?;
    let is_there = |name| {
        let mut names = nodes.iter().filter_map(|node| node.get("node-name"));
        names.any(|listed| listed == name)
    };
    for name in [SLOW, SINK].into_iter().filter(|name| is_there(*name)) {
        client.execute("blockdev-del", json!({ "node-name": name }))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::thread::JoinHandle;

    use super::super::tested_versions::TESTED;
    use super::*;
    use crate::qmp::scripted;

    #[test]
    fn versions_that_the_tests_do_not_have_are_untested() {
        let names: Vec<_> = TESTED
            .iter()
            .map(|(major, minor)| {
                assert_eq!(note(Version::new(*major, *minor, 22)), None);
                format!("{major}.{minor}")
            })
            .collect();
        let [first @ .., last] = names.as_slice() else {
            unreachable!();
        };
        assert_eq!(format!("{} and {last}", first.join(", ")), TESTED_NAMES);
        for (major, minor, micro) in [
            (8, 2, 2),
            (10, 1, 0),
            (11, 0, 1),
            (11, 2, 0),
            (12, 0, 3),
            // Those that become 10.1.0 and 11.2.0.
            (10, 0, 50),
            (11, 1, 91),
        ] {
            let text = note(Version::new(major, minor, micro)).unwrap();
            let expected =
                format!("QEMU {major}.{minor}.{micro}, and hikkoshi was tested with QEMU 7.2, ");
            assert!(text.contains(&expected), "{text}");
        }
    }

    /// The answers to `query-jobs` in a trial and after it: whether our job is running.
    const WAITED: &[bool] = &[true, true, false, false];
    const DID_NOT_WAIT: &[bool] = &[true, true, true, false];

    /// A QEMU of version 99 with a disk that pins pages, and with the nodes `left` of a killed
    /// engine. Its job has or has not ended in the answers to `query-jobs`.
    fn qemu(
        running: &[&[bool]],
        left: &[&'static str],
        removes: bool,
    ) -> (Client, JoinHandle<Vec<String>>) {
        let mut running = running.concat().into_iter();
        let mut nodes = left.to_vec();
        scripted::session_of(99, move |command| {
            match command {
                "query-named-block-nodes" => {
                    let disk = json!({
                        "node-name": "n", "drv": "file", "file": "/disk",
                        "cache": { "direct": true }
                    });
                    let ours = nodes.iter().map(|name| json!({ "node-name": name }));
                    return Ok(ours.chain([disk]).collect());
                }
                "query-jobs" => {
                    return Ok(match running.next() {
                        Some(true) => json!([{ "id": JOB }]),
                        _ => json!([]),
                    });
                }
                "blockdev-add" => nodes.push(match nodes.is_empty() {
                    true => SLOW,
                    false => SINK,
                }),
                "blockdev-del" if removes => drop(nodes.remove(0)),
                "blockdev-del" => return Err("Node hikkoshi-drain-from is in use"),
                "blockdev-backup" | "transaction" | "query-status" => {}
                _ => return Err("not expected"),
            }
            Ok(json!({}))
        })
    }

    /// What is found of that QEMU.
    fn found(running: &[&[bool]]) -> Option<String> {
        let (mut client, qemu) = qemu(running, &[], true);
        let mut drains = false;
        let found = check_drain(&mut client, &mut drains).unwrap();
        assert_eq!(drains, found.is_none());
        drop(client);
        let commands = qemu.join().unwrap();
        let count = |name| commands.iter().filter(|command| *command == name).count();
        assert_eq!(
            count("blockdev-add"),
            count("blockdev-del"),
            "nothing is left"
        );
        found.map(|refusal| refusal.to_string())
    }

    #[test]
    fn a_qemu_that_does_not_drain_is_refused_for_rounds() {
        assert_eq!(found(&[WAITED, DID_NOT_WAIT].repeat(3)), None);
        let text = found(&[DID_NOT_WAIT]).unwrap();
        for part in [
            "QEMU 99.0.0",
            "did not wait",
            "--mode postcopy",
            "10.0 and 11.1",
        ] {
            assert!(text.contains(part), "{part:?} is not in: {text}");
        }
        // Once is not enough.
        let text = found(&[WAITED, DID_NOT_WAIT, DID_NOT_WAIT]).unwrap();
        assert!(text.contains("did not wait"), "{text}");
        // It had ended before the drain, each time.
        let text = found(&[]).unwrap();
        assert!(text.contains("overloaded"), "{text}");
    }

    #[test]
    fn a_trial_in_which_any_command_looks_like_a_drain_does_not_count() {
        // QEMU's main loop had lost its processor.
        let text = found(&[WAITED, WAITED].repeat(3)).unwrap();
        assert!(text.contains("overloaded"), "{text}");
        // A longer read is waited for.
        let usual = [WAITED, DID_NOT_WAIT].repeat(3);
        assert_eq!(found(&[&[WAITED, WAITED][..], &usual].concat()), None);
    }

    #[test]
    fn a_drain_is_tried_once() {
        let (mut client, qemu) = qemu(&[WAITED, DID_NOT_WAIT].repeat(3), &[], true);
        let mut drains = false;
        for _ in 0..2 {
            assert!(check_drain(&mut client, &mut drains).unwrap().is_none());
        }
        drop(client);
        let commands = qemu.join().unwrap();
        let drains = commands.iter().filter(|command| *command == DRAIN.0);
        assert_eq!(drains.count(), TRIALS);
    }

    #[test]
    fn a_node_of_ours_that_stays_is_reported() {
        let (mut client, _qemu) = qemu(&[WAITED], &[], false);
        let found = check_drain(&mut client, &mut false).unwrap();
        let text = found.unwrap().to_string();
        assert!(
            text.contains("Node hikkoshi-drain-from is in use"),
            "{text}"
        );
    }

    #[test]
    fn what_a_killed_engine_has_left_is_removed() {
        let (mut client, qemu) = qemu(&[&[true, false]], &[SLOW, SINK], true);
        remove_left(&mut client).unwrap();
        drop(client);
        assert_eq!(
            qemu.join().unwrap(),
            [
                "query-jobs",
                "query-jobs",
                "query-named-block-nodes",
                "blockdev-del",
                "blockdev-del"
            ]
        );
        // A tested QEMU never had them.
        let (mut client, qemu) = scripted::session(|_| Err("not expected"));
        remove_left(&mut client).unwrap();
        drop(client);
        assert!(qemu.join().unwrap().is_empty());
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
