//! Journals that nobody else can have written: what is in them says which process
//! to look into, as root perhaps, and which files to send.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

/// Others may write there: group or anybody.
const OTHERS_WRITE: u32 = 0o022;

/// Makes sure that only this user, or root, can put files into `folder`.
pub fn folder(folder: &Path) -> io::Result<()> {
    let metadata = std::fs::metadata(folder).map_err(|error| about(folder, &error))?;
    if !metadata.is_dir() {
        return Err(about(folder, &io::ErrorKind::NotADirectory.into()));
    }
    check(&metadata).map_err(|error| about(folder, &error))
}

/// Opens a file that only this user, or root, can have written.
pub fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        // A pipe must not make us wait.
        .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
        .open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("not an ordinary file"));
    }
    check(&metadata)?;
    Ok(file)
}

/// What is in it, if that is not longer than `longest`.
pub fn text(file: File, longest: u64) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    file.take(longest + 1).read_to_end(&mut text)?;
    match u64::try_from(text.len()) {
        Ok(length) if length <= longest => Ok(text),
        _ => Err(io::ErrorKind::FileTooLarge.into()),
    }
}

fn check(metadata: &Metadata) -> io::Result<()> {
    let user = rustix::process::geteuid().as_raw();
    let no = |what: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    if metadata.uid() != user && metadata.uid() != 0 {
        return no(format!(
            "it is user {}'s, and hikkoshi runs as user {user}: what somebody else has written \
             there is not acted upon",
            metadata.uid()
        ));
    }
    if metadata.mode() & OTHERS_WRITE != 0 {
        return no(format!(
            "others may write there (mode {:o}), and what they write is not acted upon: chmod go-w \
             it, if you know what is in it",
            metadata.mode() & 0o7777
        ));
    }
    Ok(())
}

fn about(path: &Path, error: &io::Error) -> io::Error {
    let what = format!("the folder for journals, {}: {error}", path.display());
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
    fn what_others_can_write_is_not_read() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a.json");
        std::fs::write(&path, "{}").unwrap();
        set(&path, 0o600);
        assert_eq!(text(open(&path).unwrap(), 2).unwrap(), b"{}");
        let long = text(open(&path).unwrap(), 1).unwrap_err();
        assert_eq!(long.kind(), io::ErrorKind::FileTooLarge);
        for mode in [0o620, 0o602, 0o666] {
            set(&path, mode);
            let said = open(&path).unwrap_err().to_string();
            assert!(said.contains("others may write there"), "{said}");
        }
        folder(root.path()).unwrap();
        set(root.path(), 0o1777);
        let said = folder(root.path()).unwrap_err().to_string();
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
    fn what_belongs_to_somebody_else_is_not_read() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::os::unix::fs::chown(file.path(), Some(4242), None).unwrap();
        let said = open(file.path()).unwrap_err().to_string();
        assert!(said.contains("user 4242's"), "{said}");
    }
}
