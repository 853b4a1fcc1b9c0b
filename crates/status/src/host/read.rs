//! Reads what this host has.

use std::fs;
use std::io;
use std::path::Path;

use hikkoshi_linux::{Process, memory_available};

use super::{HostFacts, HostMemory, HostProcessors, HugePages};

/// A folder for each size of huge pages (`Documentation/admin-guide/mm/hugetlbpage.rst`).
const HUGE_PAGES: &str = "/sys/kernel/mm/hugepages";

impl HostFacts {
    /// Those of this host. `hikkoshi` is the version of this program.
    ///
    /// # Errors
    /// As reading `/proc/meminfo` and `/proc/cpuinfo`. What else cannot be read is left out.
    pub fn read(hikkoshi: &str) -> io::Result<Self> {
        let system = rustix::system::uname();
        let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
        let mut processors = processors(&fs::read_to_string("/proc/cpuinfo")?);
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        processors.load = load_averages(&load);
        Ok(Self {
            name: text(system.nodename()),
            kernel: text(system.release()),
            hikkoshi: hikkoshi.to_owned(),
            memory: memory()?,
            huge_pages: huge_pages(Path::new(HUGE_PAGES)),
            processors,
        })
    }
}

fn memory() -> io::Result<HostMemory> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let missing = || io::Error::new(io::ErrorKind::InvalidData, "/proc/meminfo");
    let own = Process::open(std::process::id()).and_then(|own| memory_available(&own));
    let own = own.ok().and_then(|own| Some(own.limit?.available));
    let total_bytes = meminfo(&text, "MemTotal:").ok_or_else(missing)?;
    Ok(HostMemory {
        total_bytes,
        available_bytes: meminfo(&text, "MemAvailable:").ok_or_else(missing)?,
        // The guests are not known here.
        promised_bytes: 0,
        // Cgroups of version 1 have a number that stands for none.
        cgroup_bytes: own.filter(|limit| *limit < total_bytes),
    })
}

/// A value of `/proc/meminfo` (proc(5)), in bytes.
pub(super) fn meminfo(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    kib.checked_mul(1024)
}

/// The processors that `/proc/cpuinfo` lists, without their load.
pub(super) fn processors(text: &str) -> HostProcessors {
    let values = |name: &'static str| {
        let pairs = text.lines().filter_map(|line| line.split_once(':'));
        let named = pairs.filter(move |(key, _)| key.trim_end() == name);
        named.map(|(_, value)| value.trim())
    };
    let flags = values("flags").next().unwrap_or_default();
    HostProcessors {
        online: u32::try_from(values("processor").count()).unwrap_or(u32::MAX),
        load: [0.0; 3],
        model: values("model name").next().unwrap_or_default().to_owned(),
        flags: flags.split_whitespace().map(str::to_owned).collect(),
    }
}

/// The averages in `/proc/loadavg` (proc(5)).
pub(super) fn load_averages(text: &str) -> [f64; 3] {
    let mut averages = [0.0; 3];
    let words = text.split_whitespace().map(|word| word.parse().ok());
    for (average, word) in averages.iter_mut().zip(words) {
        *average = word.filter(|word: &f64| word.is_finite()).unwrap_or(0.0);
    }
    averages
}

/// The pools in this folder, the smallest pages first.
pub(super) fn huge_pages(folder: &Path) -> Vec<HugePages> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let pool = |entry: fs::DirEntry| {
        let name = entry.file_name();
        let kib = name.to_str()?.strip_prefix("hugepages-")?;
        let kib: u64 = kib.strip_suffix("kB")?.parse().ok()?;
        let number = |file: &str| -> Option<u64> {
            let text = fs::read_to_string(entry.path().join(file)).ok()?;
            text.trim().parse().ok()
        };
        let reserved = number("resv_hugepages").unwrap_or(0);
        Some(HugePages {
            page_bytes: kib.checked_mul(1024)?,
            total: number("nr_hugepages")?,
            free: number("free_hugepages")?.saturating_sub(reserved),
        })
    };
    let mut pools: Vec<_> = entries.filter_map(pool).collect();
    pools.sort_unstable_by_key(|pool| pool.page_bytes);
    pools
}
