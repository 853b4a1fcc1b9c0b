//! The options on the kernel command line: `hk.NAME=VALUE`.

use std::fmt;
use std::path::PathBuf;

use crate::page::PageKind;

/// The order in which a worker accesses its pages.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Pattern {
    /// Uniformly at random.
    Random,
    /// One after the other, then again from the start.
    Sequential,
    /// 90 % of the accesses go to 10 % of the pages.
    Hotspot,
}

/// What the workers do with the region.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Memory {
    /// No region and no workers.
    Idle,
    /// One counted word per page.
    Dirty,
    /// Whole pages, every byte checked.
    Verify,
    /// Whole pages, read once on command.
    Scan,
    /// Whole pages, each read by all workers at the same time.
    Lockstep,
}

/// Options of the disk workload.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct DiskUse {
    /// Number of threads, each with one read or write in progress.
    pub(crate) threads: usize,
    /// Pages in a read or write.
    pub(crate) chunk_pages: usize,
    /// Memory that the disk is read into, MiB.
    pub(crate) mib: usize,
    /// Percentage of accesses that write.
    pub(crate) write_percent: u64,
    /// Accesses a second over all threads; 0 = as fast as possible.
    pub(crate) rate: u64,
}

impl Default for DiskUse {
    fn default() -> Self {
        Self {
            threads: 6,
            chunk_pages: 32,
            mib: 300,
            write_percent: 0,
            rate: 0,
        }
    }
}

/// All options.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Options {
    pub(crate) memory: Memory,
    /// Also answer on a TCP port.
    pub(crate) serve: bool,
    pub(crate) pattern: Pattern,
    /// Size of the region, MiB.
    pub(crate) mib: usize,
    pub(crate) threads: usize,
    /// Accesses a second over all threads; 0 = as fast as possible.
    pub(crate) rate: u64,
    /// Milliseconds of accesses at that rate, then as many without; 0 = no pauses.
    pub(crate) burst_ms: u64,
    /// Percentage of accesses that write.
    pub(crate) write_percent: u64,
    /// An access that took longer counts as slow, µs.
    pub(crate) slow_us: u64,
    /// Milliseconds between two reports.
    pub(crate) every_ms: u64,
    /// `verify`: percentage of pages that are written once and then only read.
    pub(crate) clean_percent: usize,
    /// `verify`: percentage of pages that are all zero in every other generation.
    pub(crate) zero_percent: usize,
    /// `verify`, `scan`: whether the filling of pages repeats, so that they can be compressed.
    pub(crate) repeat: bool,
    /// `verify`: memory first touched while the guest runs, MiB a second.
    pub(crate) grow: usize,
    /// `verify`: limit of that growth, MiB.
    pub(crate) grow_max: usize,
    /// Memory that is freed and used again on command, MiB.
    pub(crate) returned: usize,
    /// Number of files for the web server in `/www`.
    pub(crate) files: u64,
    /// Bytes in each of them.
    pub(crate) file_bytes: usize,
    /// TCP port of `serve`.
    pub(crate) port: u16,
    /// The block device or file that is read and written by direct I/O.
    pub(crate) disk: Option<PathBuf>,
    /// Options for it.
    pub(crate) disk_use: DiskUse,
    /// The block device or file with the record of the guest's runs.
    pub(crate) runs: Option<PathBuf>,
    /// A folder in which files are created, renamed, read and removed.
    pub(crate) tree: Option<PathBuf>,
    /// Milliseconds between two such files.
    pub(crate) tree_ms: u64,
    /// Seed of the random numbers.
    pub(crate) seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            memory: Memory::Idle,
            serve: false,
            pattern: Pattern::Random,
            mib: 64,
            threads: 1,
            rate: 0,
            burst_ms: 0,
            write_percent: 100,
            slow_us: 100,
            every_ms: 1000,
            clean_percent: 10,
            zero_percent: 10,
            repeat: false,
            grow: 0,
            grow_max: 64,
            returned: 0,
            files: 0,
            file_bytes: 102_400,
            port: 7000,
            disk: None,
            disk_use: DiskUse::default(),
            runs: None,
            tree: None,
            tree_ms: 500,
            seed: 1,
        }
    }
}

/// An invalid option.
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct BadOption {
    name: String,
    value: String,
    wanted: &'static str,
}

impl fmt::Display for BadOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "option hk.{}={} on the kernel command line: {}",
            self.name, self.value, self.wanted
        )
    }
}

impl Options {
    /// What pages are filled with.
    pub(crate) fn filled(&self) -> PageKind {
        match self.repeat {
            true => PageKind::Repeating,
            false => PageKind::Filled,
        }
    }

    /// Parses the words that start with `hk.`; others are for the kernel. The last value of an
    /// option counts.
    pub(crate) fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Self, BadOption> {
        let mut options = Self::default();
        for word in words {
            let Some(option) = word.strip_prefix("hk.") else {
                continue;
            };
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            options.set(name, value).map_err(|wanted| BadOption {
                name: name.to_owned(),
                value: value.to_owned(),
                wanted,
            })?;
        }
        if options.clean_percent + options.zero_percent > 90 {
            return Err(BadOption {
                name: "clean".to_owned(),
                value: options.clean_percent.to_string(),
                wanted: "the sum with hk.zero must be at most 90, so that some pages are written",
            });
        }
        Ok(options)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), &'static str> {
        match name {
            "workload" => {
                (self.memory, self.serve) = (Memory::Idle, false);
                for part in value.split(',') {
                    match part {
                        "idle" => {}
                        "dirty" => self.memory = Memory::Dirty,
                        "verify" => self.memory = Memory::Verify,
                        "scan" => self.memory = Memory::Scan,
                        "lockstep" => self.memory = Memory::Lockstep,
                        "serve" => self.serve = true,
                        _ => {
                            return Err(
                                "must be idle, dirty, verify, scan, lockstep or serve, or several of them with commas",
                            );
                        }
                    }
                }
            }
            "pattern" => {
                self.pattern = match value {
                    "random" => Pattern::Random,
                    "sequential" => Pattern::Sequential,
                    "hotspot" => Pattern::Hotspot,
                    _ => return Err("must be random, sequential or hotspot"),
                }
            }
            "mib" => self.mib = within(value, 1, 1 << 20)?,
            "threads" => self.threads = within(value, 1, 256)?,
            "rate" => self.rate = within(value, 0, 1 << 40)?,
            "burst_ms" => self.burst_ms = within(value, 0, 1 << 20)?,
            "write" => self.write_percent = within(value, 0, 100)?,
            "slow_us" => self.slow_us = within(value, 1, 1 << 30)?,
            "every_ms" => self.every_ms = within(value, 10, 1 << 20)?,
            "clean" => self.clean_percent = within(value, 0, 90)?,
            "zero" => self.zero_percent = within(value, 0, 90)?,
            "repeat" => self.repeat = within::<u8>(value, 0, 1)? == 1,
            "grow" => self.grow = within(value, 0, 1 << 20)?,
            "grow_max" => self.grow_max = within(value, 1, 1 << 20)?,
            "returned" => self.returned = within(value, 0, 1 << 20)?,
            "files" => self.files = within(value, 0, 1 << 20)?,
            "file_bytes" => {
                self.file_bytes = within(value, 16, 1 << 30)?;
                if !self.file_bytes.is_multiple_of(8) {
                    return Err("must be a multiple of 8");
                }
            }
            "port" => self.port = within(value, 1, u16::MAX)?,
            "seed" => self.seed = within(value, 0, u64::MAX)?,
            "disk" => self.disk = Some(path(value)?),
            "disk_threads" => self.disk_use.threads = within(value, 1, 64)?,
            "disk_chunk_kib" => {
                let kib = within(value, 4, 1 << 10)?;
                self.disk_use.chunk_pages = kib / 4;
            }
            "disk_mib" => self.disk_use.mib = within(value, 1, 1 << 20)?,
            "disk_write" => self.disk_use.write_percent = within(value, 0, 100)?,
            "disk_rate" => self.disk_use.rate = within(value, 0, 1 << 20)?,
            "runs" => self.runs = Some(path(value)?),
            "tree" => self.tree = Some(path(value)?),
            "tree_ms" => self.tree_ms = within(value, 1, 1 << 20)?,
            // Handled by /init before this program starts.
            "net" | "mac" | "vlan" | "mount" | "root" | "online" => {}
            _ => return Err("unknown option; guest/README.md lists all"),
        }
        Ok(())
    }
}

fn path(value: &str) -> Result<PathBuf, &'static str> {
    match value.starts_with('/') {
        true => Ok(value.into()),
        false => Err("must be an absolute path"),
    }
}

fn within<T: std::str::FromStr + PartialOrd>(
    value: &str,
    min: T,
    max: T,
) -> Result<T, &'static str> {
    match value.parse() {
        Ok(number) if number >= min && number <= max => Ok(number),
        _ => Err("must be a number within the limits of the option"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_words_with_the_prefix_are_parsed() {
        let line =
            "console=ttyS0 quiet hk.workload=verify,serve hk.mib=8 hk.pattern=hotspot hk.threads=4";
        let options = Options::parse(line.split(' ')).unwrap();
        assert_eq!(options.memory, Memory::Verify);
        assert!(options.serve);
        assert_eq!(
            (options.mib, options.pattern, options.threads),
            (8, Pattern::Hotspot, 4)
        );
    }

    #[test]
    fn an_invalid_option_is_reported_with_its_value() {
        for word in [
            "hk.mib=0",
            "hk.mib=x",
            "hk.workload=dirt",
            "hk.nope=1",
            "hk.write=101",
            "hk.disk=vda",
        ] {
            let message = Options::parse([word]).unwrap_err().to_string();
            assert!(message.contains(word), "{message}");
        }
        assert!(Options::parse(["hk.clean=50", "hk.zero=50"]).is_err());
    }

    #[test]
    fn the_last_value_counts() {
        let options = Options::parse(["hk.workload=dirty,serve", "hk.workload=idle"]).unwrap();
        assert_eq!(options, Options::default());
    }
}
