//! Eviction of a machine's memory from the host's, if it is in files on a disk.

use super::Vm;
use crate::LabError;
use rustix::fs::{Advice, fadvise};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

/// A QEMU's mapping of a RAM file.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Mapping {
    start: usize,
    bytes: usize,
}

impl Vm {
    /// Writes the RAM files back to their disk, and evicts their pages from QEMU's page table and
    /// then from the page cache, as the kernel does when memory is short. It keeps pages that are
    /// in use at that moment.
    ///
    /// # Errors
    /// When the process has ended, or a file cannot be opened or written back.
    pub fn evict_ram(&self) -> Result<(), LabError> {
        let number = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        let pid = number.ok_or(io::ErrorKind::InvalidData.into());
        let folder = Path::new("/proc").join(self.pid.to_string());
        let process = pid
            .and_then(|pid| Ok(pidfd_open(pid, PidfdFlags::empty())?))
            .map_err(LabError::file("opening the process", &folder))?;
        let maps = folder.join("maps");
        let maps = fs::read_to_string(&maps).map_err(LabError::file("reading", maps))?;
        for path in self.ram_files() {
            let file = File::open(path).map_err(LabError::file("opening", path))?;
            file.sync_data()
                .map_err(LabError::file("writing back", path))?;
            for mapping in mappings(&maps, path) {
                page_out(&process, mapping).map_err(LabError::file("paging out", path))?;
            }
            fadvise(&file, 0, None, Advice::DontNeed)
                .map_err(|error| LabError::file("evicting", path)(error.into()))?;
        }
        Ok(())
    }

    /// How many page faults of QEMU had to read from a disk so far (`majflt` in proc_pid_stat(5)).
    ///
    /// # Errors
    /// When the process has ended.
    pub fn major_faults(&self) -> Result<u64, LabError> {
        let path = format!("/proc/{}/stat", self.pid);
        let stat = fs::read_to_string(&path).map_err(LabError::file("reading", &path))?;
        let faults = major_faults(&stat).ok_or(io::ErrorKind::InvalidData.into());
        faults.map_err(LabError::file("reading", path))
    }
}

/// The mappings of the file at `path`, from `/proc/PID/maps`.
fn mappings(maps: &str, path: &Path) -> Vec<Mapping> {
    let mapping = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        let (start, end) = (number(start)?, number(end)?);
        // Four more fields come before the path; there are no blanks in the lab's paths.
        let is_it = rest.split_whitespace().nth(4) == path.to_str();
        is_it.then_some(Mapping {
            start,
            bytes: end - start,
        })
    };
    maps.lines().filter_map(mapping).collect()
}

/// The 12th field. The second one, the name of the program, is in parentheses.
fn major_faults(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(9)?.parse().ok()
}

/// Evicts the clean pages of a mapping.
fn page_out(process: &OwnedFd, mapping: Mapping) -> io::Result<()> {
    let range = libc::iovec {
        iov_base: std::ptr::without_provenance_mut(mapping.start),
        iov_len: mapping.bytes,
    };
    // SAFETY: the call reads one iovec, which outlives it. The iovec refers to memory of the other
    // process, whose content does not change.
    let advised = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            process.as_raw_fd(),
            &raw const range,
            1usize,
            libc::MADV_PAGEOUT,
            0u32,
        )
    };
    match advised {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_of_a_file_are_found() {
        let maps = "\
7f0000000000-7f0000400000 rw-s 00000000 fe:00 5                          /build/disks/lab/ram
7f0000400000-7f0000800000 rw-p 00000000 00:00 0 
7f0000900000-7f0000a00000 rw-s 00400000 fe:00 5                          /build/disks/lab/ram
7f0000a00000-7f0000b00000 rw-s 00000000 fe:00 6                          /build/disks/lab/ram2
";
        let of = |start, bytes| Mapping { start, bytes };
        let found = mappings(maps, Path::new("/build/disks/lab/ram"));
        let expected = [of(0x7f00_0000_0000, 4 << 20), of(0x7f00_0090_0000, 1 << 20)];
        assert_eq!(found, expected);
    }

    #[test]
    fn major_faults_are_read() {
        let stat = "12 (qemu (1) x) S 1 12 12 0 -1 4194304 100 0 37 0 5 6 0 0 20 0 4 0 99 1 2";
        assert_eq!(major_faults(stat), Some(37));
        assert_eq!(major_faults(""), None);
    }
}
