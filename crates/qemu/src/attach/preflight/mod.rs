//! Checks whether this QEMU's guest can be moved, before anything is changed.

mod block;
mod devices;
#[cfg(test)]
mod installed_qemu_tests;
mod jobs;
mod known_types;
mod nested;
mod network;
pub(crate) mod pause_mark;
mod pinning;
mod qom_tree;
mod refusal;
mod survey;

use hikkoshi_dirty::hugetlb_support;
use hikkoshi_engine::Mode;
use hikkoshi_pages::RamLayout;
pub use refusal::Refusal;
use serde_json::Value;
pub use survey::AllowedTypes;

use crate::qmp::migration::{self, MigrationStatus};
use crate::qmp::qom;
use crate::qmp::{Client, QmpError, Version};

/// The oldest QEMU that is supported.
pub(crate) const OLDEST_QEMU: Version = Version::new(7, 2, 0);

/// The side of the move that this QEMU is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Source,
    Destination,
}

/// All checks that need only QMP.
pub(crate) fn check(
    client: &mut Client,
    side: Side,
    allowed: &AllowedTypes,
) -> Result<(), Refusal> {
    let version = client.version();
    if version < OLDEST_QEMU {
        return Err(Refusal::TooOld { version });
    }
    // First: a later refusal implies that the guest's state is known.
    check_state(client, side)?;
    check_capabilities(client)?;
    let blocked = check_migration(client, side)?;
    // Before QEMU's own migration blockers: our messages say what to do.
    survey::survey(client, allowed)?;
    check_confidential(client)?;
    if side == Side::Source {
        check_blocked(&blocked)?;
        jobs::check(client)?;
    }
    Ok(())
}

/// Capabilities whose features conflict with moving the guest's memory from outside.
/// Others are turned off during the move, see `settings.rs`.
const EXCLUDED: [&str; 3] = ["postcopy-ram", "background-snapshot", "x-colo"];

fn check_capabilities(client: &mut Client) -> Result<(), Refusal> {
    let capabilities = migration::capabilities(client)?;
    for name in ["late-block-activate", "events"] {
        if !capabilities.contains_key(name) {
            return Err(Refusal::NoCapability { name });
        }
    }
    for name in EXCLUDED {
        if capabilities.get(name) == Some(&true) {
            return Err(Refusal::Capability {
                name: name.to_owned(),
            });
        }
    }
    Ok(())
}

fn check_state(client: &mut Client, side: Side) -> Result<(), Refusal> {
    let run = migration::run_state(client)?;
    let state = run.status;
    match side {
        Side::Destination if state == "inmigrate" => Ok(()),
        Side::Destination => Err(Refusal::NotWaiting { state }),
        Side::Source => match advice(&state) {
            None if !run.running && pause_mark::is_set(client)? => Err(Refusal::State {
                state: pause_mark::STATE.to_owned(),
                advice: pause_mark::ADVICE,
            }),
            None => Ok(()),
            Some(advice) => Err(Refusal::State { state, advice }),
        },
    }
}

/// Advice for a state in which the guest cannot be moved; `None` for the others.
fn advice(state: &str) -> Option<&'static str> {
    Some(match state {
        "running" | "paused" | "prelaunch" => return None,
        "inmigrate" => {
            "it still waits for an incoming migration; is this the destination's socket?"
        }
        "postmigrate" => {
            "it has already been moved or saved. If any program moved it, it may run elsewhere: then \
             never resume it here, but continue with the program that moved it. Resume it (QMP \
             command 'cont') only if you know that it was not handed over"
        }
        "suspended" => "wake it first (QMP command 'system_wakeup')",
        "io-error" => "repair the storage and resume it first (QMP command 'cont')",
        "guest-panicked" | "internal-error" | "shutdown" | "watchdog" => {
            "reset it (QMP command 'system_reset') or quit QEMU"
        }
        "debug" => "detach the debugger and resume the guest first",
        _ => "wait until QEMU leaves this state",
    })
}

/// QEMU's own migration blockers.
fn check_migration(client: &mut Client, side: Side) -> Result<Vec<String>, Refusal> {
    let info = migration::query(client)?;
    let used_up = side == Side::Destination && info.status != MigrationStatus::None;
    if used_up || !info.status.is_over() {
        return Err(Refusal::Migrating {
            status: info.status.to_string(),
        });
    }
    Ok(info.blocked)
}

fn check_blocked(reasons: &[String]) -> Result<(), Refusal> {
    if reasons.is_empty() {
        return Ok(());
    }
    Err(Refusal::Blocked {
        reasons: reasons.join("; "),
    })
}

/// The QOM folders of users' devices: those with an id, and those without.
const DEVICE_FOLDERS: [&str; 2] = ["/machine/peripheral", "/machine/peripheral-anon"];

fn check_confidential(client: &mut Client) -> Result<(), Refusal> {
    let confidential = qom::property(client, "/machine", "confidential-guest-support")?;
    if let Some(path) = confidential
        .as_ref()
        .and_then(Value::as_str)
        .filter(|path| !path.is_empty())
    {
        return Err(Refusal::Confidential {
            path: path.to_owned(),
        });
    }
    Ok(())
}

/// Refuses a source whose guest cannot be moved by this mode.
pub(crate) fn check_mode(
    client: &mut Client,
    mode: Mode,
    allowed: &AllowedTypes,
) -> Result<(), Refusal> {
    if mode != Mode::Postcopy
        && let Some(refusal) = survey::survey(client, allowed)?.rounds
    {
        return Err(refusal);
    }
    if mode != Mode::Precopy {
        check_postcopy(client)?;
    }
    Ok(())
}

/// Refuses memory whose writes cannot be tracked by any kernel, or by this one. The
/// check comes here, before the destination empties its memory for the guest.
pub(crate) fn check_tracking(layout: &RamLayout) -> Result<(), Refusal> {
    for (block, _) in layout.blocks() {
        hugetlb_support(block.host_page).map_err(|why| Refusal::Untracked {
            block: block.id.clone(),
            why,
        })?;
    }
    Ok(())
}

/// The state of a move that is about to pause its guest.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MoveInProgress {
    /// The mode, if it is known.
    pub(crate) mode: Option<Mode>,
    /// Whether there have been pre-copy rounds: the dirty log runs.
    pub(crate) rounds: bool,
    /// Whether these drained the disks.
    pub(crate) drained: bool,
}

/// Checks again, right before the guest is paused: a device may have been plugged
/// in, a disk reopened in another way, or a job started.
pub(crate) fn check_again(
    client: &mut Client,
    move_: MoveInProgress,
    allowed: &AllowedTypes,
) -> Result<(), Refusal> {
    // With a device that cannot be migrated, QEMU ends with a segmentation fault when it saves the
    // device state (`nvme`, QEMU 7.2 and 10.0).
    check_blocked(&check_migration(client, Side::Source)?)?;
    let survey = survey::survey(client, allowed)?;
    if move_.rounds {
        if let Some(refusal) = survey.rounds {
            return Err(refusal);
        }
        if let Some(node) = survey.pinning.filter(|_| !move_.drained) {
            return Err(Refusal::PinningSince {
                node: node.name,
                file: node.file,
            });
        }
    }
    if move_.mode.is_some_and(|mode| mode != Mode::Precopy) {
        check_postcopy(client)?;
    }
    jobs::check(client)
}

/// Whether disks write into pinned pages, so that pre-copy rounds have to drain them.
pub(crate) fn needs_drain(client: &mut Client) -> Result<bool, QmpError> {
    Ok(pinning::first(&block::nodes(client)?, client.peer()).is_some())
}

/// Properties of a balloon by which the guest returns memory to the host at any time.
/// QEMU suspends them for its own post-copy, but does not know about ours.
const RETURNS_MEMORY: [&str; 2] = ["free-page-reporting", "free-page-hint"];

/// The checks for post-copy only.
fn check_postcopy(client: &mut Client) -> Result<(), Refusal> {
    for folder in DEVICE_FOLDERS {
        for (name, kind) in qom::children(client, folder)? {
            if !kind.starts_with("virtio-balloon") {
                continue;
            }
            let path = format!("{folder}/{name}");
            for property in RETURNS_MEMORY {
                if qom::property(client, &path, property)? == Some(Value::Bool(true)) {
                    return Err(Refusal::ReturnsMemory { path, property });
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_a_gigabyte_need_postcopy() {
        let layout = |host_page| {
            RamLayout::new(vec![hikkoshi_pages::RamBlock {
                id: "ram".into(),
                bytes: 1 << 30,
                host_page,
                guest: vec![hikkoshi_pages::GuestRange {
                    gpa: 0,
                    offset: 0,
                    bytes: 1 << 30,
                }],
            }])
            .unwrap()
        };
        check_tracking(&layout(4096)).unwrap();
        let text = check_tracking(&layout(1 << 30)).unwrap_err().to_string();
        for part in ["RAM block \"ram\"", "1073741824 bytes", "--mode postcopy"] {
            assert!(text.contains(part), "{part:?} is not in: {text}");
        }
    }

    #[test]
    fn every_unmovable_state_has_advice() {
        for state in ["running", "paused", "prelaunch"] {
            assert_eq!(advice(state), None);
        }
        for state in [
            "inmigrate",
            "postmigrate",
            "finish-migrate",
            "guest-panicked",
            "internal-error",
            "io-error",
            "suspended",
            "shutdown",
            "a state of the future",
        ] {
            assert!(advice(state).is_some(), "{state}");
        }
    }
}
