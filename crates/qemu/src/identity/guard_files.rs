//! Files without a name that a guard of a killed engine holds open.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::process::reopen::{self, FileAccess, MappedFileRange};

/// The argument by which a guard receives a file to hold.
pub const HOLD: &str = "--hold";

/// Opens the file if a process of this user that was started to hold files has it open.
///
/// The numbers of a file that no process has open can belong to another file later. So processes
/// of other users, which could wait for that, are not searched.
pub(super) fn open(range: &MappedFileRange, access: FileAccess) -> io::Result<Option<File>> {
    let own = rustix::process::geteuid().as_raw();
    for entry in std::fs::read_dir("/proc")? {
        let folder = entry?.path();
        let is_process = folder
            .file_name()
            .and_then(OsStr::to_str)
            .is_some_and(|name| name.bytes().all(|c| c.is_ascii_digit()));
        // It may have ended by now.
        let is_own = || std::fs::metadata(&folder).is_ok_and(|about| about.uid() == own);
        if is_process
            && is_own()
            && holds_files(&folder)
            && let Some(file) = reopen::by_descriptor(&folder, range, access)?
        {
            return Ok(Some(file));
        }
    }
    Ok(None)
}

fn holds_files(folder: &Path) -> bool {
    let command = std::fs::read(folder.join("cmdline")).unwrap_or_default();
    let mut words = command.split(|byte| *byte == 0).map(OsStr::from_bytes);
    words.any(|word| word == HOLD)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;
    use std::process::{Command, Stdio};

    #[test]
    fn a_file_without_a_name_is_found_as_long_as_it_is_held() {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.write_all_at(b"content", 0).unwrap();
        let about = file.metadata().unwrap();
        let range = MappedFileRange {
            device: about.dev(),
            inode: about.ino(),
            offset: 0,
            bytes: 7,
            address: 0,
        };
        let find = || open(&range, FileAccess::Read).unwrap();
        // This process has it open as well, but was not started to hold it.
        assert!(find().is_none());
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        let mut holder = Command::new("sh")
            .args(["-c", "exec 3<\"$2\"; echo; read line", "guard", HOLD, &path])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = io::Read::read(&mut holder.stdout.take().unwrap(), &mut [0]);
        assert_eq!(said.unwrap(), 1);
        let found = find().unwrap();
        drop(file);
        let mut content = [0; 7];
        found.read_exact_at(&mut content, 0).unwrap();
        assert_eq!(&content, b"content");
        drop(holder.stdin.take());
        holder.wait().unwrap();
        assert!(find().is_none());
    }
}
