//! A small swap area in compressed memory (zram).

use std::process::Command;

use crate::common::aloud;

const DEVICE: &str = "/dev/zram0";
const SIZE: &str = "/sys/block/zram0/disksize";

/// A swap area; removed when dropped.
pub(crate) struct Swap(#[allow(dead_code)] std::fs::File);

impl Swap {
    /// `None`, with a printed message, if this machine has no unused zram device.
    pub(crate) fn on() -> Option<Self> {
        let path = std::env::temp_dir().join("hikkoshi-swap.lock");
        let lock = std::fs::File::create(path).unwrap();
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let run = |program: &str| {
            let status = Command::new(program).arg(DEVICE).output();
            status.is_ok_and(|output| output.status.success())
        };
        let unused = std::fs::read_to_string(SIZE).is_ok_and(|size| size.trim() == "0");
        let swap = Self(lock);
        if unused && std::fs::write(SIZE, "64M").is_ok() && run("mkswap") && run("swapon") {
            return Some(swap);
        }
        aloud("NOT TESTED: swapped pages (no unused zram device)");
        if !unused {
            // It is not ours.
            std::mem::forget(swap);
        }
        None
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        let _ = Command::new("swapoff").arg(DEVICE).output();
        let _ = std::fs::write("/sys/block/zram0/reset", "1");
    }
}
