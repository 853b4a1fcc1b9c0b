//! Compressed swap space in memory (zram).

use crate::{LabError, spawn};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const ZRAM: &str = "/sys/class/zram-control";

/// Swap space in compressed memory, removed on drop.
#[derive(Debug)]
pub struct ZramSwap {
    number: String,
    device: PathBuf,
}

impl ZramSwap {
    /// Creates `mib` MiB of swap space.
    ///
    /// # Errors
    /// [`LabError::NoSwap`] when the kernel has no zram; otherwise when it refuses.
    pub fn new(mib: u64) -> Result<Self, LabError> {
        let add = Path::new(ZRAM).join("hot_add");
        let number = fs::read_to_string(&add).map_err(|error| LabError::NoSwap {
            reason: format!("{} cannot be read: {error}", add.display()),
        })?;
        let number = number.trim().to_owned();
        let swap = Self {
            device: PathBuf::from(format!("/dev/zram{number}")),
            number,
        };
        let size = format!("/sys/block/zram{}/disksize", swap.number);
        fs::write(&size, format!("{mib}M")).map_err(LabError::file("writing", &size))?;
        spawn::run(Command::new("mkswap").arg(&swap.device))?;
        spawn::run(Command::new("swapon").arg(&swap.device))?;
        Ok(swap)
    }
}

impl Drop for ZramSwap {
    fn drop(&mut self) {
        let _ = spawn::run(Command::new("swapoff").arg(&self.device));
        let _ = fs::write(Path::new(ZRAM).join("hot_remove"), &self.number);
    }
}
