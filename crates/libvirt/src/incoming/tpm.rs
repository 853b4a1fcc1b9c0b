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
use super::error::{IncomingError, SharedState};
use super::persistent::daemon_process;

/// What swtpm locks while it uses the state, below the folder: by the version of the TPM, or if the
/// description names the folder. If it names a file, that is locked.
const LOCKS: [&str; 3] = ["tpm2/.lock", "tpm1.2/.lock", ".lock"];

/// Checks that no other host uses the folders with the states of the domain's emulated TPMs.
///
/// # Errors
///
/// [`IncomingError::TpmState`]; [`IncomingError::Description`] if the description is not one.
pub(super) fn check(description: &str, name: &str, uuid: &str) -> Result<(), IncomingError> {
    // It was written from what was checked.
    let description = Description::check(description, name, uuid, true)?;
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
        .open(folder);
    let opened = match opened {
        Ok(opened) => opened,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => return Some(SharedState::Unknown(error.to_string())),
    };
    let is_file = opened.metadata().is_ok_and(|found| found.is_file());
    let below = LOCKS.iter().map(|lock| folder.join(lock));
    for path in below.chain(is_file.then(|| folder.to_owned())) {
        match is_locked(&path) {
            Ok(false) => {}
            Ok(true) => return Some(SharedState::InUse),
            Err(error) => return Some(SharedState::Unknown(error.to_string())),
        }
    }
    shared_file_system(&opened, daemon).map(SharedState::FileSystem)
}

/// Whether this is a file that another process has locked.
fn is_locked(path: &Path) -> io::Result<bool> {
    let file = File::options()
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW)
        .open(path);
    let file = match file {
        Ok(file) => file,
        Err(error) => {
            return match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Ok(false),
                _ => Err(error),
            };
        }
    };
    // Released when the file is closed.
    match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(false),
        Err(Errno::AGAIN | Errno::ACCESS) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    use super::*;

    /// What the process that locks a file gets.
    const LOCKED: &str = "HIKKOSHI_TEST_LOCKED";

    #[test]
    #[ignore = "another process, for the tests of locks"]
    fn hold_a_lock() {
        let Some(path) = std::env::var_os(LOCKED) else {
            return;
        };
        let file = File::options().write(true).open(path).unwrap();
        fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        std::io::stderr().write_all(b"!").unwrap();
        let _ = std::io::stdin().read(&mut [0]);
    }

    /// What is found of `folder` while another process has `path` locked.
    fn while_locked(path: &Path, folder: &Path) -> Option<SharedState> {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["hold_a_lock", "--ignored", "--nocapture"])
            .env(LOCKED, path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        process
            .stderr
            .as_mut()
            .unwrap()
            .read_exact(&mut [0])
            .unwrap();
        let found = why_shared(folder, std::process::id());
        drop(process.stdin.take());
        assert!(process.wait().unwrap().success());
        found
    }

    #[test]
    fn a_state_that_another_swtpm_uses() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let of = |path: &Path| why_shared(path, std::process::id());
        let free = of(folder);
        assert!(
            !matches!(free, Some(SharedState::InUse | SharedState::Unknown(_))),
            "{free:?}"
        );
        assert_eq!(of(&folder.join("missing")), None);
        std::fs::create_dir(folder.join("tpm2")).unwrap();
        let lock = folder.join("tpm2/.lock");
        std::fs::write(&lock, "").unwrap();
        assert_eq!(of(folder), free);
        assert_eq!(while_locked(&lock, folder), Some(SharedState::InUse));
        // The description names a file.
        assert_eq!(while_locked(&lock, &lock), Some(SharedState::InUse));
        assert_eq!(of(&lock), free);
    }

    #[test]
    fn what_cannot_be_examined_is_not_missing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("loop");
        std::os::unix::fs::symlink("loop", &path).unwrap();
        for path in [path.clone(), path.join("below")] {
            let found = why_shared(&path, std::process::id());
            assert!(matches!(found, Some(SharedState::Unknown(_))), "{found:?}");
        }
        std::os::unix::fs::symlink("loop", folder.path().join(".lock")).unwrap();
        let found = why_shared(folder.path(), std::process::id());
        assert!(matches!(found, Some(SharedState::Unknown(_))), "{found:?}");
    }
}
