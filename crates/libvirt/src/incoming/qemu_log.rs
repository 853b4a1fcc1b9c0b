//! What QEMU has written, as libvirt keeps it.

use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::process;

/// The file to which libvirt writes what the domain's QEMU writes to its standard error. `None`: it
/// cannot be read.
pub(super) fn open(uri: &str, name: &str) -> Option<File> {
    let folder = match process::is_session(uri) {
        false => PathBuf::from("/var/log/libvirt/qemu"),
        true => {
            let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
            let home = || Some(Path::new(&std::env::var_os("HOME")?).join(".cache"));
            cache.or_else(home)?.join("libvirt/qemu/log")
        }
    };
    open_in(&folder, name)
        .inspect_err(|error| tracing::debug!(%error, name, "opening the log of a domain"))
        .ok()
}

/// Opens a log that this user has written: another one could have made it a link to what only this
/// one can read.
fn open_in(folder: &Path, name: &str) -> io::Result<File> {
    if name.contains('/') {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // Without waiting for the writer of a pipe.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = File::options()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(folder.join(format!("{name}.log")))?;
    let metadata = file.metadata()?;
    let is_ours = metadata.uid() == rustix::process::geteuid().as_raw();
    match metadata.is_file() && metadata.nlink() == 1 && is_ours {
        true => Ok(file),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_a_file_of_this_user_with_one_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let read = |name: &str| {
            let file = open_in(folder.path(), name).ok()?;
            Some(io::read_to_string(file).unwrap())
        };
        std::fs::write(path("guest.log"), "text").unwrap();
        assert_eq!(read("guest").as_deref(), Some("text"));
        assert_eq!(read("other"), None);
        assert_eq!(read("../guest"), None);
        std::os::unix::fs::symlink("guest.log", path("link.log")).unwrap();
        assert_eq!(read("link"), None);
        std::fs::hard_link(path("guest.log"), path("hard.log")).unwrap();
        assert_eq!(read("hard"), None);
    }
}
