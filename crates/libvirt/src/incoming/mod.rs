//! Creates a domain that receives a guest.
//!
//! libvirt restores it from a named pipe instead of a file (`virDomainRestoreFlags`), so libvirt
//! makes the domain, starts QEMU with it and owns both from the beginning. What follows the
//! domain's description in the pipe is QEMU's migration stream, which the QEMU adapter writes
//! ([`PipedMachine`]). A libvirt that opens the file more than once gets another pipe each time
//! (docs/decisions/0031).
//!
//! | file | holds |
//! | --- | --- |
//! | `image.rs` | what libvirt expects before QEMU's stream |
//! | `description.rs` | checks of the description that a source sends |
//! | `write_description.rs` | writes what was read of it again, for libvirt |
//! | `tpm.rs` | the state folder of an emulated TPM, which must be this host's own |
//! | `change.rs` | `--set`: changes of what is specific to a host |
//! | `start.rs` | all of it: from the pipe to QEMU's process |
//! | `restore.rs` | the call that restores the domain, which lasts until the guest runs |
//! | `resumed.rs` | the same, if another program has called it, or its daemon has ended |
//! | `leftover.rs` | what a killed program has left |
//! | `qemu_log.rs` | what QEMU has written to its standard error |
//! | `persistent.rs` | the configuration that a persistent domain gets |
//! | `snapshots.rs` | what libvirt gets to know of the domain's snapshots |
//! | `descriptions.rs` | all descriptions of a domain that is created |
//! | `left_to_do.rs` | what libvirt has not done, for people |

mod change;
mod description;
mod descriptions;
mod error;
#[cfg(feature = "libvirt")]
mod image;
mod left_to_do;
#[cfg(feature = "libvirt")]
mod leftover;
#[cfg(feature = "libvirt")]
mod persistent;
#[cfg(feature = "libvirt")]
mod qemu_log;
#[cfg(feature = "libvirt")]
mod restore;
#[cfg(feature = "libvirt")]
mod resumed;
#[cfg(feature = "libvirt")]
mod snapshots;
#[cfg(feature = "libvirt")]
mod start;
#[cfg(feature = "libvirt")]
mod tpm;
mod write_description;

use std::path::Path;

use hikkoshi_linux::CancelFlag;
use hikkoshi_qemu::{MachineOwner, PipedMachine};
use hikkoshi_wire::Domain as DomainOffer;

pub use self::change::{Change, NetworkKind};
use self::description::Description;
pub use self::description::DescriptionError;
#[cfg(feature = "libvirt")]
pub(crate) use self::description::external_memory;
use self::descriptions::{Descriptions, Snapshot};
pub use self::error::{IncomingError, SharedState};
pub(crate) use self::left_to_do::LeftToDo;
use crate::{DomainError, process};

/// How domains are created here.
#[derive(Debug, Clone, Default)]
pub struct IncomingOptions {
    /// The daemon.
    pub uri: String,
    /// Used instead of the source's description.
    pub xml: Option<String>,
    /// Changes of the description.
    pub changes: Vec<Change>,
    /// Whether a description may pass arguments directly to QEMU.
    pub allow_arguments: bool,
}

impl IncomingOptions {
    /// Starts to create the domain `offer`, whose guest `running` or is paused. `folder` is for
    /// files that only the user may reach; they are gone when the guest runs.
    ///
    /// # Errors
    ///
    /// See [`IncomingError`]: nothing is left of it. [`DomainError::NotBuilt`] always, without the
    /// feature `libvirt`.
    pub fn start(
        &self,
        offer: &DomainOffer,
        running: bool,
        folder: &Path,
        cancel: &CancelFlag,
    ) -> Result<PipedMachine, IncomingError> {
        let descriptions = self.descriptions(offer)?;
        #[cfg(feature = "libvirt")]
        return start::start(&self.uri, offer, &descriptions, running, folder, cancel);
        #[cfg(not(feature = "libvirt"))]
        {
            let _ = (descriptions, running, folder, cancel);
            Err(DomainError::NotBuilt.into())
        }
    }

    /// Checks the descriptions in the offer, and changes them for this host.
    fn descriptions(&self, offer: &DomainOffer) -> Result<Descriptions, DescriptionError> {
        let text = |bytes| {
            std::str::from_utf8(bytes).map_err(|error| DescriptionError::Syntax {
                what: error.to_string(),
            })
        };
        // A description of this host's operator may do anything.
        let allowed = self.allow_arguments || self.xml.is_some();
        let check = |xml| Description::check(xml, &offer.name, &offer.uuid, allowed);
        let offered = check(text(&offer.xml)?)?;
        let own = self.xml.as_deref().map(check).transpose()?;
        let wanted = own.as_ref().unwrap_or(&offered);
        let here = change::apply(wanted, &self.changes)?;
        let persistent = match (text(&offer.persistent)?, &own) {
            ("", _) => None,
            (_, Some(_)) => Some(here.clone()),
            (persistent, None) => {
                // A device that was plugged later is not in it.
                let persistent = check(persistent)?;
                Some(change::apply_where_possible(&persistent, &self.changes)?)
            }
        };
        let changes_disk = |change: &Change| matches!(change, Change::Disk { .. });
        if !offer.snapshots.is_empty() && self.changes.iter().any(changes_disk) {
            return Err(DescriptionError::Snapshots);
        }
        let snapshots = offer.snapshots.iter().map(|snapshot| {
            let xml = text(&snapshot.xml)?;
            let checked = Description::check_snapshot(xml, &offer.name, &offer.uuid, allowed)?;
            Ok(Snapshot {
                xml: change::apply(&checked, &[])?,
                current: snapshot.current,
            })
        });
        Ok(Descriptions {
            offered: change::apply(&offered, &[])?,
            here,
            persistent,
            snapshots: snapshots.collect::<Result<_, DescriptionError>>()?,
        })
    }
}

/// Checks that the daemon `uri` can create domains here. Returns the version of the QEMU that it
/// uses by default, major, minor and micro; `None` if it does not say.
///
/// # Errors
///
/// See [`DomainError`].
pub fn check_daemon(uri: &str) -> Result<Option<[u32; 3]>, DomainError> {
    let session = || DomainError::Session {
        uri: uri.to_owned(),
    };
    if process::is_session(uri) {
        return Err(session());
    }
    process::run_folder(uri)?;
    #[cfg(feature = "libvirt")]
    {
        let connection = crate::connection::Connection::open(uri)?;
        // A socket that the URI names may be that of any daemon.
        let daemon = connection.ask(crate::daemon::ATTEMPT_TIMEOUT, |open| open.get_uri());
        let daemon = daemon.map_err(|error| DomainError::Connect {
            uri: uri.to_owned(),
            what: error.text(),
        })?;
        if process::is_session(&daemon) {
            return Err(session());
        }
        let version = connection.ask(crate::daemon::ATTEMPT_TIMEOUT, |open| {
            open.get_hyp_version()
        });
        // 10.2.1 is 10,002,001 (virConnectGetVersion).
        Ok(version
            .ok()
            .filter(|version| *version > 0)
            .map(|version| [version / 1_000_000, version / 1000 % 1000, version % 1000]))
    }
    #[cfg(not(feature = "libvirt"))]
    Err(DomainError::NotBuilt)
}

/// Makes the domain with this UUID and name persistent, if its source has asked for that, and
/// describes its snapshots to libvirt: its guest is here with all of its pages. `folder` is that of
/// [`IncomingOptions::start`].
///
/// Returns what was not done.
pub(crate) fn complete(uri: &str, uuid: &str, name: &str, folder: &Path) -> Vec<LeftToDo> {
    #[cfg(feature = "libvirt")]
    {
        leftover::remove_pipes(folder, uuid);
        let done = [
            persistent::define(uri, folder, uuid, name),
            snapshots::define(uri, folder, uuid),
        ];
        done.into_iter().filter_map(Result::err).collect()
    }
    #[cfg(not(feature = "libvirt"))]
    {
        let _ = (uri, uuid, name, folder);
        Vec::new()
    }
}

/// Removes the files that are left of the domain with this UUID, whose guest does not run here and
/// will not: its move was given up, or it was lost. `folder` is that of [`IncomingOptions::start`].
/// The descriptions in it may have passwords.
pub fn discard(uuid: &str, folder: &Path) {
    #[cfg(feature = "libvirt")]
    {
        leftover::remove_unused_pipes(folder, uuid);
        persistent::remove(folder, uuid);
        snapshots::remove(folder, uuid);
    }
    #[cfg(not(feature = "libvirt"))]
    let _ = (uuid, folder);
}

/// What continues to restore a domain that another program has begun to create at `pipe`.
///
/// # Errors
///
/// [`DomainError::NotBuilt`].
pub fn resumed_owner(
    uri: &str,
    uuid: &str,
    pipe: &Path,
    running: bool,
) -> Result<Box<dyn MachineOwner>, DomainError> {
    #[cfg(feature = "libvirt")]
    return Ok(Box::new(resumed::Resumed::new(uri, uuid, pipe, running)));
    #[cfg(not(feature = "libvirt"))]
    {
        let _ = (uri, uuid, pipe, running);
        Err(DomainError::NotBuilt)
    }
}
