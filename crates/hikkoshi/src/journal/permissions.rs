//! Journals are read only if no other user can have written them: they name a process to access,
//! perhaps as root, and files to send.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use error_reporter::Report;
use hikkoshi_linux::{Others, check_rights};
use rustix::fs::OFlags;

/// Checks that only this user or root can create files in `folder`.
///
/// # Errors
/// When it is not a folder, or others can.
pub(super) fn check_folder(folder: &Path) -> io::Result<()> {
    let metadata = std::fs::metadata(folder).map_err(|error| about(folder, &error))?;
    if !metadata.is_dir() {
        return Err(about(folder, &io::ErrorKind::NotADirectory.into()));
    }
    check(&metadata).map_err(|error| about(folder, &error))
}

/// Opens a file that only this user or root can have written.
///
/// # Errors
/// When it cannot be opened, is not a regular file, or others may write to it.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        // Opening a pipe must not block.
        .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
        .open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    check(&metadata)?;
    Ok(file)
}

/// The content, of at most `longest` bytes.
///
/// # Errors
/// When it cannot be read or is longer.
pub(super) fn read(file: File, longest: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    file.take(longest + 1).read_to_end(&mut content)?;
    match u64::try_from(content.len()) {
        Ok(length) if length <= longest => Ok(content),
        _ => Err(io::ErrorKind::FileTooLarge.into()),
    }
}

fn check(metadata: &Metadata) -> io::Result<()> {
    check_rights(metadata, Others::MayRead)
        .map_err(|unsafe_rights| io::Error::new(io::ErrorKind::PermissionDenied, unsafe_rights))
}

fn about(path: &Path, error: &io::Error) -> io::Error {
    let what = format!("the folder {}: {}", path.display(), Report::new(error));
    io::Error::new(error.kind(), what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn set(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn files_that_others_can_write_are_not_read() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a.json");
        std::fs::write(&path, "{}").unwrap();
        set(&path, 0o600);
        assert_eq!(read(open(&path).unwrap(), 2).unwrap(), b"{}");
        let long = read(open(&path).unwrap(), 1).unwrap_err();
        assert_eq!(long.kind(), io::ErrorKind::FileTooLarge);
        for mode in [0o620, 0o602, 0o666] {
            set(&path, mode);
            let said = open(&path).unwrap_err().to_string();
            assert!(said.contains("other users may write to it"), "{said}");
        }
        check_folder(root.path()).unwrap();
        set(root.path(), 0o1777);
        let said = check_folder(root.path()).unwrap_err().to_string();
        assert!(said.contains("(mode 1777)"), "{said}");
        set(root.path(), 0o700);
        let link = root.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        set(&path, 0o600);
        assert!(open(&link).is_err(), "a link may lead anywhere");
        assert!(open(root.path()).is_err());
        let error = open(&root.path().join("none")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn files_of_other_users_are_not_read() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::os::unix::fs::chown(file.path(), Some(4242), None).unwrap();
        let said = open(file.path()).unwrap_err().to_string();
        assert!(said.contains("user 4242"), "{said}");
    }
}
