//! Checks whether this QEMU's guest can be moved, before anything is changed.

mod allowed;
mod block;
mod check_devices;
mod deleted_images;
mod devices;
mod excluded_modes;
#[cfg(test)]
mod installed_qemu_tests;
pub(crate) mod jobs;
mod known_types;
pub(crate) mod list_parts;
pub(crate) mod manager;
pub(crate) mod nested;
mod network;
mod other_process;
mod pinning;
mod qom_tree;
mod refusal;
pub(crate) mod started_devices;
mod tested_versions;
mod tpm;
pub(crate) mod untested;

pub use allowed::Allowed;
pub use excluded_modes::Excludes;
use hikkoshi_dirty::hugetlb_support;
use hikkoshi_engine::Mode;
use hikkoshi_pages::{RamBlock, RamLayout};
pub(crate) use pinning::needs_drain;
pub(crate) use refusal::OLDEST_QEMU;
pub use refusal::Refusal;
use serde_json::Value;
pub(crate) use untested::DRAIN;
pub use untested::untested_libvirt_qemu;

use hikkoshi_account::Side;

use self::qom_tree::DEVICE_FOLDERS;
use crate::disks::move_lock;
use crate::qmp::migration_status::{self, MigrationStatus};
use crate::qmp::pause_mark;
use crate::qmp::qom;
use crate::qmp::{Client, QmpError};

/// All checks that need only QMP. They all run: a user corrects everything at once.
pub(crate) fn check(
    client: &mut Client,
    side: Side,
    allowed: &Allowed,
) -> Result<Vec<Refusal>, QmpError> {
    let mut found = Vec::new();
    let version = client.version();
    if version < OLDEST_QEMU {
        // It may not have the commands of the other checks.
        found.push(Refusal::TooOld { version });
        return Ok(found);
    }
    found.extend(untested::check_commands(client, side)?);
    found.extend(check_state(client, side)?);
    found.extend(check_capabilities(client)?);
    let (migrating, blocked) = check_migration(client, side)?;
    found.extend(migrating);
    // Before QEMU's own migration blockers: our messages say what to do.
    let survey = check_devices::survey(client, allowed)?;
    found.extend(survey.found);
    found.extend(check_confidential(client)?);
    if side == Side::Source {
        found.extend(check_blocked(&blocked));
        found.extend(jobs::check(client, false)?);
        found.extend(check_postcopy(client)?);
    }
    Ok(found)
}

/// Capabilities whose features conflict with moving the guest's memory from outside.
/// Others are turned off during the move, see `migration_settings.rs`.
const EXCLUDED: [&str; 3] = ["postcopy-ram", "background-snapshot", "x-colo"];

fn check_capabilities(client: &mut Client) -> Result<Vec<Refusal>, QmpError> {
    let mut found = Vec::new();
    let capabilities = migration_status::capabilities(client)?;
    for name in ["late-block-activate", "events"] {
        if !capabilities.contains_key(name) {
            found.push(Refusal::NoCapability { name });
        }
    }
    for name in EXCLUDED {
        if capabilities.get(name) == Some(&true) {
            found.push(Refusal::Capability {
                name: name.to_owned(),
            });
        }
    }
    Ok(found)
}

fn check_state(client: &mut Client, side: Side) -> Result<Option<Refusal>, QmpError> {
    let run = migration_status::run_state(client)?;
    let state = run.status;
    Ok(match side {
        Side::Destination if state == "inmigrate" => None,
        Side::Destination => Some(Refusal::NotWaiting { state }),
        Side::Source => match advice(&state) {
            None if run.running => None,
            None => pause_mark::marked(client)?.map(|(state, advice)| Refusal::State {
                state: state.to_owned(),
                advice,
            }),
            Some(advice) => Some(Refusal::State { state, advice }),
        },
    })
}

/// Advice for a state in which the guest cannot be moved; `None` for the others.
pub(crate) fn advice(state: &str) -> Option<&'static str> {
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
        "shutdown" => {
            "it has shut down, and its QEMU was started with -no-shutdown: start it again (QMP \
             command 'system_reset', then 'cont') or quit QEMU"
        }
        "guest-panicked" | "internal-error" | "watchdog" => {
            "reset it (QMP command 'system_reset') or quit QEMU"
        }
        "debug" => "detach the debugger and resume the guest first",
        _ => "wait until QEMU leaves this state",
    })
}

/// A migration under way, and QEMU's own migration blockers.
fn check_migration(
    client: &mut Client,
    side: Side,
) -> Result<(Option<Refusal>, Vec<String>), QmpError> {
    let info = migration_status::query(client)?;
    let status = info.status.to_string();
    let refusal = match side {
        Side::Destination if info.status != MigrationStatus::None => Some(Refusal::Used { status }),
        Side::Source if !info.status.is_over() => Some(Refusal::Migrating { status }),
        _ => None,
    };
    Ok((refusal, info.blocked))
}

/// (Ours is of this move, or was left by a killed engine.)
fn check_blocked(reasons: &[String]) -> Option<Refusal> {
    let others = reasons
        .iter()
        .filter(|reason| !move_lock::is_reason(reason));
    let others: Vec<&str> = others.map(String::as_str).collect();
    (!others.is_empty()).then(|| Refusal::Blocked {
        reasons: others.join("; "),
    })
}

fn check_confidential(client: &mut Client) -> Result<Option<Refusal>, QmpError> {
    let confidential = qom::property(client, "/machine", "confidential-guest-support")?;
    let path = confidential
        .as_ref()
        .and_then(Value::as_str)
        .filter(|path| !path.is_empty());
    Ok(path.map(|path| Refusal::Confidential {
        path: path.to_owned(),
    }))
}

/// What prevents moving a source's guest by this mode. `drains` as for [`untested::check_drain`].
pub(crate) fn check_mode(
    client: &mut Client,
    mode: Mode,
    allowed: &Allowed,
    drains: &mut bool,
) -> Result<Vec<Refusal>, QmpError> {
    let mut found = check_devices::survey(client, allowed)?.found;
    found.extend(check_postcopy(client)?);
    if Excludes::Rounds.includes(mode) {
        found.extend(untested::check_drain(client, drains)?);
    }
    found.retain(|refusal| refusal.excludes().some(mode));
    Ok(found)
}

/// Memory whose writes cannot be tracked by any kernel, or by this one. The check comes
/// here, before the destination empties its memory for the guest.
pub(crate) fn check_tracking(layout: &RamLayout) -> Vec<Refusal> {
    let refusal = |block: &RamBlock| {
        let why = hugetlb_support(block.host_page).err()?;
        Some(Refusal::Untracked {
            block: block.id.clone(),
            why,
        })
    };
    layout
        .blocks()
        .filter_map(|(block, _)| refusal(block))
        .collect()
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
    allowed: &Allowed,
) -> Result<(), Refusal> {
    let (migrating, blocked) = check_migration(client, Side::Source)?;
    let mut found: Vec<Refusal> = migrating.into_iter().collect();
    let survey = check_devices::survey(client, allowed)?;
    found.extend(survey.found);
    if let Some(node) = survey.pinning.filter(|_| !move_.drained) {
        found.push(Refusal::PinningSince {
            node: node.name,
            file: node.file,
        });
    }
    if move_.mode.is_some_and(|mode| Excludes::Postcopy.some(mode)) {
        found.extend(check_postcopy(client)?);
    }
    // With a device that cannot be migrated, QEMU ends with a segmentation fault when it saves the
    // device state (`nvme`, QEMU 7.2 and 10.0).
    found.extend(check_blocked(&blocked));
    found.extend(jobs::check(client, true)?);
    let matters = |refusal: &Refusal| refusal.excludes() != Excludes::Rounds || move_.rounds;
    // The guest is about to be paused: the first obstacle is enough.
    found.into_iter().find(matters).map_or(Ok(()), Err)
}

/// Properties of a balloon by which the guest returns memory to the host at any time.
/// QEMU suspends them for its own post-copy, but does not know about ours.
const RETURNS_MEMORY: [&str; 2] = ["free-page-reporting", "free-page-hint"];

/// The checks for post-copy only.
fn check_postcopy(client: &mut Client) -> Result<Vec<Refusal>, QmpError> {
    let mut found = Vec::new();
    for folder in DEVICE_FOLDERS {
        for (name, kind) in qom::children(client, folder)? {
            if !kind.starts_with("virtio-balloon") {
                continue;
            }
            let path = format!("{folder}/{name}");
            for property in RETURNS_MEMORY {
                if qom::property(client, &path, property)? == Some(Value::Bool(true)) {
                    let path = path.clone();
                    found.push(Refusal::ReturnsMemory { path, property });
                }
            }
        }
    }
    Ok(found)
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
        assert!(check_tracking(&layout(4096)).is_empty());
        let text = check_tracking(&layout(1 << 30))[0].to_string();
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
