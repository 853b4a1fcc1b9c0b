//! Paths of the files that the Makefile's targets provide.
//!
//! They are searched at run time, because the program may have been built elsewhere.

use crate::LabError;
use std::fmt;
use std::path::{Path, PathBuf};

/// The QEMU versions used by the tests.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum QemuVersion {
    /// The version of Debian 12.
    V7_2,
    /// The version backported to Debian 12.
    V10_0,
    /// The version backported to Debian 13.
    V11_1,
}

impl QemuVersion {
    /// All versions.
    pub const ALL: [Self; 3] = [Self::V7_2, Self::V10_0, Self::V11_1];

    /// The oldest and the newest: for tests that have to be quick.
    pub const OLDEST_AND_NEWEST: [Self; 2] = [Self::V7_2, Self::V11_1];

    /// Options by which QEMU refuses deprecated commands, and leaves deprecated members out of its
    /// answers.
    pub const WITHOUT_DEPRECATED: [&str; 2] =
        ["-compat", "deprecated-input=reject,deprecated-output=hide"];

    /// The version, as in the name of its folder: `7.2`.
    pub fn label(self) -> &'static str {
        match self {
            Self::V7_2 => "7.2",
            Self::V10_0 => "10.0",
            Self::V11_1 => "11.1",
        }
    }

    /// The program that starts this QEMU.
    ///
    /// # Errors
    /// When it has not been set up.
    pub fn runner(self) -> Result<PathBuf, LabError> {
        present("QEMU", format!("qemu-{self}/run"), "guest")
    }
}

impl fmt::Display for QemuVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// The guest's kernel, decompressed: QEMU starts it directly (PVH).
///
/// # Errors
/// When it has not been set up.
pub fn kernel() -> Result<PathBuf, LabError> {
    present("the guest's kernel", "kernel/vmlinux", "guest")
}

/// The guest's kernel as it was packaged.
///
/// # Errors
/// When it has not been set up.
pub(crate) fn packaged_kernel() -> Result<PathBuf, LabError> {
    present("the guest's kernel", "kernel/vmlinuz", "guest")
}

/// The guest's initramfs.
///
/// # Errors
/// When it has not been built.
pub fn initramfs() -> Result<PathBuf, LabError> {
    present("the guest's initramfs", "initramfs.cpio", "guest")
}

/// The nano guest's kernel.
///
/// # Errors
/// When it has not been built.
pub fn nano_kernel() -> Result<PathBuf, LabError> {
    present(
        "the nano guest's kernel",
        "nano/x86_64-unknown-linux-gnu/release/nano",
        "guest",
    )
}

/// The initramfs of the guest with the web server.
///
/// # Errors
/// When it has not been built (by `make guest-web`).
pub fn web_initramfs() -> Result<PathBuf, LabError> {
    present(
        "the web guest's initramfs",
        "initramfs-web.cpio",
        "guest-web",
    )
}

/// A kernel with the drivers of devices that the test guest's own kernel does not support: AHCI,
/// USB, graphics, e1000e.
///
/// # Errors
/// When it has not been set up (by `make guest-devices`).
pub fn devices_kernel() -> Result<PathBuf, LabError> {
    present(
        "the kernel with all drivers",
        "kernel-devices/vmlinuz",
        "guest-devices",
    )
}

/// The initramfs for [`devices_kernel`].
///
/// # Errors
/// When it has not been built (by `make guest-devices`).
pub fn devices_initramfs() -> Result<PathBuf, LabError> {
    present(
        "the initramfs with all drivers",
        "initramfs-devices.cpio",
        "guest-devices",
    )
}

/// The UEFI firmware's file of that name.
pub(crate) fn ovmf(name: &str) -> Result<PathBuf, LabError> {
    present(
        "the UEFI firmware",
        Path::new("ovmf").join(name),
        "guest-images",
    )
}

/// The TPM emulator.
pub(crate) fn swtpm() -> Result<PathBuf, LabError> {
    present("the TPM emulator", "swtpm/run", "guest")
}

/// passt.
pub(crate) fn passt() -> Result<PathBuf, LabError> {
    present("passt", "passt/passt", "guest-devices")
}

/// Chromium without windows, with fonts.
pub(crate) fn chromium() -> Result<PathBuf, LabError> {
    present("Chromium", "chromium/run", "browser")
}

/// Prometheus or promtool.
pub(crate) fn prometheus(program: &str) -> Result<PathBuf, LabError> {
    present(
        "Prometheus",
        Path::new("prometheus").join(program),
        "browser",
    )
}

/// The disk image of the Debian guest.
pub(crate) fn debian_disk() -> Result<PathBuf, LabError> {
    present("the Debian guest", "debian/disk.qcow2", "guest-debian")
}

/// The program that creates and checks disk images.
///
/// # Errors
/// When `make setup` has not provided it.
pub fn qemu_img() -> Result<PathBuf, LabError> {
    present("qemu-img", "qemu-img/run", "guest")
}

/// The program that shows a folder as a file system of its own.
pub(crate) fn bindfs() -> Result<PathBuf, LabError> {
    present("bindfs", "bindfs/run", "bindfs")
}

/// Corosync and Pacemaker, as they are laid over the root of a node.
pub(crate) fn pacemaker() -> Result<PathBuf, LabError> {
    present("Pacemaker", "pacemaker/root", "pacemaker")
}

/// The folder for disk images: in the build folder, because direct I/O needs a disk.
pub(crate) fn disks() -> Result<PathBuf, LabError> {
    Ok(build()?.join("disks"))
}

/// The build folder.
pub(crate) fn build() -> Result<PathBuf, LabError> {
    // Any existing artifact identifies it.
    let kernel = present("the guest's kernel", "kernel", "guest")?;
    Ok(kernel.parent().map(Path::to_owned).unwrap_or_default())
}

/// The environment variable with the path of the build folder.
const BUILD: &str = "HIKKOSHI_BUILD";

/// A file or folder of the build folder, which `make TARGET` provides.
fn present(
    what: &'static str,
    name: impl AsRef<Path>,
    target: &'static str,
) -> Result<PathBuf, LabError> {
    let given = std::env::var_os(BUILD).map(PathBuf::from);
    // The program or the working directory may be inside the source tree.
    let program = std::env::current_exe().ok();
    let here = std::env::current_dir().ok();
    let starts: Vec<PathBuf> = program.into_iter().chain(here).collect();
    find(given, &starts, name.as_ref()).map_err(|looked| LabError::Missing {
        what,
        target,
        looked,
    })
}

/// Searches `name` in the build folder `given`, or else in the first folder `build` that contains
/// it, next to or above one of `starts`. On failure returns where it searched.
fn find(given: Option<PathBuf>, starts: &[PathBuf], name: &Path) -> Result<PathBuf, String> {
    if let Some(build) = given {
        let path = build.join(name);
        return match path.exists() {
            true => Ok(path),
            false => Err(format!("{} (set by {BUILD})", path.display())),
        };
    }
    let above = starts.iter().flat_map(|start| start.ancestors());
    let found = above
        .map(|folder| folder.join("build").join(name))
        .find(|path| path.exists());
    found.ok_or_else(|| {
        let starts: Vec<_> = starts.iter().map(|s| s.display().to_string()).collect();
        format!(
            "build/{} in any folder above {}",
            name.display(),
            starts.join(" or ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Lab;
    use std::fs;

    #[test]
    fn the_build_folder_is_found_from_the_program_or_from_here() {
        let lab = Lab::new().unwrap();
        let at = |path: &str| lab.folder().join(path);
        for folder in [
            "one/build/kernel",
            "one/target/debug",
            "two/build",
            "two/deep",
        ] {
            fs::create_dir_all(at(folder)).unwrap();
        }
        fs::write(at("one/build/kernel/vmlinuz"), "").unwrap();
        fs::write(at("two/build/initramfs.cpio"), "").unwrap();
        let (program, here) = (at("one/target/debug/hikkoshi"), at("two/deep"));
        let find = |given: Option<&str>, starts: &[&PathBuf], name: &str| {
            let starts: Vec<_> = starts.iter().map(|&start| start.clone()).collect();
            super::find(given.map(at), &starts, Path::new(name))
        };
        let (kernel, initramfs) = ("kernel/vmlinuz", "initramfs.cpio");
        let beside = find(None, &[&program, &here], kernel).unwrap();
        assert_eq!(beside, at("one/build/kernel/vmlinuz"));
        let here_only = find(None, &[&program, &here], initramfs).unwrap();
        assert_eq!(here_only, at("two/build/initramfs.cpio"));
        let error = find(None, &[&here], kernel).unwrap_err();
        assert!(
            error.contains("build/kernel/vmlinuz") && error.contains(here.to_str().unwrap()),
            "{error}"
        );
        // With `given` set, only that folder is searched.
        let said = find(Some("two/build"), &[&program], initramfs).unwrap();
        assert_eq!(said, at("two/build/initramfs.cpio"));
        let error = find(Some("two/build"), &[&program], kernel).unwrap_err();
        assert!(
            error.contains("two/build") && error.contains(BUILD),
            "{error}"
        );
    }
}
