//! Whether QEMU has images open as a running guest has them.

use std::fs;
use std::io;
use std::ops::RangeInclusive;

use hikkoshi_linux::Process;

/// The bytes of an image that QEMU locks, one for each permission that it uses or does not share
/// (`RAW_LOCK_PERM_BASE` and `RAW_LOCK_SHARED_BASE` in QEMU's `file-posix.c`). It has no such lock
/// on an image that it has deactivated.
const LOCKED: RangeInclusive<u64> = 100..=299;

/// Whether the process has such locks, except those of images in memory, such as our own
/// (`disks/move_lock.rs`). Images that are not locked (`locking=off`) are not seen.
///
/// # Errors
/// The process has ended, or may not be looked at.
pub(crate) fn has_image_locks(process: &Process) -> io::Result<bool> {
    let folder = format!("/proc/{}", process.pid());
    for entry in fs::read_dir(format!("{folder}/fdinfo"))? {
        let Ok(name) = entry?.file_name().into_string() else {
            continue;
        };
        // It may have been closed meanwhile.
        let Ok(info) = fs::read_to_string(format!("{folder}/fdinfo/{name}")) else {
            continue;
        };
        if !info.lines().any(is_image_lock) {
            continue;
        }
        let file = fs::read_link(format!("{folder}/fd/{name}"))?;
        if !file.as_os_str().as_encoded_bytes().starts_with(b"/memfd:") {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a line of `fdinfo` (proc(5)) is such a lock: `lock:\t1: OFDLCK ADVISORY READ -1
/// fd:00:1234 100 101`.
fn is_image_lock(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [first, .., from, _] = &words[..] else {
        return false;
    };
    let from = from.parse::<u64>();
    *first == "lock:" && words.contains(&"OFDLCK") && from.is_ok_and(|from| LOCKED.contains(&from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_of_images_are_told_from_others() {
        assert!(is_image_lock(
            "lock:\t1: OFDLCK  ADVISORY  READ -1 fd:00:1234 100 101"
        ));
        for other in [
            "lock:\t1: OFDLCK  ADVISORY  WRITE -1 00:1b:77 0 EOF",
            "lock:\t1: FLOCK  ADVISORY  WRITE 4711 00:1b:77 0 EOF",
            "pos:\t100",
            "",
        ] {
            assert!(!is_image_lock(other), "{other}");
        }
    }
}
