//! Whether this QEMU's guest can be moved at all; asked before anything is
//! touched.

use serde_json::{Value, json};
use thiserror::Error;

use crate::backend;
use crate::migration::{self, MigrationStatus};
use crate::qmp::{Client, QmpError, Version};

/// Oldest QEMU that this has been tried with.
pub const OLDEST: Version = Version::new(7, 2, 0);

/// Why a guest is refused. It has not been touched.
#[derive(Debug, Error)]
pub enum Refusal {
    /// QEMU could not be asked.
    #[error("checking whether the guest can be moved: {0}")]
    Qmp(#[from] QmpError),
    /// QEMU is too old.
    #[error("this is QEMU {version}; QEMU {OLDEST} or later is needed")]
    TooOld {
        /// What it is.
        version: Version,
    },
    /// QEMU lacks a capability.
    #[error(
        "this QEMU lacks the migration capability {name}, without which it would send the guest's memory itself"
    )]
    NoCapability {
        /// The capability.
        name: &'static str,
    },
    /// A capability is on that changes what memory is.
    #[error(
        "the migration capability {name} is on, which excludes moving the guest from outside: turn \
         it off (QMP migrate-set-capabilities) if nothing needs it"
    )]
    Capability {
        /// The capability.
        name: String,
    },
    /// Another migration is under way.
    #[error(
        "QEMU is in a migration already (status {status}): wait for its end, or cancel it (QMP \
         migrate_cancel)"
    )]
    Migrating {
        /// QEMU's name for where it is.
        status: String,
    },
    /// QEMU says that the guest cannot be migrated.
    #[error("QEMU says that this guest cannot be migrated now: {reasons}")]
    Blocked {
        /// QEMU's reasons.
        reasons: String,
    },
    /// The source is in a state that cannot be moved.
    #[error(
        "the guest's state is {state}, and only running or paused guests can be moved: {advice}"
    )]
    State {
        /// QEMU's name for it.
        state: String,
        /// What to do.
        advice: &'static str,
    },
    /// The destination does not wait for a guest.
    #[error(
        "QEMU does not wait for a guest (its state is {state}): start it with -incoming defer, and \
         afresh for each attempt"
    )]
    NotWaiting {
        /// QEMU's name for its state.
        state: String,
    },
    /// A device that the move would break.
    #[error("the device {path} is a {kind}, and {why}; unplug it to move the guest")]
    Device {
        /// Its place in QEMU's object tree, or its name.
        path: String,
        /// Its type.
        kind: String,
        /// Why it stands in the way.
        why: &'static str,
    },
    /// A device that lets the guest give memory back.
    #[error(
        "the device {path} has {property}=on: the guest may count on zeros in memory that it gives \
         back, and in post-copy that may come back as it was; move it with --mode precopy, or \
         without that property"
    )]
    GivesBack {
        /// Its place in QEMU's object tree.
        path: String,
        /// What is on.
        property: &'static str,
    },
    /// The guest's memory is encrypted.
    #[error("the guest is a confidential one ({path}): its memory cannot be read from outside")]
    Confidential {
        /// The object that makes it so.
        path: String,
    },
}

/// Which end of the move this QEMU is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Source,
    Destination,
}

/// All checks that QEMU alone can answer.
pub(crate) fn check(client: &mut Client, side: Side) -> Result<(), Refusal> {
    let version = client.version();
    if version < OLDEST {
        return Err(Refusal::TooOld { version });
    }
    // First: with what is refused later it is known how the guest is.
    check_state(client, side)?;
    check_capabilities(client)?;
    let blocked = check_migration(client, side)?;
    // Before QEMU's own objections: ours say what to do.
    check_devices(client)?;
    if side == Side::Source && !blocked.is_empty() {
        return Err(Refusal::Blocked {
            reasons: blocked.join("; "),
        });
    }
    Ok(())
}

/// Capabilities that mean that QEMU, or its owner, does something with the
/// guest's memory that ours would collide with. Others are turned off while we
/// are at it, see `settings.rs`.
const EXCLUDED: [&str; 3] = ["postcopy-ram", "background-snapshot", "x-colo"];

fn check_capabilities(client: &mut Client) -> Result<(), Refusal> {
    let capabilities = crate::settings::capabilities(client)?;
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

fn check_devices(client: &mut Client) -> Result<(), Refusal> {
    for folder in DEVICE_FOLDERS.iter().chain(&["/objects"]) {
        for (name, kind) in backend::children(client, folder)? {
            if let Some(why) = objection(&kind) {
                let path = format!("{folder}/{name}");
                return Err(Refusal::Device { path, kind, why });
            }
        }
    }
    // What is behind a network card does not show in its type.
    let network = client.execute(
        "human-monitor-command",
        json!({ "command-line": "info network" }),
    )?;
    for (name, kind) in network_peers(network.as_str().unwrap_or_default()) {
        if let Some(why) = objection(kind) {
            return Err(Refusal::Device {
                path: name.to_owned(),
                kind: format!("{kind} network backend"),
                why,
            });
        }
    }
    let confidential = backend::property(client, "/machine", "confidential-guest-support")?;
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

/// Properties of a balloon by which the guest gives back memory all the time.
/// QEMU keeps that apart from post-copy, but does not know of ours.
const GIVES_BACK: [&str; 2] = ["free-page-reporting", "free-page-hint"];

/// What stands in the way of post-copy only.
pub(crate) fn check_postcopy(client: &mut Client) -> Result<(), Refusal> {
    for folder in DEVICE_FOLDERS {
        for (name, kind) in backend::children(client, folder)? {
            if !kind.starts_with("virtio-balloon") {
                continue;
            }
            let path = format!("{folder}/{name}");
            for property in GIVES_BACK {
                if backend::property(client, &path, property)? == Some(Value::Bool(true)) {
                    return Err(Refusal::GivesBack { path, property });
                }
            }
        }
    }
    Ok(())
}

const UNSEEN: &str = "what it writes to the guest's memory cannot be seen from outside QEMU, so \
                      pages would be lost";
const WINDOW: &str = "its memory is shared with programs that would not move along";
const SPARSE: &str = "memory that comes and goes is not supported yet";

/// Why a QOM type, or a network backend's type, stands in the way.
fn objection(kind: &str) -> Option<&'static str> {
    let is_vhost_user = kind.starts_with("vhost-user") || kind.contains("-vhost-user");
    if is_vhost_user
        || kind.starts_with("vhost-vdpa")
        || kind.starts_with("vfio-")
        || kind == "x-pci-proxy-dev"
        || kind.starts_with("xen-")
    {
        Some(UNSEEN)
    } else if kind.starts_with("ivshmem") {
        Some(WINDOW)
    } else if kind.starts_with("virtio-mem") || kind.starts_with("virtio-pmem") {
        Some(SPARSE)
    } else {
        None
    }
}

/// Names and types in `info network`: `n0: index=0,type=user,net=…`, perhaps
/// with ` \ ` before it.
fn network_peers(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter_map(|line| {
        let line = line.trim().trim_start_matches('\\').trim_start();
        let (name, rest) = line.split_once(": index=")?;
        let kind = rest
            .split(',')
            .find_map(|part| part.strip_prefix("type="))?;
        Some((name, kind))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_write_memory_unseen() {
        for kind in [
            "vhost-user-blk-pci",
            "vhost-user-fs-pci",
            "vhost-user-rng-device",
            "cryptodev-vhost-user",
            "vhost-user",
            "vhost-vdpa",
            "vhost-vdpa-device-pci",
            "vfio-pci",
            "vfio-pci-nohotplug",
            "vfio-user-pci",
            "ivshmem-plain",
            "ivshmem-doorbell",
            "virtio-mem-pci",
        ] {
            assert!(objection(kind).is_some(), "{kind}");
        }
        for kind in [
            "virtio-net-pci",
            "virtio-blk-pci",
            "vhost-vsock-pci",
            "vhost-scsi-pci",
            "pc-dimm",
            "user",
            "tap",
            "memory-backend-file",
        ] {
            assert_eq!(objection(kind), None, "{kind}");
        }
    }

    #[test]
    fn network_backends_of_both_versions() {
        let captured = "virtio-net-pci.0: index=0,type=nic,model=virtio-net-pci,macaddr=52:54:00:12:34:56\r\n \\ n0: index=0,type=vhost-user,net=10.0.2.0,restrict=off\r\n\r\n";
        let peers: Vec<_> = network_peers(captured).collect();
        assert_eq!(peers, [("virtio-net-pci.0", "nic"), ("n0", "vhost-user")]);
        assert_eq!(network_peers("").count(), 0);
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
