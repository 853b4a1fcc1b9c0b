//! Whether this QEMU's guest can be moved at all; asked before anything is
//! touched.

mod block;
mod devices;
mod jobs;
mod known;
mod nested;
mod network;
#[cfg(test)]
mod offered;
mod pinning;
mod refusal;
mod survey;
mod tree;

use hikkoshi_dirty::hugetlb_support;
use hikkoshi_engine::Mode;
use hikkoshi_pages::RamLayout;
pub use refusal::Refusal;
use serde_json::Value;
pub use survey::AllowedTypes;

use crate::qmp::migration::{self, MigrationStatus};
use crate::qmp::qom;
use crate::qmp::{Client, QmpError, Version};

/// Oldest QEMU that this has been tried with.
pub const OLDEST_QEMU: Version = Version::new(7, 2, 0);

/// Which end of the move this QEMU is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Source,
    Destination,
}

/// All checks that QEMU alone can answer.
pub(crate) fn check(
    client: &mut Client,
    side: Side,
    allowed: &AllowedTypes,
) -> Result<(), Refusal> {
    let version = client.version();
    if version < OLDEST_QEMU {
        return Err(Refusal::TooOld { version });
    }
    // First: with what is refused later it is known how the guest is.
    check_state(client, side)?;
    check_capabilities(client)?;
    let blocked = check_migration(client, side)?;
    // Before QEMU's own objections: ours say what to do.
    survey::survey(client, allowed)?;
    check_confidential(client)?;
    if side == Side::Source && !blocked.is_empty() {
        return Err(Refusal::Blocked {
            reasons: blocked.join("; "),
        });
    }
    if side == Side::Source {
        jobs::check(client)?;
    }
    Ok(())
}

/// Capabilities that mean that QEMU, or its owner, does something with the
/// guest's memory that ours would collide with. Others are turned off while we
/// are at it, see `settings.rs`.
const EXCLUDED: [&str; 3] = ["postcopy-ram", "background-snapshot", "x-colo"];

fn check_capabilities(client: &mut Client) -> Result<(), Refusal> {
    let capabilities = migration::capabilities(client)?;
    for name in ["x-ignore-shared", "pause-before-switchover", "events"] {
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
            None => Ok(()),
            Some(advice) => Err(Refusal::State { state, advice }),
        },
    }
}

/// What to do about a state that cannot be moved; `None` for those that can.
fn advice(state: &str) -> Option<&'static str> {
    Some(match state {
        "running" | "paused" | "prelaunch" => return None,
        "inmigrate" => "it still waits for a guest itself; is this the destination's socket?",
        "postmigrate" => {
            "it has been moved or saved already. If it was moved, by whatever program, it may run \
             elsewhere: never continue it here then, but go on with what has moved it. Resume it \
             (QMP cont) only if you know that it was not handed over"
        }
        "suspended" => "wake it (QMP system_wakeup) first",
        "io-error" => "mend the storage and resume it (QMP cont) first",
        "guest-panicked" | "internal-error" | "shutdown" | "watchdog" => {
            "reset it (QMP system_reset) or quit it"
        }
        "debug" => "detach the debugger and resume it first",
        _ => "wait until QEMU is done with that",
    })
}

/// Gives QEMU's own objections.
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

/// Where users' devices are: those with an id, and those without.
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

/// Refuses memory whose writes no kernel, or not this one, can track. Seen here,
/// before the other side empties its memory for the guest.
pub(crate) fn check_tracking(layout: &RamLayout) -> Result<(), Refusal> {
    for (block, _) in layout.blocks() {
        hugetlb_support(block.host_page).map_err(|why| Refusal::Untracked {
            block: block.id.clone(),
            why,
        })?;
    }
    Ok(())
}

/// What is known of a move that is about to pause its guest.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MoveInProgress {
    /// How it goes, if that was said.
    pub(crate) mode: Option<Mode>,
    /// There have been rounds: the dirty log runs.
    pub(crate) rounds: bool,
    /// They have drained the disks.
    pub(crate) drained: bool,
}

/// Looks again, right before the guest is paused: something may have been
/// plugged in, a disk been opened in another way, a job been started.
pub(crate) fn check_again(
    client: &mut Client,
    move_: MoveInProgress,
    allowed: &AllowedTypes,
) -> Result<(), Refusal> {
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

/// Whether disks write into pinned pages, so that rounds have to drain them.
pub(crate) fn needs_drain(client: &mut Client) -> Result<bool, QmpError> {
    Ok(pinning::first(&block::nodes(client)?, client.peer()).is_some())
}

/// Properties of a balloon by which the guest gives back memory all the time.
/// QEMU keeps that apart from post-copy, but does not know of ours.
const GIVES_BACK: [&str; 2] = ["free-page-reporting", "free-page-hint"];

/// What stands in the way of post-copy only.
fn check_postcopy(client: &mut Client) -> Result<(), Refusal> {
    for folder in DEVICE_FOLDERS {
        for (name, kind) in qom::children(client, folder)? {
            if !kind.starts_with("virtio-balloon") {
                continue;
            }
            let path = format!("{folder}/{name}");
            for property in GIVES_BACK {
                if qom::property(client, &path, property)? == Some(Value::Bool(true)) {
                    return Err(Refusal::GivesBack { path, property });
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
    fn pages_of_a_gigabyte_are_for_post_copy() {
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
    fn every_state_that_cannot_be_moved_has_advice() {
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
