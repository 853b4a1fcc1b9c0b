//! Status folders for tests.

use std::fs;
use std::os::unix::net::UnixListener;
use std::time::SystemTime;

use super::{StatusEntryKind, StatusFolder};
use crate::Recorder;
use crate::record::examples::{migration, state};

pub(super) fn folder() -> (tempfile::TempDir, StatusFolder) {
    let run = tempfile::tempdir().unwrap();
    let folder = StatusFolder::in_run_folder(run.path());
    (run, folder)
}

pub(super) fn recorded(pid: u32) -> Recorder {
    let mut migration = migration();
    migration.pid = pid;
    let mut recorder = Recorder::new(migration);
    recorder.add(state(100));
    recorder
}

/// Makes room for a recording that is stored next as if these files were there: name and bytes.
pub(super) fn filled(files: &[(&str, u64)]) -> (tempfile::TempDir, StatusFolder) {
    let (run, folder) = folder();
    folder.create().unwrap();
    for (number, (name, bytes)) in (0..).zip(files) {
        let file = fs::File::create(folder.path().join(name)).unwrap();
        file.set_len(*bytes).unwrap();
        let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(number);
        file.set_modified(time).unwrap();
    }
    (run, folder)
}

pub(super) fn files(folder: &StatusFolder) -> Vec<String> {
    let entries = folder.all_entries().unwrap().into_iter();
    let files = entries.filter(|entry| entry.kind == StatusEntryKind::File);
    files.map(|entry| entry.name).collect()
}

/// Migrations that run, with their sockets, files and files that are being written. They are
/// older than all that is stored next.
pub(super) fn running(number: usize) -> (tempfile::TempDir, StatusFolder, Vec<UnixListener>) {
    let names: Vec<_> = (0..number).map(|number| format!("r{number:03}")).collect();
    let files: Vec<_> = names
        .iter()
        .flat_map(|name| [format!("{name}.json"), format!("{name}.new")])
        .collect();
    let sizes: Vec<_> = files.iter().map(|name| (name.as_str(), 10)).collect();
    let (run, folder) = filled(&sizes);
    let socket = |name: &String| folder.path().join(name).with_extension("sock");
    let sockets = names
        .iter()
        .map(|name| UnixListener::bind(socket(name)).unwrap())
        .collect();
    (run, folder, sockets)
}
