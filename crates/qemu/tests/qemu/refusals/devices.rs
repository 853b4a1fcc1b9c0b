//! Devices whose state or writes cannot be moved.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use hikkoshi_qemu::{AttachError, Refusal};

use crate::support::{Qemu, RamPath, with_each};

use super::refused;

#[test]
fn devices_with_another_process_that_writes_memory() {
    with_each(|program| {
        let folder = tempfile::tempdir().unwrap();
        let backend = vhost_user_backend(&folder.path().join("backend"));
        let qemu = Qemu::usual(
            program,
            &format!(
                "-chardev socket,id=c,path={}/backend -device vhost-user-rng-pci,chardev=c",
                folder.path().display()
            ),
        );
        let error = refused(
            &qemu,
            &[
                "vhost-user-rng-pci",
                "cannot be tracked",
                &format!("(process {}, ", std::process::id()),
                "unplug",
            ],
        );
        let is_device = |obstacle: &AttachError| {
            matches!(obstacle, AttachError::Refused(Refusal::Device { .. }))
        };
        // QEMU itself has one more: it cannot migrate this device either.
        assert!(error.all().iter().any(is_device), "{error:?}");
        drop(qemu);
        let _ = backend.join();

        let qemu = Qemu::usual(
            program,
            &format!(
                "-chardev socket,id=c,path={}/crypto,server=on,wait=off \
                 -object cryptodev-vhost-user,id=v,chardev=c",
                folder.path().display()
            ),
        );
        refused(&qemu, &["/objects/v", "cryptodev-vhost-user"]);

        let shared = RamPath::new();
        let mut qemu = Qemu::usual(
            program,
            &format!(
                "-object memory-backend-file,id=window,size=1M,mem-path={},share=on \
                 -device ivshmem-plain,memdev=window,id=w",
                shared.as_str()
            ),
        );
        qemu.keep(shared);
        // QEMU itself also objects to this one.
        refused(&qemu, &["ivshmem"]);
    });
}

#[test]
fn a_vhost_user_network_behind_an_ordinary_card() {
    with_each(|program| {
        let folder = tempfile::tempdir().unwrap();
        let backend = vhost_user_backend(&folder.path().join("backend"));
        let qemu = Qemu::usual(
            program,
            &format!(
                "-chardev socket,id=c,path={}/backend -netdev vhost-user,id=n0,chardev=c \
                 -device virtio-net-pci,netdev=n0",
                folder.path().display()
            ),
        );
        let own = format!("(process {}, ", std::process::id());
        refused(&qemu, &["n0", "vhost-user network backend", &own]);
        drop(qemu);
        let _ = backend.join();
    });
}

/// The minimum of a vhost-user backend with which QEMU starts.
fn vhost_user_backend(path: &Path) -> std::thread::JoinHandle<()> {
    let listener = UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        // Ends when QEMU does.
        let _ = serve_vhost_user(&mut stream);
    })
}

fn serve_vhost_user(stream: &mut UnixStream) -> io::Result<()> {
    const GET_FEATURES: u32 = 1;
    const GET_PROTOCOL_FEATURES: u32 = 15;
    const GET_QUEUE_NUM: u32 = 17;
    const NEED_REPLY: u32 = 1 << 3;
    loop {
        let mut header = [0; 12];
        stream.read_exact(&mut header)?;
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
        let (request, flags) = (word(0), word(4));
        let mut payload = vec![0; word(8) as usize];
        stream.read_exact(&mut payload)?;
        let answer: u64 = match request {
            // VIRTIO_F_VERSION_1, VHOST_USER_F_PROTOCOL_FEATURES, VHOST_F_LOG_ALL.
            GET_FEATURES => 1 << 32 | 1 << 30 | 1 << 26,
            // MQ, LOG_SHMFD.
            GET_PROTOCOL_FEATURES => 1 << 0 | 1 << 1,
            GET_QUEUE_NUM => 1,
            _ if flags & NEED_REPLY != 0 => 0,
            _ => continue,
        };
        stream.write_all(&request.to_le_bytes())?;
        stream.write_all(&5u32.to_le_bytes())?;
        stream.write_all(&8u32.to_le_bytes())?;
        stream.write_all(&answer.to_le_bytes())?;
    }
}

#[test]
fn a_device_that_qemu_cannot_migrate() {
    with_each(|program| {
        // Its guest-visible state is the directory, which does not move with the guest.
        let folder = tempfile::tempdir().unwrap();
        let qemu = Qemu::usual(
            program,
            &format!(
                "-drive file=fat:rw:{},format=raw,if=none,id=d -device virtio-blk-pci,drive=d",
                folder.path().display()
            ),
        );
        let error = refused(&qemu, &["QEMU reports", "vvfat"]);
        let is_blocked =
            |error: &AttachError| matches!(error, AttachError::Refused(Refusal::Blocked { .. }));
        assert!(error.all().iter().any(is_blocked), "{error:?}");
    });
}

/// Each disk is a temporary file of that process: a destination would open another one.
#[test]
fn a_disk_whose_writes_are_temporary() {
    with_each(|program| {
        let image = RamPath::image();
        let disk = format!("file={},format=raw,if=none,id=d", image.as_str());
        let device = "-device virtio-blk-pci,drive=d";
        for line in [
            format!("-snapshot -drive {disk} {device}"),
            format!("-drive {disk},snapshot=on {device}"),
        ] {
            let qemu = Qemu::usual(program, &line);
            refused(&qemu, &["vl.", "is a deleted file", "snapshot=on"]);
        }
        let qemu = Qemu::usual(program, &format!("-drive {disk} {device}"));
        qemu.source();
    });
}
