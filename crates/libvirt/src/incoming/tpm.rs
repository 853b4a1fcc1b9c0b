//! The state folder of an emulated TPM (`<tpm>` with the backend `emulator`, by swtpm).
//!
//! The state itself is part of the device state: the source's swtpm gives it to QEMU, and the
//! destination's, which libvirt starts with a folder of its own, gets it and stores it there. What
//! the folder had before is replaced.
//!
//! Both hosts must not have the same folder. libvirt does not know that a domain which it restores
//! is moved: it may write to the folder while the source's swtpm uses it, removes the folder when
//! the domain cannot be restored, and removes it when the source's domain ends, if that is
//! transient (`qemuExtTPMCleanupHost`). So it is not asked to restore such a domain.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use hikkoshi_qemu::shared_file_system;
use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::io::Errno;

use super::description::Description;
use super::persistent::daemon_process;
use super::{IncomingError, SharedState};

/// What swtpm locks while it uses the state, below the folder: by the version of the TPM, or if the
/// description names the folder.
const LOCKS: [&str; 3] = ["tpm2/.lock", "tpm1.2/.lock", ".lock"];

/// Checks that no other host uses the folders with the states of the domain's emulated TPMs.
///
/// # Errors
///
/// [`IncomingError::TpmState`].
pub(super) fn check(description: &str, name: &str, uuid: &str) -> Result<(), IncomingError> {
    // It was written from what was checked.
    let Ok(description) = Description::check(description, name, uuid, true) else {
        return Ok(());
    };
    let daemon = daemon_process(Path::new("/run")).unwrap_or_else(std::process::id);
    let root = Path::new("/proc").join(format!("{daemon}/root"));
    for folder in description.tpm_folders(uuid) {
        let seen = root.join(folder.strip_prefix("/").unwrap_or(&folder));
        if let Some(why) = why_shared(&seen, daemon) {
            return Err(IncomingError::TpmState {
                name: name.to_owned(),
                folder,
                why,
            });
        }
    }
    Ok(())
}

/// Why this folder is used by another host, or may be. `None`: it is not, or does not exist.
/// `daemon` is a process that has its file system mounted.
fn why_shared(folder: &Path, daemon: u32) -> Option<SharedState> {
    // The source may have named anything, such as a pipe or a device.
    let opened = File::options()
        .read(true)
        .custom_flags(libc::O_PATH)
        .open(folder)
        .ok()?;
    if LOCKS.iter().any(|lock| is_locked(&folder.join(lock))) {
        return Some(SharedState::InUse);
    }
    shared_file_system(&opened, daemon).map(SharedState::FileSystem)
}

fn is_locked(path: &Path) -> bool {
    let file = File::options()
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW)
        .open(path);
    let locked = file.and_then(|file| {
        // Released when the file is closed.
        fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).map_err(io::Error::from)
    });
    let error = locked.err().as_ref().and_then(Errno::from_io_error);
    matches!(error, Some(Errno::AGAIN | Errno::ACCESS))
}
