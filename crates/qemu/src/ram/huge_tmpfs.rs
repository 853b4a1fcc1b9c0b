//! Finds out whether the kernel puts huge pages into a tmpfs.
//!
//! Post-copy drops and fills single pages of a RAM file. In a tmpfs that is mounted with
//! `huge=`, a page can be part of a huge page. Punching a hole into a huge page creates
//! a hole only if the kernel can split the huge page. Otherwise the range is filled
//! with zeros, and accesses do not fault. (`Documentation/admin-guide/mm/transhuge.rst`, "Hugepages
//! in tmpfs/shmem".)

use std::io::{self, BufRead, BufReader};
use std::os::fd::AsFd;

use hikkoshi_linux::Process;

/// Its values `deny` and `force` override every mount. Its other values apply to
/// memory without a visible mount.
const OVERRIDE: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

/// The setting that makes the kernel put huge pages into the file's tmpfs, if there
/// is one.
///
/// # Errors
///
/// The error of `fstat`, or of reading `/proc/PID/mountinfo`.
pub(crate) fn cause(process: &Process, file: impl AsFd) -> io::Result<Option<String>> {
    // Missing if the kernel does not support huge pages there.
    let Ok(override_) = std::fs::read_to_string(OVERRIDE) else {
        return Ok(None);
    };
    match selected(&override_) {
        Some("deny") => return Ok(None),
        Some("force") => return Ok(Some(format!("{OVERRIDE} is force"))),
        _ => {}
    }
    let device = rustix::fs::fstat(file)?.st_dev;
    let device = format!(
        "{}:{}",
        rustix::fs::major(device),
        rustix::fs::minor(device)
    );
    for line in BufReader::new(process.open_proc("mountinfo")?).lines() {
        if let Some(option) = huge_option(&line?, &device) {
            return Ok(Some(format!("mount option {option}")));
        }
    }
    // Also if the file system is not mounted any more.
    Ok(None)
}

/// `[never]` among `always within_size advise [never] deny force`.
fn selected(text: &str) -> Option<&str> {
    text.split_whitespace()
        .find_map(|word| word.strip_prefix('[')?.strip_suffix(']'))
}

/// The option `huge=…` of the file system `device`, except `huge=never`, in a line of
/// `mountinfo` (proc_pid_mountinfo(5)): the device is the third field, the file
/// system's own options are the third field after the dash.
fn huge_option<'a>(line: &'a str, device: &str) -> Option<&'a str> {
    let (mount, system) = line.split_once(" - ")?;
    if mount.split(' ').nth(2) != Some(device) {
        return None;
    }
    let options = system.split(' ').nth(2)?;
    options
        .split(',')
        .find(|option| option.starts_with("huge=") && *option != "huge=never")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_belongs_to_its_file_system() {
        let shm = "26 20 0:23 / /dev/shm rw,nosuid shared:4 - tmpfs tmpfs rw,size=1k,inode64";
        let huge = "300 20 0:52 / /mnt/a\\040b rw,relatime - tmpfs none rw,huge=within_size";
        assert_eq!(huge_option(huge, "0:52"), Some("huge=within_size"));
        assert_eq!(huge_option(huge, "0:5"), None);
        assert_eq!(huge_option(shm, "0:23"), None);
        let never = "300 20 0:52 / /mnt rw - tmpfs none rw,huge=never";
        assert_eq!(huge_option(never, "0:52"), None);
        assert_eq!(huge_option("", "0:52"), None);
    }

    #[test]
    fn the_selected_word_is_the_one_in_brackets() {
        let text = "always within_size advise [never] deny force\n";
        assert_eq!(selected(text), Some("never"));
        assert_eq!(selected(""), None);
    }

    #[test]
    fn the_tmpfs_of_shared_memory_is_examined() {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        let own = Process::open(std::process::id()).unwrap();
        // The result depends on how this machine is configured.
        let found = cause(&own, &file).unwrap();
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
        let shm = mounts.lines().find(|line| line.contains(" /dev/shm "));
        let huge = shm.is_some_and(|line| line.contains("huge=") && !line.contains("huge=never"));
        if std::fs::read_to_string(OVERRIDE).is_ok_and(|text| selected(&text) == Some("never")) {
            assert_eq!(found.is_some(), huge, "{found:?}");
        }
    }
}
