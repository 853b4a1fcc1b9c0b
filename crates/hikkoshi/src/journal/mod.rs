//! The journal: what is written down of a migration on this host, so that
//! `--resume` can go on where an engine was killed or has given up waiting.
//!
//! One file for each side of a migration, named after QEMU's process, readable
//! by its owner only (it holds the migration's secret number and keys). It is replaced as
//! a whole, so that whoever reads it finds the old or the new content, and
//! removed when the migration is over on both sides. Who works with it holds a
//! lock. What somebody else could have written is not read (`permissions.rs`): it says
//! which process to look into.

mod permissions;

use std::fmt;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hikkoshi_handover::{DestinationRecord, Journal, SourceRecord};
use hikkoshi_link::tls::{DestinationCredentials, SourceCredentials, TlsClient, TlsServer};
use hikkoshi_link::{Address, Remote};
use hikkoshi_qemu::{DestinationNotes, QemuIdentity, SharedNotes, SourceNotes, UndoRecord};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The form of the files. Another one is not read.
const FORM: u32 = 2;

/// More than any record takes: a few hundred bytes for each RAM block.
const LONGEST: u64 = 16 << 20;

/// How long whoever has the lock may take to let it go.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long a guard may take: it waits for QEMU's monitor, which has to notice first
/// that the engine before has gone.
const GUARD_PATIENCE: Duration = Duration::from_secs(60);

/// What a guard writes into the lock that it holds.
const GUARD: &str = "guard";

/// A source's journal.
#[derive(Debug, Serialize, Deserialize)]
pub struct SourceEntry {
    form: u32,
    /// Where the destination was.
    pub address: String,
    /// What was chosen on the command line, see [`Common`](crate::args::Common).
    pub options: Vec<String>,
    /// How the links were protected, if they were.
    pub security: Option<SourceCredentials>,
    pub engine: SourceRecord,
    pub qemu: SourceNotes,
}

/// A destination's journal.
#[derive(Debug, Serialize, Deserialize)]
pub struct DestinationEntry {
    form: u32,
    /// Where it listened.
    pub address: String,
    /// What was chosen on the command line, see [`Common`](crate::args::Common).
    pub options: Vec<String>,
    /// How the links were protected, if they were.
    pub security: Option<DestinationCredentials>,
    pub engine: DestinationRecord,
    pub qemu: DestinationNotes,
}

/// One of the two.
pub trait Entry: fmt::Debug + Send + Serialize + DeserializeOwned {
    /// The side, for file names.
    const SIDE: &'static str;
    /// What goes on with it.
    const COMMAND: &'static str;
    /// What the engine has in it.
    type Record: Clone;
    fn form(&self) -> u32;
    fn place(&self) -> &QemuIdentity;
    fn engine(&mut self) -> &mut Self::Record;
}

impl Entry for SourceEntry {
    const SIDE: &'static str = "source";
    const COMMAND: &'static str = "migrate";
    type Record = SourceRecord;
    fn form(&self) -> u32 {
        self.form
    }
    fn place(&self) -> &QemuIdentity {
        &self.qemu.identity
    }
    fn engine(&mut self) -> &mut SourceRecord {
        &mut self.engine
    }
}

impl Entry for DestinationEntry {
    const SIDE: &'static str = "destination";
    const COMMAND: &'static str = "receive";
    type Record = DestinationRecord;
    fn form(&self) -> u32 {
        self.form
    }
    fn place(&self) -> &QemuIdentity {
        &self.qemu.identity
    }
    fn engine(&mut self) -> &mut DestinationRecord {
        &mut self.engine
    }
}

/// Where journals are: as given, else `/run/hikkoshi`, or for an ordinary user
/// `$XDG_RUNTIME_DIR/hikkoshi`.
pub fn folder(given: Option<&Path>) -> PathBuf {
    if let Some(given) = given {
        return given.to_owned();
    }
    let ordinary = !rustix::process::geteuid().is_root();
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| ordinary && !dir.is_empty()) {
        Some(dir) => Path::new(&dir).join("hikkoshi"),
        None => PathBuf::from("/run/hikkoshi"),
    }
}

/// The address as it is written down: good wherever one is started later.
pub fn written(address: &Address) -> String {
    match address {
        Address::Unix(path) => Address::Unix(absolute(path)).to_string(),
        Address::Tcp(_) => address.to_string(),
    }
}

/// The path from the root, as far as that can be found out.
pub fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Who has a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockHolder {
    /// Somebody who moves the guest: that may take long.
    Engine,
    /// A guard, which brings the guest back and ends.
    Guard,
}

/// How long to wait for the one who has it.
fn patience(path: &Path) -> Duration {
    let name = path.with_extension("lock");
    let longest = u64::try_from(GUARD.len()).unwrap_or(u64::MAX);
    match permissions::open(&name).and_then(|file| permissions::text(file, longest)) {
        Ok(text) if text == GUARD.as_bytes() => GUARD_PATIENCE,
        _ => PATIENCE,
    }
}

/// A journal file, which nobody else works with.
#[derive(Debug)]
pub struct Page {
    path: PathBuf,
    lock: File,
}

impl Page {
    /// The page of a QEMU's side in `folder`, which is made if need be.
    pub fn of<E: Entry>(folder: &Path, place: &QemuIdentity) -> io::Result<Self> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(|error| elsewhere(about(folder, &error)))?;
        let name = format!("{}-{}-{}.json", E::SIDE, place.pid, place.start_time);
        Self::lock(&folder.join(name))
    }

    /// Takes hold of the file at `path`, which need not be there.
    pub fn lock(path: &Path) -> io::Result<Self> {
        let path = absolute(path);
        if let Some(folder) = path.parent() {
            permissions::folder(folder)?;
        }
        let begun = Instant::now();
        let lock = loop {
            match Self::try_lock(&path) {
                Ok(Some(lock)) => break lock,
                Ok(None) if begun.elapsed() < patience(&path) => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Ok(None) => {
                    let busy = io::Error::new(
                        io::ErrorKind::WouldBlock,
                        "another hikkoshi is at work on this migration: wait for its end",
                    );
                    return Err(about(&path, &busy));
                }
                Err(error) => return Err(about(&path, &error)),
            }
        };
        let page = Self { path, lock };
        page.mark(LockHolder::Engine);
        Ok(page)
    }

    /// Tells those who wait for this page who has it.
    pub fn mark(&self, holder: LockHolder) {
        let text = match holder {
            LockHolder::Engine => "",
            LockHolder::Guard => GUARD,
        };
        // Without it they only wait less long.
        let written = self.lock.set_len(0);
        if let Err(error) = written.and_then(|()| (&self.lock).write_all(text.as_bytes())) {
            tracing::debug!(%error, "marking a lock");
        }
    }

    /// `None` while somebody else has it.
    fn try_lock(path: &Path) -> io::Result<Option<File>> {
        let name = path.with_extension("lock");
        let lock = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .open(&name)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        // Whoever had it may have removed it on leaving: then the next one makes
        // a new file, and has a lock of its own.
        Ok(is_at(&lock, &name)?.then_some(lock))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is written there; `None` if nothing is.
    pub fn read<E: Entry>(&self) -> io::Result<Option<E>> {
        read(&self.path)
    }

    /// Replaces what is written there. On an error it is as it was.
    fn write<E: Entry>(&self, entry: &E) -> io::Result<()> {
        let before = match std::fs::read(&self.path) {
            Ok(before) => Some(before),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(elsewhere(about(&self.path, &error))),
        };
        let text = serde_json::to_vec_pretty(entry).map_err(io::Error::other)?;
        self.put(&text).map_err(|error| {
            // It may be there already, though not for good.
            if let Err(again) = self.put_back(before.as_deref()) {
                tracing::error!(error = %again, path = %self.path.display(),
                    "the journal tells of a step that was not taken: putting it back as it was");
            }
            elsewhere(about(&self.path, &error))
        })
    }

    fn put(&self, text: &[u8]) -> io::Result<()> {
        let new = self.path.with_extension("new");
        let written = self.put_by(&new, text);
        if written.is_err() {
            // Of no use; the room that it takes may be needed.
            let _ = std::fs::remove_file(&new);
        }
        written
    }

    fn put_by(&self, new: &Path, text: &[u8]) -> io::Result<()> {
        let mut file = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(true)
            .mode(0o600)
            .open(new)?;
        file.write_all(text)?;
        file.sync_all()?;
        std::fs::rename(new, &self.path)?;
        match self.path.parent() {
            Some(folder) => File::open(folder)?.sync_all(),
            None => Ok(()),
        }
    }

    fn put_back(&self, before: Option<&[u8]>) -> io::Result<()> {
        match before {
            Some(before) if std::fs::read(&self.path).is_ok_and(|now| now == before) => Ok(()),
            Some(before) => self.put(before),
            None => match std::fs::remove_file(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            },
        }
    }

    /// Removes it: it is of no use any more.
    pub fn remove(&self) {
        // One that was killed at it may have left a new one that is not whole.
        for path in [
            self.path.clone(),
            self.path.with_extension("new"),
            self.path.with_extension("lock"),
        ] {
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(%error, path = %path.display(), "removing the journal");
                }
                _ => {}
            }
        }
    }
}

impl Drop for Page {
    /// A lock without anything to lock goes, while it is held.
    fn drop(&mut self) {
        let name = self.path.with_extension("lock");
        if let Ok(false) = self.path.try_exists()
            && is_at(&self.lock, &name).unwrap_or(false)
        {
            let _ = std::fs::remove_file(name);
        }
    }
}

/// Whether `file` is what has that `name` now: not one that was removed and
/// another one made since.
fn is_at(file: &File, name: &Path) -> io::Result<bool> {
    let (ours, there) = (file.metadata()?, std::fs::symlink_metadata(name));
    Ok(there.is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino())))
}

fn about(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Says what helps against a folder that cannot be written to.
fn elsewhere(error: io::Error) -> io::Error {
    io::Error::new(
        error.kind(),
        format!("{error} (--journal DIR keeps it elsewhere)"),
    )
}

fn read<E: Entry>(path: &Path) -> io::Result<Option<E>> {
    let text = match permissions::open(path) {
        Ok(file) => permissions::text(file, LONGEST),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => Err(error),
    };
    let entry = text.and_then(|text| serde_json::from_slice::<E>(&text).map_err(io::Error::other));
    match entry {
        Ok(entry) if entry.form() == FORM => Ok(Some(entry)),
        Ok(_) => Err(about(
            path,
            &io::Error::other("written by another version of hikkoshi, which can go on with it"),
        )),
        Err(error) => Err(about(path, &error)),
    }
}

/// Whether this user may not look into `folder`.
pub fn is_hidden(folder: &Path) -> bool {
    let looked = std::fs::read_dir(absolute(folder));
    looked.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

/// The journals of that side in `folder`, the newest first; of the QEMU behind
/// `qmp` only, if given. Files that cannot be read are left out, with a word.
///
/// # Errors
/// When the folder cannot be read, or others may write there.
pub fn find<E: Entry>(folder: &Path, qmp: Option<&Path>) -> io::Result<Vec<(PathBuf, E)>> {
    let folder = absolute(folder);
    let files = match std::fs::read_dir(&folder) {
        Ok(files) => files,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(about(&folder, &error)),
    };
    permissions::folder(&folder)?;
    sweep(&folder);
    let mut found = Vec::new();
    for path in files.filter_map(|file| Some(file.ok()?.path())) {
        let name = path.file_name().and_then(|name| name.to_str());
        let ours = name.is_some_and(|name| {
            name.starts_with(E::SIDE) && Path::new(name).extension().is_some_and(|e| e == "json")
        });
        if !ours {
            continue;
        }
        match read::<E>(&path) {
            Ok(Some(entry)) if qmp.is_none_or(|qmp| same(qmp, &entry.place().qmp)) => {
                let written = std::fs::metadata(&path).and_then(|m| m.modified());
                found.push((written.ok(), path, entry));
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "a journal that cannot be read"),
        }
    }
    found.sort_by_key(|(written, ..)| std::cmp::Reverse(*written));
    let found = found.into_iter().map(|(_, path, entry)| (path, entry));
    Ok(found.collect())
}

/// Removes locks that nobody holds and that have no journal: of an engine that was
/// killed before it had one, or beside one that a person has removed.
fn sweep(folder: &Path) {
    let Ok(files) = std::fs::read_dir(folder) else {
        return;
    };
    for lock in files.filter_map(|file| Some(file.ok()?.path())) {
        let name = lock.file_name().and_then(|name| name.to_str());
        let ours = name.is_some_and(|name| {
            (name.starts_with(SourceEntry::SIDE) || name.starts_with(DestinationEntry::SIDE))
                && lock.extension().is_some_and(|e| e == "lock")
        });
        let path = lock.with_extension("json");
        if ours
            && let Ok(false) = path.try_exists()
            && let Ok(Some(lock)) = Page::try_lock(&path)
        {
            // Goes with the page.
            drop(Page { path, lock });
        }
    }
}

/// Whether both paths lead to the same socket.
fn same(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| std::fs::canonicalize(path).ok();
    absolute(one) == absolute(other) || real(one).is_some_and(|one| Some(one) == real(other))
}

/// Keeps a source's journal.
#[derive(Debug)]
pub struct SourceJournal {
    page: Page,
    remote: Remote,
    options: Vec<String>,
    state: Mutex<SourceState>,
}

#[derive(Debug)]
struct SourceState {
    engine: Option<SourceRecord>,
    qemu: SourceNotes,
    closed: bool,
}

impl SourceJournal {
    /// Of a guest on its way to `remote`; `engine` is what is written there
    /// already.
    pub fn new(
        page: Page,
        remote: Remote,
        options: Vec<String>,
        qemu: SourceNotes,
        engine: Option<SourceRecord>,
    ) -> Self {
        Self {
            page,
            remote,
            options,
            state: Mutex::new(SourceState {
                engine,
                qemu,
                closed: false,
            }),
        }
    }

    pub fn path(&self) -> &Path {
        self.page.path()
    }

    /// What there is to undo has changed.
    pub fn undo(&self, undo: &UndoRecord) -> io::Result<()> {
        let mut state = self.lock();
        let before = std::mem::replace(&mut state.qemu.undo, undo.clone());
        let written = self.write(&state);
        if written.is_err() {
            state.qemu.undo = before;
        }
        written
    }

    fn lock(&self) -> MutexGuard<'_, SourceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, state: &SourceState) -> io::Result<()> {
        let Some(engine) = state.engine.clone().filter(|_| !state.closed) else {
            return Ok(());
        };
        let tls = self.remote.tls.as_ref();
        let security = tls.map(TlsClient::credentials).transpose();
        self.page.write(&SourceEntry {
            form: FORM,
            address: written(&self.remote.address),
            options: self.options.clone(),
            security: security.map_err(io::Error::other)?,
            engine,
            qemu: state.qemu.clone(),
        })
    }
}

impl Journal<SourceRecord> for SourceJournal {
    fn record(&self, record: &SourceRecord) -> io::Result<()> {
        let mut state = self.lock();
        let before = state.engine.replace(record.clone());
        let written = self.write(&state);
        if written.is_err() {
            state.engine = before;
        }
        written
    }

    fn close(&self) {
        self.lock().closed = true;
        self.page.remove();
    }
}

/// Keeps a destination's journal.
#[derive(Debug)]
pub struct DestinationJournal {
    page: Page,
    address: String,
    options: Vec<String>,
    tls: Option<TlsServer>,
    qemu: SharedNotes,
}

impl DestinationJournal {
    /// Of a guest that is taken in at `address`.
    pub fn new(
        page: Page,
        address: &Address,
        options: Vec<String>,
        tls: Option<TlsServer>,
        qemu: SharedNotes,
    ) -> Self {
        Self {
            page,
            address: written(address),
            options,
            tls,
            qemu,
        }
    }

    pub fn path(&self) -> &Path {
        self.page.path()
    }
}

impl Journal<DestinationRecord> for DestinationJournal {
    fn record(&self, record: &DestinationRecord) -> io::Result<()> {
        // Anew each time: it says whose migration is under way.
        let tls = self.tls.as_ref();
        let security = tls.map(TlsServer::credentials).transpose();
        self.page.write(&DestinationEntry {
            form: FORM,
            address: self.address.clone(),
            options: self.options.clone(),
            security: security.map_err(io::Error::other)?,
            engine: record.clone(),
            qemu: self.qemu.get(),
        })
    }

    fn close(&self) {
        self.page.remove();
    }
}

/// Keeps a journal as it was read, all but the engine's part: for whoever makes no
/// links, and needs nothing that protects them.
#[derive(Debug)]
pub struct Kept<E> {
    page: Page,
    entry: Mutex<E>,
}

impl<E: Entry> Kept<E> {
    pub fn new(page: Page, entry: E) -> Self {
        let entry = Mutex::new(entry);
        Self { page, entry }
    }
}

impl<E: Entry> Journal<E::Record> for Kept<E> {
    fn record(&self, record: &E::Record) -> io::Result<()> {
        let mut entry = self.entry.lock().unwrap_or_else(PoisonError::into_inner);
        *entry.engine() = record.clone();
        self.page.write(&*entry)
    }

    fn close(&self) {
        self.page.remove();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    use hikkoshi_engine::Mode;
    use hikkoshi_handover::SourceStage;
    use hikkoshi_link::Address;

    fn notes(pid: u32, qmp: &str) -> SourceNotes {
        let text = format!(
            r#"{{"place":{{"qmp":"{qmp}","pid":{pid},"started":7,"view":{{"boot":"b","pids":1,"times":null}},"description":{{"machine":"q",
            "architecture":"x","cpus":1,"cpu_model":"c","hypervisor":"h","running":true,
            "blocks":[]}},"memory":[]}},"undo":{{"settings":
            {{"capabilities":{{}},"parameters":{{}}}},"stopped":null}}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn record(stage: SourceStage) -> SourceRecord {
        let text = format!(
            r#"{{"id":"{}","stage":"keeps","mode":"hybrid"}}"#,
            "0".repeat(32)
        );
        SourceRecord {
            stage,
            ..serde_json::from_str(&text).unwrap()
        }
    }

    #[test]
    fn what_is_recorded_is_found_until_it_is_closed() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("run/hikkoshi");
        let there = Remote::from("unix:/there".parse::<Address>().unwrap());
        let journal = |pid, qmp| {
            let notes = notes(pid, qmp);
            let page = Page::of::<SourceEntry>(&folder, &notes.identity).unwrap();
            SourceJournal::new(page, there.clone(), vec!["--poll".into()], notes, None)
        };
        let (one, other) = (journal(1, "/one"), journal(2, "/other"));
        assert!(find::<SourceEntry>(&folder, None).unwrap().is_empty());
        // What there is to undo goes with the engine's first record.
        one.undo(&notes(1, "/one").undo).unwrap();
        assert!(!one.path().exists());
        for stage in [SourceStage::Keeps, SourceStage::Committed] {
            one.record(&record(stage)).unwrap();
            let [(path, entry)] = &find::<SourceEntry>(&folder, None).unwrap()[..] else {
                panic!("one journal")
            };
            assert_eq!(entry.engine, record(stage));
            assert_eq!(entry.engine.mode, Mode::Hybrid);
            assert_eq!(entry.options, ["--poll"]);
            let mode = std::fs::metadata(path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        other.record(&record(SourceStage::Gone)).unwrap();
        assert_eq!(find::<SourceEntry>(&folder, None).unwrap().len(), 2);
        let of = |qmp: &Path| find::<SourceEntry>(&folder, Some(qmp)).unwrap().len();
        assert_eq!(of(Path::new("/other")), 1);
        assert!(find::<DestinationEntry>(&folder, None).unwrap().is_empty());
        // Nobody else works with it meanwhile.
        let error = Page::lock(one.path()).unwrap_err();
        assert!(error.to_string().contains("another hikkoshi"), "{error}");
        let path = one.path().to_owned();
        drop(one);
        let page = Page::lock(&path).unwrap();
        let entry: SourceEntry = page.read().unwrap().unwrap();
        assert_eq!(entry.engine.stage, SourceStage::Committed);
        other.close();
        other.record(&record(SourceStage::Gone)).unwrap();
        other.undo(&notes(2, "/other").undo).unwrap();
        assert!(!other.path().exists(), "closed for good");
        drop((other, page));
        // Nothing is left of what is over, nor of what never began.
        drop(journal(3, "/third"));
        let left = std::fs::read_dir(&folder).unwrap();
        let left: Vec<_> = left.map(|file| file.unwrap().file_name()).collect();
        assert_eq!(left.len(), 2, "{left:?}");
    }

    /// A step that could not be written down was not taken, for who reads later.
    #[test]
    fn what_could_not_be_written_is_put_back() {
        let folder = tempfile::tempdir().unwrap();
        let page = Page::lock(&folder.path().join("source-1-1.json")).unwrap();
        page.put(b"before").unwrap();
        // As if the folder could not be synced after the new one was in place.
        page.put(b"after").unwrap();
        page.put_back(Some(b"before")).unwrap();
        assert_eq!(std::fs::read(page.path()).unwrap(), b"before");
        page.put_back(None).unwrap();
        assert!(!page.path().exists());
    }

    #[test]
    fn a_socket_is_known_by_any_path() {
        let folder = tempfile::tempdir().unwrap();
        let (real, link) = (folder.path().join("real"), folder.path().join("link"));
        std::fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        std::fs::write(real.join("qmp"), "").unwrap();
        assert!(same(&real.join("qmp"), &link.join("qmp")));
        assert!(same(Path::new("/gone/qmp"), Path::new("/gone/./qmp")));
        assert!(!same(&real.join("qmp"), &link.join("other")));
    }

    #[test]
    fn a_lock_that_was_removed_locks_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("source-1-1.json");
        let page = Page::lock(&path).unwrap();
        let waits = std::thread::scope(|scope| {
            // However long it has to wait: its patience is no part of this.
            let waits = scope.spawn(|| {
                loop {
                    match Page::lock(&path) {
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                        page => break page.unwrap(),
                    }
                }
            });
            std::thread::sleep(Duration::from_millis(50));
            drop(page);
            waits.join().unwrap()
        });
        // It has the file that is there now, and nobody else has.
        let error = Page::lock(&path).unwrap_err().to_string();
        assert!(error.contains("another hikkoshi"), "{error}");
        drop(waits);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn where_there_is_no_room_the_old_content_stays() {
        let folder = tempfile::tempdir().unwrap();
        let notes = notes(1, "/one");
        let there = Remote::from("unix:/there".parse::<Address>().unwrap());
        let page = Page::of::<SourceEntry>(folder.path(), &notes.identity).unwrap();
        let journal = SourceJournal::new(page, there, Vec::new(), notes, None);
        journal.record(&record(SourceStage::Keeps)).unwrap();
        let new = journal.path().with_extension("new");
        // Whatever is written there meets `ENOSPC` (full(4)).
        std::os::unix::fs::symlink("/dev/full", &new).unwrap();
        let error = journal.record(&record(SourceStage::Committed)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{error}");
        assert!(!std::fs::exists(&new).unwrap());
        let (_, entry) = find::<SourceEntry>(folder.path(), None)
            .unwrap()
            .pop()
            .unwrap();
        assert_eq!(entry.engine.stage, SourceStage::Keeps);
        // With room it is written, and in the end nothing is left.
        journal.record(&record(SourceStage::Committed)).unwrap();
        std::fs::write(&new, "not whole").unwrap();
        journal.close();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn locks_that_nobody_holds_go() {
        let folder = tempfile::tempdir().unwrap();
        let lone = folder.path().join("destination-1-2.lock");
        let other = folder.path().join("other.lock");
        for path in [&lone, &other] {
            std::fs::write(path, "").unwrap();
        }
        // An engine that has not written a journal yet.
        let held = Page::lock(&folder.path().join("source-3-4.json")).unwrap();
        find::<SourceEntry>(folder.path(), None).unwrap();
        assert!(!lone.exists() && other.exists());
        assert!(folder.path().join("source-3-4.lock").exists());
        drop(held);
    }

    #[test]
    fn what_is_no_journal_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("source-1-1.json");
        let page = Page::lock(&path).unwrap();
        assert!(page.read::<SourceEntry>().unwrap().is_none());
        for text in ["", "{}", "[1]"] {
            std::fs::write(&path, text).unwrap();
            let error = page.read::<SourceEntry>().unwrap_err().to_string();
            assert!(error.contains("source-1-1.json"), "{error}");
            assert!(find::<SourceEntry>(folder.path(), None).unwrap().is_empty());
        }
        // A folder that cannot be made.
        let error = Page::of::<SourceEntry>(&path, &notes(1, "/q").identity).unwrap_err();
        assert!(error.to_string().contains("--journal"), "{error}");
    }
}
