//! The disk of each guest: an ext4 file system on a qcow2 image, read and written by direct I/O
//! while the guest is moved. Source and destination use the same image with file locking on, so
//! QEMU has to hand it over with the guest, and back.

use crate::TestEnv;
use hikkoshi_lab::{
    Disk, DiskBus, DiskContent, DiskFormat, DiskImage, Vm, VmConfig, never_retried,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

/// A small disk: the guest writes a few pages a second.
const CONTENT: DiskContent = DiskContent::FileSystem {
    mib: 24,
    blocks_mib: 4,
};
/// How long QEMU may take to quit. A QEMU whose main loop waits for a page of a broken post-copy
/// never quits.
const END: Duration = Duration::from_secs(20);

/// Adds a disk, and a guest that works with it, unless the machine has a disk already.
pub(crate) fn with_disk(env: &TestEnv, config: VmConfig) -> VmConfig {
    if !config.disks().is_empty() {
        return config;
    }
    config.file_system(disk_on(env, DiskBus::VirtioBlk))
}

/// Makes a disk that the guest sees at that bus.
pub(crate) fn disk_on(env: &TestEnv, bus: DiskBus) -> Disk {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("guest{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let image = DiskImage::new(env.lab(), &name, DiskFormat::Qcow2, CONTENT).unwrap();
    Disk::new(image).bus(bus)
}

/// Configures a destination for a guest of `source`, with the same disk.
pub(crate) fn with_disk_of(source: &VmConfig, config: VmConfig) -> VmConfig {
    match source.disks() {
        [disk] if config.disks().is_empty() => config.file_system(disk.clone()),
        _ => config,
    }
}

/// Ends the machine that runs the guest, and checks its disks.
///
/// # Panics
/// When a disk is damaged.
pub(crate) fn check_disks(vm: &Arc<Vm>, config: &VmConfig) {
    if config.disks().is_empty() {
        return;
    }
    let in_order = has_ended_in_order(vm);
    for disk in config.disks() {
        let state = match in_order {
            true => disk.image().check(),
            false => disk.image().check_after_kill(),
        };
        if let Err(error) = state {
            never_retried(format_args!("the guest's disk: {error}"));
            panic!("{error}");
        }
    }
}

/// Whether it ran the guest and has quit. Kills it if it cannot quit.
fn has_ended_in_order(vm: &Arc<Vm>) -> bool {
    if vm.exit_status().is_some() {
        return false;
    }
    let (sender, ended) = channel();
    let asked = Arc::clone(vm);
    std::thread::spawn(move || {
        let status = asked.status();
        let had_it = matches!(status.as_deref(), Ok("running" | "paused"));
        let _ = sender.send(had_it && asked.quit(END).is_ok());
    });
    let in_order = ended.recv_timeout(END) == Ok(true);
    vm.kill();
    in_order
}
