//! Which recordings are kept, and what killed engines have left.

use std::collections::BTreeSet;
use std::fs;
use std::io;

use hikkoshi_linux::connect_unix;

use super::{FolderError, MAX_TOTAL_BYTES, StatusEntry, StatusEntryKind, StatusFolder};

/// Recordings of ended migrations that are kept: the newest. Those of migrations that run are kept
/// besides.
const MAX_ENDED_RECORDINGS: usize = 32;

/// Room that is left for others in the file system, in bytes. Journals are in the same one, and a
/// migration cannot continue without its journal.
const LEFT_FREE: u64 = 16 << 20;

impl StatusFolder {
    /// Removes the oldest recordings of ended migrations, so that one of `bytes` can be stored as
    /// `name`.
    pub(super) fn make_room(&self, name: &str, bytes: u64) -> Result<(), FolderError> {
        let entries = self.all_entries()?;
        let sockets = entries
            .iter()
            .filter(|entry| entry.kind == StatusEntryKind::Socket);
        let running: BTreeSet<&str> = sockets.map(|entry| &*entry.name).collect();
        let others = entries
            .iter()
            .filter(|entry| entry.kind == StatusEntryKind::File && entry.name != name);
        let (kept, ended): (Vec<_>, Vec<_>) =
            others.partition(|entry| running.contains(&*entry.name));
        let size = |entry: &&StatusEntry| fs::metadata(&entry.path).map_or(0, |file| file.len());
        let of_running = kept.iter().map(size).fold(0, u64::saturating_add);
        let mut sum = of_running.saturating_add(bytes);
        if sum > MAX_TOTAL_BYTES {
            return Err(FolderError::Full {
                folder: self.0.clone(),
                running: kept.len(),
                bytes: of_running,
            });
        }
        let own = usize::from(!running.contains(name));
        for (number, old) in (own + 1..).zip(&ended) {
            sum = sum.saturating_add(size(old));
            if number > MAX_ENDED_RECORDINGS || sum > MAX_TOTAL_BYTES {
                // What cannot be read is not remembered.
                let _ = self.remember(&old.path);
                let _ = fs::remove_file(&old.path);
            }
        }
        let system = rustix::fs::statvfs(&self.0).map_err(|error| self.failed(error.into()))?;
        let free = system.f_bavail.saturating_mul(system.f_frsize);
        match free >= bytes.saturating_add(LEFT_FREE) {
            true => Ok(()),
            false => Err(self.failed(io::ErrorKind::StorageFull.into())),
        }
    }

    /// Removes what killed engines left beside their recordings: sockets that no process serves,
    /// and files that were not complete. Never waits for an engine.
    pub fn remove_stale(&self) {
        let Ok(entries) = self.all_entries() else {
            return;
        };
        let mut running = BTreeSet::new();
        for entry in entries {
            if entry.kind != StatusEntryKind::Socket {
                continue;
            }
            match connect_unix(&entry.path) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    let _ = fs::remove_file(entry.path);
                }
                _ => {
                    running.insert(entry.path.with_extension("new"));
                }
            }
        }
        let files = fs::read_dir(&self.0).into_iter().flatten().flatten();
        for file in files.map(|file| file.path()) {
            if file.extension().is_some_and(|it| it == "new") && !running.contains(&file) {
                let _ = fs::remove_file(file);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::examples::{files, filled, folder, recorded, running};
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::time::SystemTime;

    #[test]
    fn only_the_newest_are_kept() {
        let (_run, folder) = folder();
        folder.create().unwrap();
        for pid in 0..u32::try_from(MAX_ENDED_RECORDINGS).unwrap() + 5 {
            let file = folder.store(recorded(pid).recording()).unwrap();
            let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(pid.into());
            fs::File::open(file).unwrap().set_modified(time).unwrap();
        }
        // The last one was stored with the present time, and is the newest.
        let entries = folder.entries().unwrap();
        assert_eq!(entries.len(), MAX_ENDED_RECORDINGS);
        assert!(
            !entries
                .iter()
                .any(|entry| entry.name.starts_with("source-0-"))
        );
    }

    #[test]
    fn large_recordings_make_room_for_new_ones() {
        let (_run, folder) = folder();
        folder.create().unwrap();
        for number in 0..5 {
            let file = fs::File::create(folder.path().join(format!("a-{number}.json"))).unwrap();
            file.set_len(10 << 20).unwrap();
            let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(number);
            file.set_modified(time).unwrap();
        }
        folder.store(recorded(7).recording()).unwrap();
        let left = folder.entries().unwrap();
        let names: Vec<_> = left.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names, ["source-7-00112233", "a-4", "a-3", "a-2"]);
    }

    #[test]
    fn recordings_of_running_migrations_are_never_removed() {
        // The oldest one belongs to a migration that runs, and is as large as all others.
        let (_run, folder) = filled(&[
            ("running.json", 15 << 20),
            ("a.json", 8 << 20),
            ("b.json", 8 << 20),
            ("c.json", 8 << 20),
        ]);
        let _socket = UnixListener::bind(folder.path().join("running.sock")).unwrap();
        folder.store(recorded(7).recording()).unwrap();
        assert_eq!(files(&folder), ["source-7-00112233", "c", "b", "running"]);
        // Also not by their number.
        for pid in 100..200 {
            folder.store(recorded(pid).recording()).unwrap();
        }
        let left = files(&folder);
        assert_eq!(left.len(), 1 + MAX_ENDED_RECORDINGS);
        assert!(left.contains(&"running".to_owned()), "{left:?}");
    }

    #[test]
    fn all_running_migrations_and_the_newest_ended_ones_are_kept() {
        for number in [40, 300] {
            let (_run, folder, _sockets) = running(number);
            for pid in 1000..1100 {
                folder.store(recorded(pid).recording()).unwrap();
            }
            let left = files(&folder);
            assert_eq!(left.len(), number + MAX_ENDED_RECORDINGS);
            let of_running = left.iter().filter(|name| name.starts_with('r'));
            assert_eq!(of_running.count(), number);
        }
    }

    #[test]
    fn what_running_engines_have_is_not_stale() {
        let (_run, folder, sockets) = running(300);
        folder.remove_stale();
        let left = |extension: &str| {
            let files = fs::read_dir(folder.path()).unwrap();
            let paths = files.map(|file| file.unwrap().path());
            paths
                .filter(|path| path.extension().is_some_and(|it| it == extension))
                .count()
        };
        assert_eq!((left("sock"), left("new"), left("json")), (300, 300, 300));
        // The engines are killed.
        drop(sockets);
        folder.remove_stale();
        assert_eq!((left("sock"), left("new"), left("json")), (0, 0, 300));
    }

    #[test]
    fn running_migrations_without_room_for_another_recording_are_counted_in_bytes() {
        let (_run, folder) = filled(&[("r0.json", 16 << 20), ("r1.json", (16 << 20) - 10)]);
        for name in ["r0.sock", "r1.sock"] {
            drop(UnixListener::bind(folder.path().join(name)).unwrap());
        }
        let refused = folder.store(recorded(7).recording()).unwrap_err();
        assert!(
            matches!(refused, FolderError::Full { running: 2, .. }),
            "{refused}"
        );
        assert_eq!(files(&folder).len(), 2);
        // One of them can be stored again.
        let own = recorded(8);
        let own_name = folder.path().join(own.recording().migration.entry_name());
        for extension in ["json", "sock"] {
            let old = folder.path().join("r0").with_extension(extension);
            fs::rename(old, own_name.with_extension(extension)).unwrap();
        }
        folder.store(own.recording()).unwrap();
        assert_eq!(files(&folder).len(), 2);
    }

    #[test]
    fn what_killed_engines_left_is_removed_except_recordings() {
        let (_run, folder) = folder();
        folder.create().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["a.json", "a.new", "b.json", "b.new", "c.new"] {
            fs::write(path(name), "{}").unwrap();
        }
        drop(UnixListener::bind(path("a.sock")).unwrap());
        let _listener = UnixListener::bind(path("b.sock")).unwrap();
        folder.remove_stale();
        let mut left: Vec<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["a.json", "b.json", "b.new", "b.sock"]);
    }

    #[test]
    fn an_engine_that_accepts_nothing_is_neither_waited_for_nor_removed() {
        let (_run, folder) = folder();
        folder.create().unwrap();
        let socket = folder.path().join("a.sock");
        let _listener = UnixListener::bind(&socket).unwrap();
        let mut clients = Vec::new();
        while let Ok(client) = connect_unix(&socket) {
            clients.push(client);
        }
        folder.remove_stale();
        assert!(socket.exists());
    }
}
