//! Serves the destination's disks, so that the source's QEMU can write to them.
//!
//! QEMU's NBD server listens on a socket that it was passed. The socket has no name: only this
//! program can connect to it, through a descriptor of its own. QEMU activates the images that it
//! serves, and so locks them: a disk that is open elsewhere, for instance at the source, is
//! refused.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use hikkoshi_engine::{DiskComparison, DiskConnection};
use hikkoshi_wire::{Disk, DiskPlan, GuestDisks};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use serde_json::json;
use thiserror::Error;

use super::QemuDestination;
use super::compare_disks::{Compared, compare};
use super::disk_flusher::{DiskFlusher, DiskNotFlushed};
use super::piped;
use super::storage_daemon::{ServedDisk, StorageDaemon, StorageDaemonError};
use crate::disks::nbd::{HANDSHAKE_LIMIT_SINCE, NbdRequests};
use crate::disks::{self, BlockDisk, ImageFile, describe, exports, marks};
use crate::process::{self, ProcessError};
use crate::qmp::QmpError;
use crate::qmp::reconnect::{MonitorError, connected};

/// The disks cannot be served.
#[derive(Debug, Error)]
pub(crate) enum ServeError {
    /// Another program does not serve them.
    #[error("copying the guest's disks")]
    Daemon(#[from] StorageDaemonError),
    /// The disks here are not known.
    #[error("comparing the guest's disks")]
    Compare(#[from] ProcessError),
    /// They do not fit.
    #[error("copying the guest's disks: {}", .0.join("; "))]
    Unfit(Vec<String>),
    /// The server's socket could not be created.
    #[error("copying the guest's disks: creating the socket of the NBD server of QEMU")]
    Socket(#[from] io::Error),
    /// QEMU does not serve anything.
    #[error("copying the guest's disks: starting the NBD server of QEMU")]
    Server(#[source] QmpError),
    /// QEMU does not serve this disk.
    #[error(
        "copying the disk {disk}: QEMU here cannot open it for writing (if both hosts use the same \
         image, move the guest without --copy-disks)"
    )]
    Export {
        /// The disk.
        disk: String,
        /// Why.
        source: QmpError,
    },
    /// A QMP command failed.
    #[error("copying the guest's disks")]
    Qmp(#[from] QmpError),
    /// Its socket is not there any more.
    #[error("copying the guest's disks: there is no disk {0}, or the disks are not served")]
    NotServed(usize),
}

/// The server in QEMU.
#[derive(Debug)]
pub(super) struct DiskServer {
    /// Its socket, to connect to.
    socket: OwnedFd,
    /// What the disks are called in messages.
    disks: Vec<String>,
    /// While they are copied.
    flusher: Option<DiskFlusher>,
    /// What serves them, if not QEMU.
    daemon: Option<StorageDaemon>,
}

impl DiskServer {
    /// Why a disk could not be flushed, if one could not.
    fn check(&self) -> Result<(), DiskNotFlushed> {
        let flusher = self.flusher.as_ref();
        let failure = flusher.and_then(DiskFlusher::take_failure);
        failure.map_or(Ok(()), Err)
    }

    /// Begins to flush the disks.
    fn start_flusher(&mut self) -> Result<(), ServeError> {
        let disks = self.disks.iter().enumerate().map(|(number, disk)| {
            let socket = self.connect(number)?;
            Ok((disk.clone(), disks::name(number), socket))
        });
        let disks = disks.collect::<Result<_, ServeError>>()?;
        self.flusher = Some(DiskFlusher::start(disks)?);
        Ok(())
    }

    fn connect(&self, number: usize) -> Result<UnixStream, ServeError> {
        if number >= self.disks.len() {
            return Err(ServeError::NotServed(number));
        }
        let name = format!("/proc/self/fd/{}", self.socket.as_raw_fd());
        Ok(UnixStream::connect(name)?)
    }
}

/// A listening socket without a name, and a descriptor (`O_PATH`) through which this process can
/// connect to it.
fn nameless_listener() -> io::Result<(UnixListener, OwnedFd)> {
    let root = std::env::temp_dir();
    remove_left_folders(&root);
    let mut number = 0;
    // It has a name for a moment, in a folder that only its owner can enter.
    let folder = loop {
        let name = format!("{FOLDER}{}-{number}", std::process::id());
        let folder = root.join(name);
        match DirBuilder::new().mode(0o700).create(&folder) {
            Ok(()) => break folder,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < 1000 => {
                number += 1;
            }
            Err(error) => return Err(error),
        }
    };
    let path = folder.join(SOCKET);
    let opened = bind_and_open(&path);
    // It was not created if that failed.
    let _ = fs::remove_file(&path);
    fs::remove_dir(&folder)?;
    opened
}

/// The beginning of the name of a folder for the socket; the process and a number follow.
const FOLDER: &str = "hikkoshi-disks-";

/// The name of the socket in it.
const SOCKET: &str = "nbd";

/// How old such a folder is that a killed process has left: others exist for a moment only.
const LEFT_FOLDER_AGE: Duration = Duration::from_secs(60);

/// Removes what processes have left that were killed in that moment.
fn remove_left_folders(root: &Path) {
    let Ok(entries) = fs::read_dir(root) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let rest = name.to_str().and_then(|name| name.strip_prefix(FOLDER));
        let Some((pid, _)) = rest.and_then(|rest| rest.split_once('-')) else {
            continue;
        };
        let has_ended = !Path::new("/proc").join(pid).exists();
        // The kernel's time of files lags a little behind.
        let age = entry.metadata().and_then(|folder| folder.modified());
        let age = age.ok().and_then(|since| since.elapsed().ok());
        if has_ended && age.is_some_and(|age| age > LEFT_FOLDER_AGE) {
            let _ = remove_folder(&entry.path());
        }
    }
}

/// Removes this folder and the socket in it. It must be a folder of this user that no other one may
/// write to, and not a link to one: anybody can make one of this name in `/tmp`.
fn remove_folder(path: &Path) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::open(path, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&folder)?;
    let is_ours = stat.st_uid == rustix::process::geteuid().as_raw();
    let others_write = Mode::WGRP | Mode::WOTH;
    if !is_ours || Mode::from_raw_mode(stat.st_mode).intersects(others_write) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    match rustix::fs::unlinkat(&folder, SOCKET, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => fs::remove_dir(path),
        Err(error) => Err(error.into()),
    }
}

fn bind_and_open(path: &Path) -> io::Result<(UnixListener, OwnedFd)> {
    let listener = UnixListener::bind(path)?;
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok((listener, rustix::fs::open(path, flags, Mode::empty())?))
}

impl QemuDestination {
    /// Compares the source's disks with those here.
    pub(super) fn compare(&mut self, disks: &GuestDisks) -> Result<DiskComparison, ServeError> {
        let Compared {
            refused, warnings, ..
        } = match &self.piped {
            Some(_) => self.compare_piped(disks)?.0,
            None => self.compare_with(disks)?.0,
        };
        Ok(DiskComparison { refused, warnings })
    }

    /// Compares with the disks that QEMU's monitor lists, which are returned, too.
    fn compare_with(
        &mut self,
        disks: &GuestDisks,
    ) -> Result<(Compared, Vec<BlockDisk>), ServeError> {
        let client = connected(&mut self.client)?;
        let (ours, mut described) = (disks::list(client)?, Vec::new());
        for our in &ours {
            let image = ImageFile::of_disk(client, &our.file)?;
            let below = ImageFile::below(client, our)?;
            described.push(described_here(our, image.as_ref(), &below, disks.mark));
        }
        Ok((compare(&disks.disks, &described, true), ours))
    }

    /// Compares with the disks of a machine whose monitor is not available. Returns the disks that
    /// are copied to, as the storage daemon opens them, with what they are called in messages.
    fn compare_piped(
        &self,
        disks: &GuestDisks,
    ) -> Result<(Compared, Vec<(String, ServedDisk)>), ServeError> {
        let found = piped::disks::list(&self.process).map_err(|source| {
            process::explain(&self.process, "reading the command line", source)
        })?;
        let described = found.iter().map(|found| Disk {
            bytes: found.bytes,
            ..described_here(&found.disk, found.image.as_ref(), &found.below, disks.mark)
        });
        let described: Vec<_> = described.collect();
        let mut compared = compare(&disks.disks, &described, true);
        let mut served = Vec::new();
        let targets = compared.targets.iter();
        for (number, disk) in targets.filter_map(|target| found.get(*target)).enumerate() {
            let label = disk.disk.label().to_owned();
            match disk.served(disks::name(number)) {
                Ok(disk) => served.push((label, disk)),
                Err(why) => compared.refused.push(format!(
                    "nothing can be copied to the disk {label} of a libvirt domain: {why}"
                )),
            }
        }
        Ok((compared, served))
    }

    /// Serves the disks of a machine whose monitor is not available.
    fn serve_piped(&mut self, disks: &GuestDisks) -> Result<(), ServeError> {
        let (Compared { refused, .. }, found) = self.compare_piped(disks)?;
        if !refused.is_empty() {
            return Err(ServeError::Unfit(refused));
        }
        let (labels, served): (Vec<_>, Vec<_>) = found.into_iter().unzip();
        let (listener, socket) = nameless_listener()?;
        let daemon = StorageDaemon::start(listener, &served)?;
        let mut server = DiskServer {
            socket,
            disks: labels,
            flusher: None,
            daemon: Some(daemon),
        };
        let connection = server.connect(0)?;
        if let Some(daemon) = &mut server.daemon {
            daemon.wait_serving(connection)?;
        }
        server.start_flusher()?;
        self.disk_server = Some(server);
        Ok(())
    }

    /// Serves those of these disks of the source that are copied.
    pub(super) fn serve(&mut self, disks: &GuestDisks) -> Result<(), ServeError> {
        if self.piped.is_some() {
            return self.serve_piped(disks);
        }
        let (
            Compared {
                refused, targets, ..
            },
            ours,
        ) = self.compare_with(disks)?;
        if !refused.is_empty() {
            return Err(ServeError::Unfit(refused));
        }
        let nodes: Vec<_> = targets
            .iter()
            .filter_map(|number| ours.get(*number))
            .collect();
        let client = connected(&mut self.client)?;
        let (listener, socket) = nameless_listener()?;
        let name = json!({ "fdname": exports::LISTENER });
        client
            .execute_with_fd("getfd", name, listener.as_fd())
            .map_err(ServeError::Server)?;
        let mut server = json!({ "addr": { "type": "fd", "data": { "str": exports::LISTENER } } });
        if client.version() >= HANDSHAKE_LIMIT_SINCE {
            // The source's QEMU sets up the connections one after the other, over any line.
            server["handshake-max-seconds"] = json!(0);
        }
        let started = client.execute("nbd-server-start", server);
        if started.as_ref().is_err_and(QmpError::is_refusal) {
            // QEMU may have a server of another program, which must not be stopped.
            let name = json!({ "fdname": exports::LISTENER });
            if let Err(error) = client.execute("closefd", name) {
                tracing::warn!(%error, "removing the descriptor of the disk server from QEMU");
            }
            return started.map(drop).map_err(ServeError::Server);
        }
        // From here on there is something to undo, also if QEMU's answer was lost.
        self.disk_server = Some(DiskServer {
            socket,
            disks: nodes.iter().map(|node| node.label().to_owned()).collect(),
            flusher: None,
            daemon: None,
        });
        started.map_err(ServeError::Server)?;
        for (number, node) in nodes.iter().enumerate() {
            let name = disks::name(number);
            let export = json!({
                "id": name, "type": "nbd", "node-name": node.node, "name": name, "writable": true,
            });
            client
                .execute("block-export-add", export)
                .map_err(|source| ServeError::Export {
                    disk: node.label().to_owned(),
                    source,
                })?;
        }
        match &mut self.disk_server {
            Some(server) => server.start_flusher(),
            None => Ok(()),
        }
    }

    /// Fails if a disk could not be flushed.
    pub(super) fn check_flushed(&self) -> Result<(), DiskNotFlushed> {
        let server = self.disk_server.as_ref();
        server.map_or(Ok(()), DiskServer::check)
    }

    /// Ends the flushes. Fails if one has failed.
    pub(super) fn end_flushes(&mut self) -> Result<(), DiskNotFlushed> {
        let server = self.disk_server.as_mut();
        let flusher = server.and_then(|server| server.flusher.take());
        match flusher.and_then(DiskFlusher::end) {
            None => Ok(()),
            Some(failure) => Err(failure),
        }
    }

    /// A connection to the server, for the disk `number`.
    pub(super) fn connect_served(&mut self, number: usize) -> Result<DiskConnection, ServeError> {
        let not_served = || ServeError::NotServed(number);
        let server = self.disk_server.as_ref().ok_or_else(not_served)?;
        Ok(DiskConnection {
            disk: server.disks.get(number).ok_or_else(not_served)?.clone(),
            socket: server.connect(number)?,
            requests: Box::<NbdRequests>::default(),
        })
    }

    /// Ends the program that serves the disks, if that is not QEMU. Everything that was written is
    /// in the images then.
    pub(super) fn end_daemon(&mut self) -> Result<(), StorageDaemonError> {
        let server = self.disk_server.take_if(|server| server.daemon.is_some());
        match server.and_then(|server| server.daemon) {
            Some(daemon) => daemon.end(),
            None => Ok(()),
        }
    }

    /// Kills the program that serves the disks, if that is not QEMU: the copies are given up.
    pub(super) fn kill_daemon(&mut self) {
        drop(self.disk_server.take_if(|server| server.daemon.is_some()));
    }

    /// Ends the server in QEMU. The images stay active, and QEMU's own.
    pub(super) fn end_server(&mut self) -> Result<(), MonitorError> {
        let Some(server) = &mut self.disk_server else {
            return Ok(());
        };
        server.flusher = None;
        let client = connected(&mut self.client)?;
        exports::stop(client)?;
        self.disk_server = None;
        Ok(())
    }
}

/// A disk here, as the source's are described to it.
fn described_here(
    disk: &BlockDisk,
    image: Option<&ImageFile>,
    below: &[Option<ImageFile>],
    mark: [u8; 16],
) -> Disk {
    let mut found = describe(disk, image, below, DiskPlan::Same);
    if let (true, Some(image)) = (mark != [0; 16], image) {
        found.image.mark = marks::read(mark, image);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Anybody can make such a folder in `/tmp`, or a link of its name.
    #[test]
    fn only_a_folder_of_this_user_is_removed() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let root = tempfile::tempdir().unwrap();
        // No process has this number (proc_sys_kernel(5): pid_max is at most 2^22).
        let names = ["own", "open", "linked"].map(|name| format!("{FOLDER}4194305-{name}"));
        let [own, open, linked] = names.map(|name| root.path().join(name));
        let elsewhere = root.path().join("elsewhere");
        for (folder, mode) in [(&own, 0o700), (&open, 0o777), (&elsewhere, 0o700)] {
            fs::create_dir(folder).unwrap();
            fs::set_permissions(folder, fs::Permissions::from_mode(mode)).unwrap();
            fs::write(folder.join(SOCKET), "").unwrap();
        }
        symlink(&elsewhere, &linked).unwrap();
        for folder in [&own, &open, &linked] {
            assert_eq!(remove_folder(folder).is_ok(), folder == &own);
        }
        assert!(!own.exists());
        assert!(open.join(SOCKET).exists() && elsewhere.join(SOCKET).exists());
    }

    #[test]
    fn a_socket_without_a_name_can_be_connected_to() {
        use std::io::{Read, Write};
        let (listener, socket) = nameless_listener().unwrap();
        let server = DiskServer {
            socket,
            disks: vec!["vda".to_owned(), "vdb".to_owned()],
            flusher: None,
            daemon: None,
        };
        for number in 0..2 {
            let mut client = server.connect(number).unwrap();
            let (mut accepted, _) = listener.accept().unwrap();
            accepted.write_all(b"NBDMAGIC").unwrap();
            let mut greeting = [0; 8];
            client.read_exact(&mut greeting).unwrap();
            assert_eq!(&greeting, b"NBDMAGIC");
        }
        assert!(matches!(server.connect(2), Err(ServeError::NotServed(2))));
        let path = listener.local_addr().unwrap();
        let path = path.as_pathname().unwrap();
        assert!(!path.exists() && !path.parent().unwrap().exists());
    }

    #[test]
    fn folders_of_killed_processes_are_removed() {
        let root = tempfile::tempdir().unwrap();
        let old = std::time::SystemTime::now() - 2 * LEFT_FOLDER_AGE;
        let folder = |name: &str, is_old: bool| {
            let path = root.path().join(name);
            fs::create_dir(&path).unwrap();
            let socket = UnixListener::bind(path.join(SOCKET)).unwrap();
            if is_old {
                fs::File::open(&path).unwrap().set_modified(old).unwrap();
            }
            drop(socket);
            path
        };
        // No process has that number.
        let left = folder(&format!("{FOLDER}4194305-0"), true);
        let kept = [
            folder(&format!("{FOLDER}{}-0", std::process::id()), true),
            folder(&format!("{FOLDER}4194305-1"), false),
            folder("others-4194305-0", true),
        ];
        remove_left_folders(root.path());
        assert!(!left.exists());
        assert!(kept.iter().all(|path| path.join(SOCKET).exists()));
    }
}
