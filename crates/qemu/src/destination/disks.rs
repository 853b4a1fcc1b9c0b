//! Serves the destination's disks, so that the source's QEMU can write to them.
//!
//! QEMU's NBD server listens on a socket that it was passed. The socket has no name: only this
//! program can connect to it, through a descriptor of its own. QEMU activates the images that it
//! serves, and so locks them: a disk that is open elsewhere, for instance at the source, is
//! refused.

use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use hikkoshi_wire::Disk;
use rustix::fs::{Mode, OFlags};
use serde_json::json;
use thiserror::Error;

use super::QemuDestination;
use super::disk_flusher::{DiskFlusher, DiskNotFlushed};
use crate::disks::{self, BlockDisk, ImageFile, own_names, same_image};
use crate::qmp::reconnect::{MonitorError, connected};
use crate::qmp::{Client, QmpError, Version};

/// The name of the listening socket's descriptor in QEMU.
const LISTENER: &str = "hikkoshi-disks";

/// The first QEMU whose limit for the setup of a connection, 10 s, can be changed. Older ones have
/// none, or, if they were mended, one that cannot be.
const HANDSHAKE_LIMIT_SINCE: Version = Version::new(10, 0, 0);

/// The disks cannot be served.
#[derive(Debug, Error)]
pub(crate) enum ServeError {
    /// libvirt creates the machine.
    #[error(
        "copying disks to a libvirt domain: libvirt does not lend the monitor of a domain before \
         the guest runs, so its QEMU cannot serve the disks. Copy them to storage that both hosts \
         reach ('virsh blockcopy DOMAIN DISK --dest FILE --pivot --wait') and move the domain \
         then, or use 'virsh migrate --live --copy-storage-all'"
    )]
    Domain,
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
    disks: usize,
    /// While they are copied.
    flusher: Option<DiskFlusher>,
}

impl DiskServer {
    /// Why a disk could not be flushed, if one could not.
    fn check(&self) -> Result<(), DiskNotFlushed> {
        let flusher = self.flusher.as_ref();
        let failure = flusher.and_then(DiskFlusher::take_failure);
        failure.map_or(Ok(()), Err)
    }

    fn connect(&self, number: usize) -> Result<UnixStream, ServeError> {
        if number >= self.disks {
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
    let mut number = 0;
    // It has a name for a moment, in a folder that only its owner can enter.
    let folder = loop {
        let name = format!("hikkoshi-disks-{}-{number}", std::process::id());
        let folder = root.join(name);
        match DirBuilder::new().mode(0o700).create(&folder) {
            Ok(()) => break folder,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < 1000 => {
                number += 1;
            }
            Err(error) => return Err(error),
        }
    };
    let path = folder.join("nbd");
    let opened = bind_and_open(&path);
    // It was not created if that failed.
    let _ = std::fs::remove_file(&path);
    std::fs::remove_dir(&folder)?;
    opened
}

fn bind_and_open(path: &Path) -> io::Result<(UnixListener, OwnedFd)> {
    let listener = UnixListener::bind(path)?;
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok((listener, rustix::fs::open(path, flags, Mode::empty())?))
}

impl QemuDestination {
    /// Serves these disks of the source.
    pub(super) fn serve(&mut self, disks: &[Disk]) -> Result<(), ServeError> {
        if self.piped.is_some() {
            return Err(ServeError::Domain);
        }
        let client = connected(&mut self.client)?;
        let ours = disks::list(client)?;
        let mut with_images = Vec::with_capacity(ours.len());
        for our in ours {
            let image = ImageFile::of_disk(client, &our.file)?;
            with_images.push((our, image.map_or_else(String::new, |image| image.identity)));
        }
        let nodes = fitting(disks, &with_images).map_err(ServeError::Unfit)?;
        let (listener, socket) = nameless_listener()?;
        let name = json!({ "fdname": LISTENER });
        client
            .execute_with_fd("getfd", name, listener.as_fd())
            .map_err(ServeError::Server)?;
        let mut server = json!({ "addr": { "type": "fd", "data": { "str": LISTENER } } });
        if client.version() >= HANDSHAKE_LIMIT_SINCE {
            // The source's QEMU sets up the connections one after the other, over any line.
            server["handshake-max-seconds"] = json!(0);
        }
        let started = client.execute("nbd-server-start", server);
        if started.as_ref().is_err_and(QmpError::is_refusal) {
            // QEMU may have a server of another program, which must not be stopped.
            let name = json!({ "fdname": LISTENER });
            if let Err(error) = client.execute("closefd", name) {
                tracing::warn!(%error, "removing the descriptor of the disk server from QEMU");
            }
            return started.map(drop).map_err(ServeError::Server);
        }
        // From here on there is something to undo, also if QEMU's answer was lost.
        self.disk_server = Some(DiskServer {
            socket,
            disks: disks.len(),
            flusher: None,
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
        if let Some(server) = &mut self.disk_server {
            let disks = nodes.iter().enumerate().map(|(number, node)| {
                let socket = server.connect(number)?;
                Ok((node.label().to_owned(), disks::name(number), socket))
            });
            let disks = disks.collect::<Result<_, ServeError>>()?;
            server.flusher = Some(DiskFlusher::start(disks)?);
        }
        Ok(())
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
    pub(super) fn connect_served(&mut self, number: usize) -> Result<UnixStream, ServeError> {
        let server = self.disk_server.as_ref();
        server.ok_or(ServeError::NotServed(number))?.connect(number)
    }

    /// Ends the server. The images stay active, and QEMU's own.
    pub(super) fn end_server(&mut self) -> Result<(), MonitorError> {
        let Some(server) = &mut self.disk_server else {
            return Ok(());
        };
        server.flusher = None;
        let client = connected(&mut self.client)?;
        stop(client)?;
        self.disk_server = None;
        Ok(())
    }
}

/// Stops the server, and with it its exports and connections.
fn stop(client: &mut Client) -> Result<(), QmpError> {
    for (command, arguments) in [
        ("closefd", json!({ "fdname": LISTENER })),
        ("nbd-server-stop", json!({})),
    ] {
        match client.execute(command, arguments) {
            Err(error) if !error.is_refusal() => return Err(error),
            // It was not there, or not started.
            _ => {}
        }
    }
    let exports = client.execute("query-block-exports", json!({}))?;
    match exports.as_array().is_some_and(Vec::is_empty) {
        true => Ok(()),
        false => Err(QmpError::unexpected(
            "nbd-server-stop",
            format!("disks are still exported: {exports}"),
        )),
    }
}

/// Where QEMU has the devices with an id.
const NAMED_DEVICES: &str = "/machine/peripheral/";

/// The disks here, of which the names of the images are known, for those of the source; or
/// everything that prevents a copy.
fn fitting<'a>(
    theirs: &[Disk],
    ours: &'a [(BlockDisk, String)],
) -> Result<Vec<&'a BlockDisk>, Vec<String>> {
    let (mut found, mut problems) = (Vec::<&(BlockDisk, String)>::new(), Vec::new());
    for disk in theirs {
        let of_drive = || {
            let mut named = ours
                .iter()
                .filter(|(our, _)| !disk.drive.is_empty() && *our.drive == *disk.drive);
            named.next().filter(|_| named.next().is_none())
        };
        let same = || ours.iter().find(|(our, _)| *our.device == *disk.device);
        // The path of a device without an id has its place in the order of the command line.
        let our = match disk.device.starts_with(NAMED_DEVICES) || disk.device.is_empty() {
            true => same().or_else(of_drive),
            false => of_drive().or_else(same),
        };
        let Some(matched) = our else {
            problems.push(format!(
                "QEMU here has no disk with a medium for the source's {} ({} bytes): give it an \
                 image of that size",
                disk.device, disk.bytes
            ));
            continue;
        };
        let (our, image) = matched;
        let label = our.label();
        let twice = found.iter().find(|(_, other)| same_image(other, image));
        if found.contains(&matched) {
            problems.push(format!(
                "two disks of the source would be copied to the disk {label}: give each disk's \
                 device the same id at both sides"
            ));
        } else if let Some((other, _)) = twice {
            problems.push(format!(
                "the disks {} and {label} have the same image here ({}): give each disk one of its \
                 own",
                other.label(),
                our.file
            ));
        }
        if same_image(image, own_names(&disk.image)) {
            problems.push(format!(
                "the disk {label} has the same image at both sides ({}): move the guest without \
                 --copy-disks, or name the other disks: --copy-disks=DISK,…",
                our.file
            ));
        } else if theirs.iter().any(|other| same_image(image, &other.image)) {
            problems.push(format!(
                "the disk {label} has the image of another disk of the source here ({}): the copy \
                 would destroy it. Give it an image of its own",
                our.file
            ));
        } else if our.read_only {
            problems.push(format!(
                "the disk {label} is read-only here, and the guest can write to it at the source"
            ));
        } else if our.bytes != disk.bytes {
            problems.push(format!(
                "the disk {label} has {} bytes at the source, and {} here: give it an image of the \
                 same size",
                disk.bytes, our.bytes
            ));
        }
        found.push(matched);
    }
    if problems.is_empty() {
        Ok(found.into_iter().map(|(our, _)| our).collect())
    } else {
        Err(problems)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn theirs(device: &str, drive: &str, bytes: u64) -> Disk {
        Disk {
            device: device.into(),
            drive: drive.into(),
            bytes,
            image: "".into(),
        }
    }

    fn ours(device: &str, drive: &str, bytes: u64) -> (BlockDisk, String) {
        let disk = BlockDisk {
            device: device.into(),
            drive: drive.into(),
            bytes,
            ..BlockDisk::default()
        };
        (disk, String::new())
    }

    /// Each image is compared with all of the source's, and with the others here.
    #[test]
    fn an_image_of_another_disk_is_not_overwritten() {
        let at = |id| format!("{NAMED_DEVICES}{id}");
        let here = |id, image: &str| (ours(&at(id), "", 1).0, image.to_owned());
        let there = |id, image: &str| Disk {
            image: image.into(),
            ..theirs(&at(id), "", 1)
        };
        let wanted = [there("vda", "h:1 wwn:a"), there("vdb", "h:2 others: h:3")];
        let fits = [here("vda", "k:1"), here("vdb", "k:2")];
        assert_eq!(fitting(&wanted, &fits).unwrap(), [&fits[0].0, &fits[1].0]);
        let problems = |here: &[_]| fitting(&wanted, here).unwrap_err();
        let of_another = "has the image of another disk of the source";
        // Swapped, and that of a disk that is not copied.
        let swapped = problems(&[here("vda", "h:2"), here("vdb", "k:7 wwn:a")]);
        assert!(
            swapped.len() == 2 && swapped.iter().all(|it| it.contains(of_another)),
            "{swapped:?}"
        );
        for id in ["vda", "vdb"] {
            let (one, other) = if id == "vda" {
                ("h:3", "k:2")
            } else {
                ("k:1", "h:3")
            };
            let found = problems(&[here("vda", one), here("vdb", other)]);
            assert_eq!(found.len(), 1, "{found:?}");
            let begin = format!("the disk {id} {of_another}");
            assert!(found[0].starts_with(&begin), "{found:?}");
        }
        let same = problems(&[here("vda", "h:1"), here("vdb", "k:2")]);
        assert!(same[0].contains("the same image at both sides"), "{same:?}");
        let twice = problems(&[here("vda", "k:1"), here("vdb", "k:1")]);
        let expected = "the disks vda and vdb have the same image here";
        assert!(
            twice.len() == 1 && twice[0].starts_with(expected),
            "{twice:?}"
        );
        // Nothing is known of these.
        assert!(fitting(&wanted, &[here("vda", ""), here("vdb", "")]).is_ok());
    }

    #[test]
    fn a_socket_without_a_name_can_be_connected_to() {
        use std::io::{Read, Write};
        let (listener, socket) = nameless_listener().unwrap();
        let server = DiskServer {
            socket,
            disks: 2,
            flusher: None,
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
    fn disks_are_found_by_their_devices_or_drives() {
        let at = |id| format!("{NAMED_DEVICES}{id}");
        let here = [ours(&at("a"), "d0", 1), ours(&at("b"), "d1", 2)];
        let wanted = [theirs(&at("b"), "", 2), theirs(&at("other"), "d0", 1)];
        let found = fitting(&wanted, &here).unwrap();
        assert_eq!(found, [&here[1].0, &here[0].0]);
    }

    /// Their paths have the order of the command line.
    #[test]
    fn devices_without_an_id_are_found_by_their_drives_first() {
        let path = |number| format!("/machine/peripheral-anon/device[{number}]");
        let here = [ours(&path(0), "right", 1), ours(&path(1), "left", 1)];
        let wanted = [theirs(&path(0), "left", 1), theirs(&path(1), "right", 1)];
        let found = fitting(&wanted, &here).unwrap();
        assert_eq!(found, [&here[1].0, &here[0].0]);
        // Without names, the order is all that is known.
        let here = [ours(&path(0), "", 1), ours(&path(1), "other", 1)];
        let found = fitting(&wanted, &here).unwrap();
        assert_eq!(found, [&here[0].0, &here[1].0]);
        // Never two to one.
        let here = [ours(&path(0), "right", 1), ours(&path(5), "", 1)];
        let wanted = [theirs(&path(0), "left", 1), theirs(&path(1), "right", 1)];
        let problems = fitting(&wanted, &here).unwrap_err();
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].starts_with("two disks of the source"));
        // One with an id keeps it, whatever its drive is called.
        let named = |id| format!("{NAMED_DEVICES}{id}/virtio-backend");
        let here = [ours(&named("vda"), "b", 1), ours(&named("vdb"), "a", 1)];
        let wanted = [theirs(&named("vda"), "a", 1), theirs(&named("vdb"), "b", 1)];
        let found = fitting(&wanted, &here).unwrap();
        assert_eq!(found, [&here[0].0, &here[1].0]);
    }

    #[test]
    fn everything_that_does_not_fit_is_named() {
        let mut read_only = ours("/machine/peripheral/vdc", "", 3);
        read_only.0.read_only = true;
        let here = [ours("/machine/peripheral/vda", "", 1), read_only];
        let wanted = [
            theirs("/machine/peripheral/vda", "", 2),
            theirs("/machine/peripheral/vdb", "", 2),
            theirs("/machine/peripheral/vdc", "", 3),
        ];
        let problems = fitting(&wanted, &here).unwrap_err();
        let expected = [
            "the disk vda has 2 bytes at the source, and 1 here",
            "QEMU here has no disk with a medium for the source's /machine/peripheral/vdb",
            "the disk vdc is read-only here",
        ];
        assert_eq!(problems.len(), expected.len(), "{problems:?}");
        for (problem, expected) in problems.iter().zip(expected) {
            assert!(problem.starts_with(expected), "{problem}");
        }
    }
}
