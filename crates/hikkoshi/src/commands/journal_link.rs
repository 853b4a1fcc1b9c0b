//! `--journal-link`: a link to the journal, for whoever resumes the migration.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use hikkoshi_qemu::FindProcessError;

use crate::journal::{JournalEntry, JournalFile, absolute};

/// Makes `link` lead to the journal `file`, which need not exist yet.
///
/// # Errors
/// When it leads to the journal of another migration that may be unfinished, when something else
/// has that name, or when it cannot be made.
pub(super) fn make<E: JournalEntry>(link: &Path, file: &JournalFile) -> io::Result<()> {
    let link = absolute(link);
    let about = |error: &io::Error| {
        let error = error.to_string();
        io::Error::other(format!("{} (--journal-link): {error}", link.display()))
    };
    check::<E>(&link, file).map_err(|error| about(&error))?;
    replace(&link, file.path()).map_err(|error| about(&error))
}

fn check<E: JournalEntry>(link: &Path, file: &JournalFile) -> io::Result<()> {
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
        Some(entry) => is_unfinished(entry).map_err(io::Error::other)?,
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

/// Whether the migration may still be resumed.
fn is_unfinished<E: JournalEntry>(entry: &E) -> Result<bool, FindProcessError> {
    if entry.is_given_up() {
        // Its own path, which was reported, is enough to answer its source.
        return Ok(false);
    }
    match entry.identity().process() {
        Ok(Some(_)) => Ok(true),
        // Its other side may wait for an answer, or for pages that are in a file.
        Ok(None) => Ok(!entry.ends_with_qemu()),
        Err(FindProcessError::AnotherBoot { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whoever reads the link finds the old or the new one.
fn replace(link: &Path, journal: &Path) -> io::Result<()> {
    // A name that nothing else has.
    let folder = link.parent().unwrap_or_else(|| Path::new("."));
    let new = tempfile::Builder::new()
        .prefix(".hikkoshi-link-")
        .make_in(folder, |path| symlink(journal, path))?;
    new.into_temp_path()
        .persist(link)
        .map_err(|error| error.error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::{DestinationEntry, SourceEntry, decode};
    use hikkoshi_handover::{DestinationStage, SourceStage};
    use hikkoshi_qemu::QemuIdentity;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    #[derive(PartialEq)]
    enum Qemu {
        OfAnotherBoot,
        Ended,
        Runs,
    }

    /// A journal in `folder`, at this stage, as if this process were its QEMU.
    fn journal(folder: &Path, number: u32, qemu: Qemu, stage: SourceStage) -> JournalFile {
        let kept = include_bytes!("../../tests/journals/source-certified.json");
        let mut entry = decode::<SourceEntry>(kept).unwrap();
        entry.engine.stage = stage;
        of_qemu(&mut entry.qemu.identity, &qemu);
        let file = JournalFile::lock(&folder.join(format!("source-{number}-1.json"))).unwrap();
        file.write(&entry).unwrap();
        file
    }

    fn of_qemu(identity: &mut QemuIdentity, qemu: &Qemu) {
        if *qemu != Qemu::OfAnotherBoot {
            let stat = fs::read_to_string("/proc/self/stat").unwrap();
            let (_, fields) = stat.rsplit_once(')').unwrap();
            identity.pid = std::process::id();
            identity.start_time = fields.split_whitespace().nth(19).unwrap().parse().unwrap();
            // Another process had this number before.
            identity.start_time -= u64::from(*qemu == Qemu::Ended);
            let namespaces = &mut identity.namespaces;
            let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
            boot.trim().clone_into(&mut namespaces.boot_id);
            let number = |kind| fs::metadata(format!("/proc/self/ns/{kind}")).map(|m| m.ino());
            namespaces.pid_namespace = number("pid").unwrap();
            namespaces.time_namespace = number("time").ok();
        }
    }

    /// Its journal answers the source, if that asks, and is in the way of nothing.
    #[test]
    fn the_journal_of_a_migration_that_was_given_up_gives_way() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        let lead = |file: &JournalFile| make::<DestinationEntry>(&link, file);
        let kept = include_bytes!("../../tests/journals/destination-inviting.json");
        let mut entry = decode::<DestinationEntry>(kept).unwrap();
        let file = |number: u32| {
            let name = format!("destination-{number}-1.json");
            JournalFile::lock(&folder.path().join(name)).unwrap()
        };
        let (earlier, next) = (file(1), file(2));
        for qemu in [Qemu::Ended, Qemu::Runs] {
            of_qemu(&mut entry.qemu.identity, &qemu);
            // An engine that declined waits for the source, which may keep the guest paused.
            for (stage, given_up) in [
                (DestinationStage::Declined, false),
                (DestinationStage::Ready, true),
            ] {
                (entry.engine.stage, entry.engine.given_up) = (stage, given_up);
                earlier.write(&entry).unwrap();
                lead(&earlier).unwrap();
                let error = lead(&next).unwrap_err().to_string();
                assert!(error.contains("of another migration"), "{error}");
            }
            entry.engine.stage = DestinationStage::Declined;
            earlier.write(&entry).unwrap();
            lead(&next).unwrap();
            assert_eq!(fs::read_link(&link).unwrap(), next.path());
            assert!(earlier.path().exists());
        }
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
        let of_another_boot = Qemu::OfAnotherBoot;
        let earlier = journal(folder.path(), 1, of_another_boot, SourceStage::HandedOver);
        lead(&earlier).unwrap();
        assert_eq!(there(), earlier.path());
        // Its guest has ended with it.
        let ended = journal(folder.path(), 3, Qemu::Ended, SourceStage::Owned);
        lead(&ended).unwrap();
        let running = journal(folder.path(), 2, Qemu::Runs, SourceStage::Owned);
        lead(&running).unwrap();
        lead(&running).unwrap();
        let error = lead(&first).unwrap_err().to_string();
        assert!(error.contains("source-2-1.json, the journal of"), "{error}");
        assert_eq!(there(), running.path());
        running.remove();
        // Its guest needs the memory that QEMU has left in a file.
        let handed_over = journal(folder.path(), 4, Qemu::Ended, SourceStage::HandedOver);
        lead(&handed_over).unwrap();
        let error = lead(&first).unwrap_err().to_string();
        assert!(error.contains("source-4-1.json, the journal of"), "{error}");
        handed_over.remove();
        lead(&first).unwrap();
        assert_eq!(there(), first.path());
        let left = fs::read_dir(folder.path()).unwrap();
        let left = left.filter_map(|entry| entry.unwrap().file_name().into_string().ok());
        assert!(left.into_iter().all(|name| !name.starts_with('.')));
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
