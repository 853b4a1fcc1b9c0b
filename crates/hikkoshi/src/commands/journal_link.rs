//! `--journal-link`: a link to the journal, for whoever resumes the migration.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::commands::find_journal::may_exist;
use crate::journal::{Entry, JournalFile, absolute};

/// Makes `link` lead to the journal `file`, which need not exist yet.
///
/// # Errors
/// When it leads to the journal of another migration that may be unfinished, when something else
/// has that name, or when it cannot be made.
pub(super) fn make<E: Entry>(link: &Path, file: &JournalFile) -> io::Result<()> {
    let link = absolute(link);
    let about = |error: &io::Error| {
        let error = error.to_string();
        io::Error::other(format!("{} (--journal-link): {error}", link.display()))
    };
    check::<E>(&link, file).map_err(|error| about(&error))?;
    replace(&link, file.path()).map_err(|error| about(&error))
}

fn check<E: Entry>(link: &Path, file: &JournalFile) -> io::Result<()> {
    // Otherwise nobody could resume by it.
    JournalFile::check_place(link)?;
    match fs::symlink_metadata(link) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(there) if !there.is_symlink() => {
            return Err(io::Error::other("it exists, and is no symbolic link"));
        }
        Ok(_) => {}
    }
    let earlier = match fs::canonicalize(link) {
        Ok(earlier) if earlier != file.path() => earlier,
        // The journal of a migration that is over was removed.
        _ => return Ok(()),
    };
    let entry = JournalFile::read_at::<E>(&earlier)?;
    let is_unfinished = match &entry {
        Some(entry) => may_exist(entry.identity()).map_err(io::Error::other)?,
        None => false,
    };
    match is_unfinished {
        true => Err(io::Error::other(format!(
            "it leads to {}, the journal of another migration, which is not finished: finish that \
             one first (--resume={}), or use another link",
            earlier.display(),
            link.display()
        ))),
        false => Ok(()),
    }
}

/// Whoever reads the link finds the old or the new one.
fn replace(link: &Path, journal: &Path) -> io::Result<()> {
    let mut new = link.as_os_str().to_owned();
    new.push(OsString::from(".new"));
    let new = PathBuf::from(new);
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    symlink(journal, &new)?;
    fs::rename(&new, link)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::SourceEntry;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    /// A journal in `folder`; that of a QEMU of another boot, or as if this process were it.
    fn journal(folder: &Path, number: u32, runs: bool) -> JournalFile {
        let kept = include_bytes!("../../tests/journals/v3-source-certified.json");
        let mut entry = SourceEntry::decode(kept).unwrap();
        let identity = &mut entry.qemu.identity;
        if runs {
            let stat = fs::read_to_string("/proc/self/stat").unwrap();
            let (_, fields) = stat.rsplit_once(')').unwrap();
            identity.pid = std::process::id();
            identity.start_time = fields.split_whitespace().nth(19).unwrap().parse().unwrap();
            let namespaces = &mut identity.namespaces;
            let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
            boot.trim().clone_into(&mut namespaces.boot_id);
            let number = |kind| fs::metadata(format!("/proc/self/ns/{kind}")).map(|m| m.ino());
            namespaces.pid_namespace = number("pid").unwrap();
            namespaces.time_namespace = number("time").ok();
        }
        let file = JournalFile::lock(&folder.join(format!("source-{number}-1.json"))).unwrap();
        file.write(&entry).unwrap();
        file
    }

    #[test]
    fn the_link_leads_to_the_newest_journal_unless_an_earlier_one_is_needed() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        let lead = |file: &JournalFile| make::<SourceEntry>(&link, file);
        let there = || fs::read_link(&link).unwrap();
        // It is made before the journal.
        let first = JournalFile::lock(&folder.path().join("source-9-9.json")).unwrap();
        lead(&first).unwrap();
        assert_eq!(there(), first.path());
        let ended = journal(folder.path(), 1, false);
        lead(&ended).unwrap();
        assert_eq!(there(), ended.path());
        let running = journal(folder.path(), 2, true);
        lead(&running).unwrap();
        lead(&running).unwrap();
        let error = lead(&first).unwrap_err().to_string();
        assert!(error.contains("source-2-1.json, the journal of"), "{error}");
        assert_eq!(there(), running.path());
        running.remove();
        lead(&first).unwrap();
        assert_eq!(there(), first.path());
        // What cannot be read may be unfinished.
        fs::write(ended.path(), "{").unwrap();
        lead(&ended).unwrap();
        assert!(lead(&first).is_err());
    }

    #[test]
    fn another_file_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let file = JournalFile::lock(&folder.path().join("source-1-1.json")).unwrap();
        let other = folder.path().join("other");
        fs::write(&other, "mine").unwrap();
        let error = make::<SourceEntry>(&other, &file).unwrap_err().to_string();
        assert!(error.contains("no symbolic link"), "{error}");
        assert_eq!(fs::read(&other).unwrap(), b"mine");
        // Another user could make it lead elsewhere.
        let shared = folder.path().join("shared");
        fs::create_dir(&shared).unwrap();
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(make::<SourceEntry>(&shared.join("link"), &file).is_err());
        symlink(file.path(), shared.join("link")).unwrap();
        assert!(JournalFile::resolve(&shared.join("link")).is_err());
        let nowhere = folder.path().join("nowhere/link");
        let error = make::<SourceEntry>(&nowhere, &file).unwrap_err();
        assert!(error.to_string().contains("--journal-link"), "{error}");
    }
}
