//! Files that an operator has written: a template, the rules of `--admit`, a domain's description.
//!
//! They name programs that this process starts, perhaps as root, and files of this host. So they
//! are read only if no other user can have written them, as journals are.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use error_reporter::Report;
use hikkoshi_linux::{Others, check_rights};
use rustix::fs::OFlags;

/// The largest file, in bytes.
const MAX_LEN: u64 = 1 << 20;

/// Reads such a file. There may be links on its path: what they lead to is checked, and that no
/// other user can replace them.
///
/// # Errors
/// Why it is not used: it cannot be read, is not a regular file, is too large, or users other than
/// this one and root may write to it, to its folder, or to the folder of a link on its path.
pub(crate) fn read(file: &Path) -> Result<String, String> {
    let opened = open(file).map_err(|error| Report::new(&error).to_string())?;
    let mut text = String::new();
    match opened.take(MAX_LEN + 1).read_to_string(&mut text) {
        Ok(bytes) if bytes as u64 <= MAX_LEN => Ok(text),
        Ok(_) => Err("it is too large".to_owned()),
        Err(error) => Err(Report::new(&error).to_string()),
    }
}

/// The most links on a path, as in the kernel (`MAXSYMLINKS`).
const MAX_LINKS: usize = 40;

fn open(file: &Path) -> io::Result<File> {
    let real = follow(file)?;
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

/// The path without links. The folder of each link is checked: who can write to it can replace the
/// link.
fn follow(path: &Path) -> io::Result<PathBuf> {
    let mut rest = parts(&std::path::absolute(path)?);
    let mut links = 0;
    let mut real = PathBuf::from("/");
    while let Some(name) = rest.pop_front() {
        if name == ".." {
            real.pop();
            continue;
        }
        let place = real.join(&name);
        match fs::read_link(&place) {
            Ok(target) => {
                check_folder(&real)?;
                links += 1;
                if links > MAX_LINKS {
                    return Err(rustix::io::Errno::LOOP.into());
                }
                if target.is_absolute() {
                    real = PathBuf::from("/");
                }
                let mut before = parts(&target);
                before.append(&mut rest);
                rest = before;
            }
            // Not a link.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => real = place,
            Err(error) => return Err(error),
        }
    }
    Ok(real)
}

/// The names in a path, and `..`.
fn parts(path: &Path) -> VecDeque<OsString> {
    let parts = path.components().filter(|part| {
        let is_name = matches!(part, Component::Normal(_));
        is_name || *part == Component::ParentDir
    });
    parts.map(|part| part.as_os_str().to_owned()).collect()
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
    fn a_link_to_a_folder_of_the_path_must_be_in_a_folder_of_its_own() {
        let root = tempfile::tempdir().unwrap();
        let shared = root.path().join("shared");
        let real = root.path().join("real");
        for folder in [&shared, &real, &real.join("inner")] {
            fs::create_dir(folder).unwrap();
        }
        fs::write(real.join("inner/template"), "qemu").unwrap();
        symlink("../real", shared.join("link")).unwrap();
        // A link to a folder beyond that link.
        symlink(shared.join("link/inner"), root.path().join("outer")).unwrap();
        let paths = ["shared/link/inner/template", "outer/../inner/template"];
        for path in paths.map(|path| root.path().join(path)) {
            set(&shared, 0o755);
            assert_eq!(read(&path).unwrap(), "qemu");
            set(&shared, 0o777);
            let error = read(&path).unwrap_err();
            assert!(
                error.contains("shared: ") && error.contains("(mode 777)"),
                "{error}"
            );
        }
        symlink("circle", root.path().join("circle")).unwrap();
        let error = read(&root.path().join("circle/template")).unwrap_err();
        assert!(error.contains("symbolic links"), "{error}");
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
