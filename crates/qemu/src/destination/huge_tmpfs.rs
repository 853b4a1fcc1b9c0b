//! Whether the kernel puts huge pages into a tmpfs.
//!
//! Post-copy drops pages of the RAM file one by one and fills them in one by
//! one. In a tmpfs that is mounted with `huge=` the kernel may have put a page
//! into a huge one: a hole that is punched into that is a hole only if the
//! kernel manages to split it, and otherwise holds zeros, to which no access
//! ever faults. (`Documentation/admin-guide/mm/transhuge.rst`, "Hugepages in
//! tmpfs/shmem".)

use std::io::{self, BufRead, BufReader};
use std::os::fd::AsFd;

use hikkoshi_linux::Process;

/// Overrules every mount: `deny` and `force`. Its other values are about
/// memory without a mount that one could see.
const OVERRULE: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

/// What makes the kernel put huge pages into the file's tmpfs, in the words of
/// who set it, if anything does.
///
/// # Errors
///
/// What `fstat` or reading `/proc/PID/mountinfo` says.
pub(crate) fn cause(process: &Process, file: impl AsFd) -> io::Result<Option<String>> {
    // Not there: a kernel that cannot do it.
    let Ok(overrule) = std::fs::read_to_string(OVERRULE) else {
        return Ok(None);
    };
    match selected(&overrule) {
        Some("deny") => return Ok(None),
        Some("force") => return Ok(Some(format!("{OVERRULE} is force"))),
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
    // Also for a file system that is not mounted any more.
    Ok(None)
}

/// `[never]` among `always within_size advise [never] deny force`.
fn selected(text: &str) -> Option<&str> {
    text.split_whitespace()
        .find_map(|word| word.strip_prefix('[')?.strip_suffix(']'))
}

/// The option `huge=…` of the file system `device`, but for `never`, in a line
/// of `mountinfo` (proc_pid_mountinfo(5)): the device is the third field, the
/// file system's own options are the third behind the dash.
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
    fn the_option_is_found_at_its_file_system_only() {
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
    fn shared_memory_is_looked_up() {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        let own = Process::open(std::process::id()).unwrap();
        // The machine's owner may have set it: what matters is that it can be told.
        let found = cause(&own, &file).unwrap();
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
        let shm = mounts.lines().find(|line| line.contains(" /dev/shm "));
        let huge = shm.is_some_and(|line| line.contains("huge=") && !line.contains("huge=never"));
        if std::fs::read_to_string(OVERRULE).is_ok_and(|text| selected(&text) == Some("never")) {
            assert_eq!(found.is_some(), huge, "{found:?}");
        }
    }
}
