//! A real QEMU of a version that nobody has: a copy of one, in which a few bytes were changed.

use crate::{LabError, QemuVersion};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What the copy says.
const VERSION: &str = "12.0";

/// What follows the two numbers in the program: the package's version.
const PACKAGE: &[u8] = b"Debian ";

/// Makes a copy of QEMU 11.1 in `folder` that says that it is 12.0, and does not have the QMP
/// commands `without`. Returns the program that starts it.
///
/// # Errors
/// When it has not been set up, or was built so that its version is somewhere else.
pub fn unknown_qemu(folder: &Path, without: &[&str]) -> Result<PathBuf, LabError> {
    let original = QemuVersion::V11_1.runner()?;
    let root = original.parent().map(|it| it.join("root"));
    let root = root.unwrap_or_default();
    let program = root.join("usr/bin/qemu-system-x86_64");
    let mut bytes = fs::read(&program).map_err(LabError::file("reading", &program))?;
    let changed = change(&mut bytes, without).ok_or_else(|| {
        let reason = io::Error::other("its version, or a command, is not where it was expected");
        LabError::file("changing a copy of", &program)(reason)
    });
    changed?;
    let (copy, run) = (folder.join("qemu"), folder.join("run"));
    write_program(&copy, &bytes)?;
    let [root, copy] = [&root, &copy].map(|path| path.display());
    let script = format!(
        "#!/bin/sh\nexport QEMU_MODULE_DIR={root}/usr/lib/x86_64-linux-gnu/qemu\nexec {copy} \
         -L {root}/usr/share/qemu -L {root}/usr/share/seabios -L {root}/usr/lib/ipxe/qemu \"$@\"\n"
    );
    write_program(&run, script.as_bytes())?;
    Ok(run)
}

/// Changes the version, and the names of the commands. `None` if they are not found.
fn change(program: &mut [u8], without: &[&str]) -> Option<()> {
    let pair = |version: &str| {
        let (major, minor) = version.split_once('.')?;
        let numbers = [major.parse::<u64>().ok()?, minor.parse().ok()?];
        Some(numbers.map(u64::to_le_bytes).concat())
    };
    let (old, new) = (pair(QemuVersion::V11_1.label())?, pair(VERSION)?);
    replace(program, &[&old[..], PACKAGE].concat(), &new)?;
    for name in without {
        // With the ends of the strings, so that no longer name is changed.
        let last = name.len().checked_sub(1)?;
        let old = [b"\0", name.as_bytes(), b"\0"].concat();
        let new = [b"\0", &name.as_bytes()[..last], b"?"].concat();
        replace(program, &old, &new)?;
    }
    Some(())
}

/// Replaces the beginnings of all occurrences of `old`. `None` if there is none.
fn replace(program: &mut [u8], old: &[u8], new: &[u8]) -> Option<()> {
    let places = program.windows(old.len()).enumerate();
    let places: Vec<_> = places
        .filter_map(|(at, window)| (window == old).then_some(at))
        .collect();
    for at in &places {
        program[*at..at + new.len()].copy_from_slice(new);
    }
    (!places.is_empty()).then_some(())
}

/// Writes a program. Another process does it: a child that another thread starts at this moment
/// would inherit a descriptor that is open for writing, and the file could not be executed.
fn write_program(path: &Path, content: &[u8]) -> Result<(), LabError> {
    let write = || {
        let mut writer = Command::new("sh")
            .args(["-c", "cat > \"$1\" && chmod 755 \"$1\"", "sh"])
            .arg(path)
            .stdin(Stdio::piped())
            .spawn()?;
        let input = writer.stdin.take();
        let written = input.map_or(Ok(()), |mut input| input.write_all(content));
        match writer.wait()?.success() {
            true => written,
            false => Err(io::Error::other("it could not be written")),
        }
    };
    write().map_err(LabError::file("writing", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_and_names_are_changed() {
        let version = |major: u64, minor: u64| [major, minor].map(u64::to_le_bytes).concat();
        let program = |version: Vec<u8>, name: &[u8]| {
            [&version, PACKAGE, b"1:11.1.3\0stop\0", name, b"\0stop-it\0"].concat()
        };
        let mut found = program(version(11, 1), b"cont");
        assert_eq!(change(&mut found, &["cont"]), Some(()));
        assert_eq!(found, program(version(12, 0), b"con?"));
        assert_eq!(change(&mut found, &[]), None, "it is not 11.1");
        let mut found = program(version(11, 1), b"cont");
        assert_eq!(change(&mut found, &["quit"]), None);
    }
}
