//! Files that an operator has written: a template, the rules of `--admit`, a domain's description.
//!
//! They name programs that this process starts, perhaps as root, and files of this host. So they
//! are read only if no other user can have written them, as journals are.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use error_reporter::Report;
use hikkoshi_linux::{Others, check_rights};
use rustix::fs::OFlags;

/// The largest file, in bytes.
const MAX_LEN: u64 = 1 << 20;

/// Reads such a file. It may be a link: what it leads to is checked.
///
/// # Errors
/// Why it is not used: it cannot be read, is not a regular file, is too large, or users other than
/// this one and root may write to it or to its folder.
pub(super) fn read(file: &Path) -> Result<String, String> {
    let opened = open(file).map_err(|error| Report::new(&error).to_string())?;
    let mut text = String::new();
    match opened.take(MAX_LEN + 1).read_to_string(&mut text) {
        Ok(bytes) if bytes as u64 <= MAX_LEN => Ok(text),
        Ok(_) => Err("it is too large".to_owned()),
        Err(error) => Err(Report::new(&error).to_string()),
    }
}

/// The most links that lead to a file, as in the kernel (`MAXSYMLINKS`).
const MAX_LINKS: usize = 40;

fn open(file: &Path) -> io::Result<File> {
    let real = file.canonicalize()?;
    // The folder of each link, too: who can write to it can replace the link.
    let mut place = file.to_owned();
    for _ in 0..=MAX_LINKS {
        let folder = place
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new(".")).to_owned();
        check_folder(&folder)?;
        match fs::read_link(&place) {
            // An absolute one replaces the folder.
            Ok(target) => place = folder.join(target),
            Err(_) => break,
        }
    }
    check_folder(real.parent().unwrap_or(Path::new("/")))?;
    let opened = OpenOptions::new()
        .read(true)
        // Not a link that has taken its place; and opening a pipe must not block.
        .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
        .open(&real)?;
    let metadata = opened.metadata()?;
    if !metadata.is_file() {
        return Err(refused("it is not a regular file"));
    }
    check_rights(&metadata, Others::MayRead).map_err(|rights| refused(&rights.to_string()))?;
    Ok(opened)
}

fn check_folder(folder: &Path) -> io::Result<()> {
    let checked = check_rights(&fs::metadata(folder)?, Others::MayRead);
    checked.map_err(|rights| refused(&format!("its folder {}: {rights}", folder.display())))
}

fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn set(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn files_that_others_can_write_or_replace_are_not_read() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("folder");
        fs::create_dir(&folder).unwrap();
        let path = folder.join("template");
        fs::write(&path, "qemu").unwrap();
        let link = root.path().join("link");
        symlink(&path, &link).unwrap();
        for (file_mode, folder_mode, why) in [
            (0o600, 0o700, None),
            (0o644, 0o755, None),
            (0o664, 0o755, Some("(mode 664)")),
            (0o602, 0o755, Some("(mode 602)")),
            (0o644, 0o775, Some("(mode 775)")),
            (0o644, 0o1777, Some("(mode 1777)")),
        ] {
            set(&path, file_mode);
            set(&folder, folder_mode);
            for given in [&path, &link] {
                match (read(given), why) {
                    (Ok(text), None) => assert_eq!(text, "qemu"),
                    (Err(error), Some(why)) => assert!(error.contains(why), "{error}"),
                    (read, why) => panic!("{file_mode:o} {folder_mode:o}: {read:?} {why:?}"),
                }
            }
        }
        // A link that others can replace.
        set(&folder, 0o700);
        assert!(read(&link).is_ok());
        set(root.path(), 0o777);
        assert!(read(&path).is_ok());
        assert!(read(&link).unwrap_err().contains("(mode 777)"));
    }

    #[test]
    fn each_link_of_a_chain_must_be_in_a_folder_of_its_own() {
        let root = tempfile::tempdir().unwrap();
        let folder = |name: &str| {
            let folder = root.path().join(name);
            fs::create_dir(&folder).unwrap();
            folder
        };
        let [first, middle, last] = ["first", "middle", "last"].map(folder);
        fs::write(last.join("template"), "qemu").unwrap();
        symlink("../last/template", middle.join("link")).unwrap();
        symlink(middle.join("link"), first.join("link")).unwrap();
        let read = || read(&first.join("link"));
        assert_eq!(read().unwrap(), "qemu");
        set(&middle, 0o777);
        let error = read().unwrap_err();
        assert!(
            error.contains("middle: ") && error.contains("(mode 777)"),
            "{error}"
        );
    }

    #[test]
    fn what_is_not_a_file_or_too_long_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let pipe = rustix::fs::CWD;
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mkfifoat(pipe, path("pipe"), mode).unwrap();
        // A pipe without a writer.
        for (name, why) in [("pipe", "not a regular file"), ("none", "No such file")] {
            let error = read(&path(name)).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        assert!(read(folder.path()).is_err());
        let long = fs::File::create(path("long")).unwrap();
        long.set_len(MAX_LEN + 1).unwrap();
        assert!(read(&path("long")).unwrap_err().contains("too large"));
    }

    #[test]
    fn files_of_other_users_are_not_read() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("template");
        fs::write(&path, "qemu").unwrap();
        std::os::unix::fs::chown(&path, Some(4242), None).unwrap();
        assert!(read(&path).unwrap_err().contains("user 4242"));
    }
}
