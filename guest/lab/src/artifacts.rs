//! Where the things are that `make guest` brings.

use crate::LabError;
use std::fmt;
use std::path::{Path, PathBuf};

/// The QEMU versions that the tests run with.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum QemuVersion {
    /// Debian 12's own.
    V7_2,
    /// The one backported to Debian 12.
    V10_0,
}

impl QemuVersion {
    /// Both.
    pub const ALL: [Self; 2] = [Self::V7_2, Self::V10_0];

    /// The version as its folder is named: `7.2`.
    pub fn label(self) -> &'static str {
        match self {
            Self::V7_2 => "7.2",
            Self::V10_0 => "10.0",
        }
    }

    /// The program that becomes this QEMU.
    ///
    /// # Errors
    /// When it has not been set up.
    pub fn runner(self) -> Result<PathBuf, LabError> {
        present("QEMU", format!("qemu-{self}/run"))
    }
}

impl fmt::Display for QemuVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// The guest's kernel.
///
/// # Errors
/// When it has not been set up.
pub fn kernel() -> Result<PathBuf, LabError> {
    present("the guest's kernel", "kernel/vmlinuz")
}

/// The guest's first file system.
///
/// # Errors
/// When it has not been built.
pub fn initramfs() -> Result<PathBuf, LabError> {
    present("the guest's initramfs", "initramfs.cpio")
}

/// The first file system of the guest that has a web server, too.
///
/// # Errors
/// When it has not been built: only `make guest-web` does.
pub fn web_initramfs() -> Result<PathBuf, LabError> {
    present("the web guest's initramfs", "initramfs-web.cpio")
}

fn present(what: &'static str, name: impl AsRef<Path>) -> Result<PathBuf, LabError> {
    // Built and run in the same tree, unless said otherwise.
    let build = std::env::var_os("HIKKOSHI_BUILD").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../build"),
        PathBuf::from,
    );
    let path = build.join(name);
    if path.exists() {
        Ok(path)
    } else {
        Err(LabError::Missing { what, path })
    }
}
