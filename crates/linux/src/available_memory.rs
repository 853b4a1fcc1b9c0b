//! How much more memory a process can have: the host's memory, and the limits of its cgroups.
//!
//! Memory that the kernel can take back at once (page cache) counts as available, and so does free
//! swap space: such a process becomes slow, but it is not killed. Huge pages are not swapped.
//!
//! | | version 1 | version 2 |
//! | --- | --- | --- |
//! | limit | `memory.limit_in_bytes` | `memory.max` |
//! | throttles | | `memory.high` |
//! | used | `memory.usage_in_bytes` | `memory.current` |
//! | page cache | `total_inactive_file`, `total_active_file` | `inactive_file`, `active_file` |
//! | with swap | `memory.memsw.*` | `memory.swap.max`, `memory.swap.current` |
//! | swaps for its limit | `memory.swappiness` | `/proc/sys/vm/swappiness` |
//! | huge pages | `hugetlb.SIZE.limit_in_bytes`, `.usage_in_bytes` | `hugetlb.SIZE.max`, `.current` |
//! | reserved ones | `hugetlb.SIZE.rsvd.*` | `hugetlb.SIZE.rsvd.*` |

use std::io;
use std::path::PathBuf;

use crate::cgroups::{Cgroup, Cgroups, cgroups_of};
use crate::process::Process;

/// How much more memory a process can have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AvailableMemory {
    /// Bytes that the host has.
    pub host: u64,
    /// What the most limited of its memory cgroups can have.
    pub limit: Option<CgroupLimit>,
    /// What its memory cgroups can have before one of them is throttled.
    pub throttled: Option<CgroupLimit>,
    /// Whether one of its cgroups is not mounted here, so that its limits are not known.
    pub is_any_unseen: bool,
}

/// How much more a cgroup can have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupLimit {
    /// Bytes.
    pub available: u64,
    /// Its folder.
    pub cgroup: PathBuf,
    /// The file there that sets the limit.
    pub file: String,
}

/// `MemAvailable` of `/proc/meminfo`, in bytes: what can be used without swapping. It does not
/// include what is reserved for huge pages.
///
/// # Errors
///
/// As reading that file.
pub fn host_memory_available() -> io::Result<u64> {
    meminfo(&std::fs::read_to_string("/proc/meminfo")?, "MemAvailable:")
}

/// How much more memory `process` can have, with swap space.
///
/// # Errors
///
/// As reading `/proc/meminfo`, `/proc/PID/cgroup` and `/proc/self/mountinfo`. A cgroup whose files
/// cannot be read does not count.
pub fn memory_available(process: &Process) -> io::Result<AvailableMemory> {
    let info = std::fs::read_to_string("/proc/meminfo")?;
    let swap = meminfo(&info, "SwapFree:")?;
    let Cgroups {
        seen: cgroups,
        is_any_unseen,
    } = cgroups_of(process, "memory")?;
    let cgroup_swap = match swappiness(&cgroups) {
        Some(0) => 0,
        _ => swap,
    };
    let least = |limit: fn(&Cgroup, u64) -> Option<CgroupLimit>| {
        least(
            cgroups
                .iter()
                .filter_map(|cgroup| limit(cgroup, cgroup_swap)),
        )
    };
    Ok(AvailableMemory {
        host: meminfo(&info, "MemAvailable:")?.saturating_add(swap),
        limit: least(memory_limit),
        throttled: least(memory_high),
        is_any_unseen,
    })
}

/// How many more bytes of huge pages of `page` bytes `process` can have, by the limits of its
/// cgroups. `reserved`: the pages are reserved already.
///
/// The kernel charges a huge page to the thread that allocates it, whoever maps it.
///
/// # Errors
///
/// As reading `/proc/PID/cgroup` and `/proc/self/mountinfo`.
pub fn huge_pages_available(
    process: &Process,
    page: u64,
    reserved: bool,
) -> io::Result<Option<CgroupLimit>> {
    let size = size_name(page);
    let cgroups = cgroups_of(process, "hugetlb")?.seen;
    let kinds: &[&str] = match reserved {
        true => &[""],
        false => &["", ".rsvd"],
    };
    let own = cgroups.iter().flat_map(|cgroup| {
        let limits = kinds.iter().map(|kind| format!("hugetlb.{size}{kind}"));
        limits.filter_map(|prefix| huge_page_limit(cgroup, &prefix))
    });
    let counted = cgroups.iter().filter_map(memory_limit_of_huge_pages);
    Ok(least(own.chain(counted)))
}

/// What the cgroup can have in huge pages by its limit of memory, if that counts them. They take no
/// swap space.
fn memory_limit_of_huge_pages(cgroup: &Cgroup) -> Option<CgroupLimit> {
    match cgroup.counts_huge_pages {
        true => memory_limit(cgroup, 0),
        false => None,
    }
}

fn meminfo(text: &str, name: &str) -> io::Result<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kib.and_then(|kib| kib.parse::<u64>().ok())
        .and_then(|kib| kib.checked_mul(1024))
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn least(limits: impl Iterator<Item = CgroupLimit>) -> Option<CgroupLimit> {
    limits.min_by_key(|limit| limit.available)
}

/// With 0, a cgroup that reaches its limit does not swap (`get_scan_count` in `mm/vmscan.c`).
fn swappiness(cgroups: &[Cgroup]) -> Option<u64> {
    match cgroups.iter().find(|cgroup| !cgroup.unified) {
        Some(own) => own.number("memory.swappiness"),
        None => {
            let text = std::fs::read_to_string("/proc/sys/vm/swappiness").ok()?;
            text.trim().parse().ok()
        }
    }
}

/// What the cgroup can have with `swap` bytes of free swap space; `None` without a limit.
fn memory_limit(cgroup: &Cgroup, swap: u64) -> Option<CgroupLimit> {
    if cgroup.unified {
        return unified_limit(cgroup, swap, "memory.max");
    }
    let cache = cgroup.sum("memory.stat", &["total_inactive_file", "total_active_file"]);
    let left = |limit: &str, used: &str| -> Option<u64> {
        let used = cgroup.number(used)?.saturating_sub(cache);
        Some(cgroup.number(limit)?.saturating_sub(used))
    };
    let file = "memory.limit_in_bytes";
    let memory = left(file, "memory.usage_in_bytes")?.saturating_add(swap);
    let both_file = "memory.memsw.limit_in_bytes";
    let both = left(both_file, "memory.memsw.usage_in_bytes");
    let (available, file) = match both {
        Some(both) if both < memory => (both, both_file),
        _ => (memory, file),
    };
    Some(limit_of(cgroup, available, file))
}

/// What the cgroup can have before the kernel slows its processes down.
fn memory_high(cgroup: &Cgroup, swap: u64) -> Option<CgroupLimit> {
    match cgroup.unified {
        true => unified_limit(cgroup, swap, "memory.high"),
        false => None,
    }
}

fn unified_limit(cgroup: &Cgroup, swap: u64, file: &str) -> Option<CgroupLimit> {
    let cache = cgroup.sum("memory.stat", &["inactive_file", "active_file"]);
    let used = cgroup.number("memory.current")?.saturating_sub(cache);
    let memory = cgroup.number(file)?.saturating_sub(used);
    let swap_used = cgroup.number("memory.swap.current").unwrap_or(0);
    let swap_left = cgroup
        .number("memory.swap.max")
        .map_or(swap, |most| most.saturating_sub(swap_used));
    Some(limit_of(
        cgroup,
        memory.saturating_add(swap.min(swap_left)),
        file,
    ))
}

/// `prefix`: which pages, and whether allocated or reserved ones.
fn huge_page_limit(cgroup: &Cgroup, prefix: &str) -> Option<CgroupLimit> {
    let (limit, used) = match cgroup.unified {
        true => (format!("{prefix}.max"), format!("{prefix}.current")),
        false => (
            format!("{prefix}.limit_in_bytes"),
            format!("{prefix}.usage_in_bytes"),
        ),
    };
    let available = cgroup.number(&limit)?.saturating_sub(cgroup.number(&used)?);
    Some(limit_of(cgroup, available, &limit))
}

fn limit_of(cgroup: &Cgroup, available: u64, file: &str) -> CgroupLimit {
    CgroupLimit {
        available,
        cgroup: cgroup.folder.clone(),
        file: file.to_owned(),
    }
}

/// As the controller's files are called: `2MB`, `1GB` (`mem_fmt` in `mm/hugetlb_cgroup.c`).
fn size_name(page: u64) -> String {
    match page {
        page if page >= 1 << 30 => format!("{}GB", page >> 30),
        page if page >= 1 << 20 => format!("{}MB", page >> 20),
        page => format!("{}KB", page >> 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroups::tests::cgroup;
    use std::path::Path;

    fn available(unified: bool, files: &[(&str, &str)], swap: u64) -> Option<(u64, String)> {
        let (_folder, cgroup) = cgroup(unified, files);
        memory_limit(&cgroup, swap).map(|limit| (limit.available, limit.file))
    }

    fn some(bytes: u64, file: &str) -> Option<(u64, String)> {
        Some((bytes, file.to_owned()))
    }

    #[test]
    fn page_cache_and_swap_count_within_the_limits_of_version_2() {
        let limited = [
            ("memory.max", "1000"),
            ("memory.high", "950"),
            ("memory.current", "900"),
            ("memory.stat", "anon 700\ninactive_file 50\nactive_file 20"),
        ];
        let file = "memory.max";
        assert_eq!(available(true, &limited, 0), some(170, file));
        assert_eq!(available(true, &limited, 40), some(210, file));
        let swap = [("memory.swap.max", "30"), ("memory.swap.current", "20")];
        let with_swap = [&limited[..], &swap].concat();
        assert_eq!(available(true, &with_swap, 40), some(180, file));
        let free = [("memory.max", "max"), ("memory.current", "900")];
        assert_eq!(available(true, &free, 0), None);

        let (_folder, throttled) = cgroup(true, &with_swap);
        let high = memory_high(&throttled, 40).unwrap();
        assert_eq!((high.available, &*high.file), (130, "memory.high"));
        let (_folder, free) = cgroup(true, &free);
        assert_eq!(memory_high(&free, 40), None);
    }

    #[test]
    fn page_cache_and_swap_count_within_the_limits_of_version_1() {
        let limited = [
            ("memory.limit_in_bytes", "1000"),
            ("memory.usage_in_bytes", "900"),
            ("memory.stat", "inactive_file 9\ntotal_inactive_file 50"),
        ];
        let file = "memory.limit_in_bytes";
        assert_eq!(available(false, &limited, 0), some(150, file));
        assert_eq!(available(false, &limited, 40), some(190, file));
        let swap = [
            ("memory.memsw.limit_in_bytes", "1010"),
            ("memory.memsw.usage_in_bytes", "900"),
        ];
        assert_eq!(
            available(false, &[&limited[..], &swap].concat(), 40),
            some(160, "memory.memsw.limit_in_bytes")
        );
        let (_folder, unswappable) = cgroup(false, &[("memory.swappiness", "0")]);
        assert_eq!(swappiness(&[unswappable]), Some(0));
    }

    #[test]
    fn huge_pages_have_limits_of_their_own() {
        assert_eq!(
            [2 << 20, 1 << 30, 64 << 10].map(size_name),
            ["2MB", "1GB", "64KB"]
        );
        for (unified, limit, used) in [
            (true, "hugetlb.2MB.rsvd.max", "hugetlb.2MB.rsvd.current"),
            (
                false,
                "hugetlb.2MB.rsvd.limit_in_bytes",
                "hugetlb.2MB.rsvd.usage_in_bytes",
            ),
        ] {
            let (_folder, limited) = cgroup(unified, &[(limit, "4096"), (used, "1024")]);
            let found = huge_page_limit(&limited, "hugetlb.2MB.rsvd").unwrap();
            assert_eq!((found.available, &*found.file), (3072, limit));
            assert_eq!(huge_page_limit(&limited, "hugetlb.2MB"), None);
        }
    }

    #[test]
    fn a_limit_of_memory_that_counts_huge_pages_is_without_swap() {
        let files = [
            ("memory.max", "1000"),
            ("memory.current", "900"),
            ("memory.swap.max", "max"),
        ];
        let (_folder, mut limited) = cgroup(true, &files);
        assert_eq!(memory_limit_of_huge_pages(&limited), None);
        limited.counts_huge_pages = true;
        let found = memory_limit_of_huge_pages(&limited).unwrap();
        assert_eq!((found.available, &*found.file), (100, "memory.max"));
    }

    /// A real cgroup of version 2 whose limit of huge pages is read for a process in it. Not
    /// tested where the host has no such controller. Limits of memory and swap of version 2 are
    /// tested with files: hosts of these tests have that controller in version 1.
    #[test]
    fn a_limit_of_huge_pages_of_a_real_cgroup() {
        let unified = Path::new("/sys/fs/cgroup/unified");
        let controllers = std::fs::read_to_string(unified.join("cgroup.controllers"));
        let may = rustix::process::geteuid().is_root();
        if !may || !controllers.is_ok_and(|all| all.split_whitespace().any(|it| it == "hugetlb")) {
            eprintln!(
                "NOT TESTED: no controller of huge pages in {}",
                unified.display()
            );
            return;
        }
        let passed_on = unified.join("cgroup.subtree_control");
        let was_passed_on = std::fs::read_to_string(&passed_on).unwrap();
        std::fs::write(&passed_on, "+hugetlb").unwrap();
        let folder = unified.join(format!("hikkoshi-test-{}", std::process::id()));
        let inner = folder.join("inner");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("cgroup.subtree_control"), "+hugetlb").unwrap();
        std::fs::create_dir(&inner).unwrap();
        let mut child = std::process::Command::new("sleep")
            .arg("600")
            .spawn()
            .unwrap();
        std::fs::write(inner.join("cgroup.procs"), child.id().to_string()).unwrap();
        let process = Process::open(child.id()).unwrap();
        let limit = |reserved| huge_pages_available(&process, 2 << 20, reserved).unwrap();
        let found = limit(true);
        std::fs::write(inner.join("hugetlb.2MB.max"), "6M").unwrap();
        std::fs::write(folder.join("hugetlb.2MB.rsvd.max"), "4M").unwrap();
        let limited = [limit(true), limit(false)];
        std::fs::write(inner.join("hugetlb.2MB.max"), "max").unwrap();
        let removed = limit(true);
        child.kill().unwrap();
        child.wait().unwrap();
        // The kernel notices the end a moment later.
        while let Err(error) = std::fs::remove_dir(&inner) {
            assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
            std::thread::yield_now();
        }
        std::fs::remove_dir(&folder).unwrap();
        if !was_passed_on.contains("hugetlb") {
            std::fs::write(&passed_on, "-hugetlb").unwrap();
        }
        // Where `memory.max` says `max`, this controller says the largest number of whole pages.
        for none in [found, removed].into_iter().flatten() {
            assert!(none.available > 1 << 62, "without a limit: {none:?}");
        }
        let of = |available, cgroup: &Path, file: &str| {
            Some(CgroupLimit {
                available,
                cgroup: cgroup.into(),
                file: file.into(),
            })
        };
        let own = of(6 << 20, &inner, "hugetlb.2MB.max");
        let above = of(4 << 20, &folder, "hugetlb.2MB.rsvd.max");
        assert_eq!(limited, [own, above]);
    }

    #[test]
    fn this_process_can_have_more() {
        let own = Process::open(std::process::id()).unwrap();
        let available = memory_available(&own).unwrap();
        assert!(available.host > 1 << 20, "{available:?}");
        assert!(host_memory_available().unwrap() > 1 << 20);
        let limited = available
            .limit
            .is_none_or(|limit| limit.available > 1 << 20);
        assert!(limited, "this test has memory");
        huge_pages_available(&own, 2 << 20, false).unwrap();
    }
}
