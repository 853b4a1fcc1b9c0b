//! Lists the status folder, reads its files and follows its sockets.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use error_reporter::Report;
use hikkoshi_status::{Follow, FollowError, Recording, StatusEntry, StatusEntryKind, StatusFolder};

use super::Migrations;

/// How often the folder is listed.
const INTERVAL: Duration = Duration::from_millis(250);

/// An engine that sends nothing for this long is shown as lost, and connected to again. It sends
/// ten states a second.
const SILENCE: Duration = Duration::from_secs(30);

/// The most files that are read: the newest. Engines keep those of migrations that run, and 32
/// others.
const MAX_FILES: usize = 128;

/// Watches a status folder until it is dropped.
#[derive(Debug)]
pub(crate) struct FolderWatch {
    stop: Arc<AtomicBool>,
}

impl FolderWatch {
    /// Starts to watch a folder, which need not exist yet.
    ///
    /// # Errors
    /// If there cannot be another thread.
    pub(crate) fn start(folder: StatusFolder, migrations: Migrations) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new().name("dash-watch".into());
        let watch = move || {
            while !stopped.load(Ordering::Relaxed) {
                list(&folder, &migrations, &stopped);
                thread::sleep(INTERVAL);
            }
        };
        thread.spawn(watch)?;
        Ok(Self { stop })
    }
}

impl Drop for FolderWatch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Lists the folder once.
fn list(folder: &StatusFolder, migrations: &Migrations, stop: &Arc<AtomicBool>) {
    let entries = match folder.entries() {
        Ok(entries) => entries,
        Err(error) => {
            return migrations.set_folder_problem(Some(Report::new(&error).to_string()));
        }
    };
    migrations.set_folder_problem(None);
    match folder.read_evacuation() {
        Ok(evacuation) => migrations.set_evacuation(evacuation),
        // It may be one of a later version.
        Err(error) => {
            tracing::debug!(error = %Report::new(&error), "an evacuation that cannot be read");
            migrations.set_evacuation(None);
        }
    }
    let has_kind = |kind| {
        entries
            .iter()
            .filter(move |entry| entry.kind == kind && is_plain(entry))
    };
    let sockets: BTreeSet<&str> = has_kind(StatusEntryKind::Socket)
        .map(|it| &*it.name)
        .collect();
    let mut files: Vec<_> = has_kind(StatusEntryKind::File).take(MAX_FILES).collect();
    // The oldest first: a recording is joined to that of the engine before.
    files.reverse();
    for file in &files {
        let has_socket = sockets.contains(&*file.name);
        if migrations.must_read(&file.name, file.modified, has_socket) {
            match Recording::read(&file.path) {
                Ok(recording) => migrations.read(&file.name, recording, has_socket),
                Err(error) => migrations.lose(&file.name, &Report::new(&error).to_string()),
            }
        }
    }
    for socket in has_kind(StatusEntryKind::Socket) {
        if migrations.must_follow(&socket.name) {
            follow_socket(socket, migrations, stop);
        }
    }
    let mut names: BTreeSet<&str> = files.iter().map(|file| &*file.name).collect();
    names.extend(sockets);
    migrations.listed(&names);
}

/// Whether the name can be part of a path of a request, as all names of engines can.
fn is_plain(entry: &StatusEntry) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    !entry.name.is_empty() && entry.name.len() <= 100 && entry.name.bytes().all(is_plain)
}

/// Follows a socket in a thread of its own.
fn follow_socket(entry: &StatusEntry, migrations: &Migrations, stop: &Arc<AtomicBool>) {
    let (name, path) = (entry.name.clone(), entry.path.clone());
    let (followed, stop) = (migrations.clone(), Arc::clone(stop));
    let thread = thread::Builder::new().name("dash-follow".into());
    let spawned = thread.spawn(move || {
        match read_records(&name, &path, &followed, &stop) {
            Ok(()) => {}
            Err(error) if is_refused(&error) => followed.lose_killed(&name),
            // The engine has just ended.
            Err(error) if error.has_ended() => {}
            Err(error) => followed.lose(&name, &Report::new(&error).to_string()),
        }
        followed.not_followed(&name);
    });
    if let Err(cause) = spawned {
        migrations.lose(
            &entry.name,
            &format!("starting a thread that follows it: {cause}"),
        );
        migrations.not_followed(&entry.name);
    }
}

/// Reads the records of an engine until it closes the socket. If it has sent no end by then, the
/// next attempt finds out whether it was killed.
fn read_records(
    name: &str,
    path: &Path,
    migrations: &Migrations,
    stop: &AtomicBool,
) -> Result<(), FollowError> {
    let mut follow = Follow::open(path, SILENCE)?;
    while let Some(record) = follow.next()? {
        if !migrations.apply(name, record) || stop.load(Ordering::Relaxed) {
            break;
        }
    }
    Ok(())
}

/// Whether the socket is there, and no process serves it.
fn is_refused(error: &FollowError) -> bool {
    matches!(error, FollowError::Io { cause, .. }
        if cause.kind() == io::ErrorKind::ConnectionRefused)
}
