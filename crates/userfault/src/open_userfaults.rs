//! Finding the userfaultfds that a process has open.

use std::io;
use std::path::Path;

use crate::features::Features;
use hikkoshi_linux::Process;

/// A userfaultfd that is open in a process: left there by a migration program that was killed, or
/// opened by the process itself (QEMU's `postcopy-ram` or background snapshots).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenUserfault {
    /// Descriptor number in that process.
    pub number: i32,
    /// The negotiated features.
    pub features: Features,
    /// Number of blocked threads whose event was not read yet.
    pub unread: u64,
    /// Number of blocked threads, including those whose event was read.
    pub waiting: u64,
}

/// Returns the userfaultfds that `process` has open, by descriptor number.
///
/// # Errors
///
/// When `/proc` cannot be read: the process has exited, or this program may not inspect it.
pub fn open_userfaults(process: &Process) -> io::Result<Vec<OpenUserfault>> {
    let mut found = Vec::new();
    for number in process.descriptors()? {
        match process.describe_descriptor(number) {
            Ok((link, info)) if is_userfault(&link) => found.push(parse(number, &info)),
            Ok(_) => {}
            // Closed since the directory was listed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

pub(crate) fn is_userfault(link: &Path) -> bool {
    link == Path::new("anon_inode:[userfaultfd]")
}

/// `fdinfo` of a userfaultfd: "pending:\t1\ntotal:\t2\nAPI:\taa:9000:…" (userfaultfd_show_fdinfo
/// in fs/userfaultfd.c).
fn parse(number: i32, info: &str) -> OpenUserfault {
    let field = |name: &str| {
        info.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(str::trim)
    };
    let count = |name| {
        field(name)
            .and_then(|value| value.parse().ok())
            .unwrap_or(0)
    };
    let features = field("API")
        .and_then(|value| value.split(':').nth(1))
        .and_then(|features| u64::from_str_radix(features, 16).ok())
        // Bit 31 is internal to the kernel: UFFDIO_API was called.
        .map_or(0, |features| features & !(1 << 31));
    OpenUserfault {
        number,
        features: Features(features),
        unread: count("pending"),
        waiting: count("total"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fdinfo_is_parsed() {
        let info = "pos:\t0\nflags:\t02004002\nmnt_id:\t15\nino:\t1059\npending:\t1\ntotal:\t3\nAPI:\taa:80009130:1ffff\n";
        let found = parse(7, info);
        assert_eq!(found.features, Features(0x9130));
        assert_eq!((found.number, found.unread, found.waiting), (7, 1, 3));
        assert_eq!(parse(7, "").features, Features::NONE);
    }

    /// Invalid and too large numbers are ignored.
    #[test]
    fn malformed_fdinfo_is_ignored() {
        let numbers = [
            "",
            "-1",
            "0x10",
            "18446744073709551616",
            "1e3",
            "\u{0}",
            "٣",
        ];
        for number in numbers {
            let info =
                format!("pending:\t{number}\ntotal:{number}\nAPI:\taa:{number}x:{number}\nAPI:");
            let found = parse(i32::MIN, &info);
            assert_eq!((found.unread, found.waiting), (0, 0), "{info:?}");
            assert_eq!(found.features, Features::NONE, "{info:?}");
        }
        for info in [
            "API",
            "API:",
            "API:\t:",
            "::::",
            "pending",
            "\n\n",
            "API:\taa:ffffffffffffffff:",
        ] {
            let _ = parse(0, info);
        }
        let most = parse(
            0,
            "API:\taa:ffffffffffffffff:0\npending:18446744073709551615\n",
        );
        assert_eq!(most.features, Features(!(1 << 31)));
        assert_eq!(most.unread, u64::MAX);
    }
}
