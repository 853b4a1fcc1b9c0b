//! The options, as they stand on the kernel command line: `hk.NAME=VALUE`.

use std::fmt;
use std::path::PathBuf;

/// In which order a worker visits its pages.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Pattern {
    /// Any page, each as likely as the next.
    Random,
    /// One after the other, and again from the start.
    Sequential,
    /// Nine accesses in ten go to a tenth of the pages.
    Hotspot,
}

/// What the workers do with the region.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Memory {
    /// Nothing: there is no region and no worker.
    Idle,
    /// One counted word a page.
    Dirty,
    /// Whole pages, checked to the byte.
    Verify,
    /// Whole pages, read once when told to.
    Scan,
    /// Whole pages, each read by all workers at the same time.
    Lockstep,
}

/// How the disk is used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct DiskUse {
    /// Threads, each with one read or write under way.
    pub(crate) threads: usize,
    /// Pages in a read or write.
    pub(crate) chunk_pages: usize,
    /// Memory that the disk is read into, MiB.
    pub(crate) mib: usize,
    /// Of a hundred accesses, how many write.
    pub(crate) write_percent: u64,
    /// Accesses a second over all threads; 0 = as fast as it goes.
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

/// Everything that can be chosen.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Options {
    pub(crate) memory: Memory,
    /// Answer on a TCP port as well.
    pub(crate) serve: bool,
    pub(crate) pattern: Pattern,
    /// Size of the region, MiB.
    pub(crate) mib: usize,
    pub(crate) threads: usize,
    /// Accesses a second over all threads; 0 = as fast as it goes.
    pub(crate) rate: u64,
    /// Of a hundred accesses, how many write.
    pub(crate) write_percent: u64,
    /// An access that took longer counts as slow, µs.
    pub(crate) slow_us: u64,
    /// Milliseconds between two reports.
    pub(crate) every_ms: u64,
    /// `verify`: of a hundred pages, how many are written once and then only read.
    pub(crate) clean_percent: usize,
    /// `verify`: of a hundred pages, how many are all zero in every other generation.
    pub(crate) zero_percent: usize,
    /// `verify`: memory first touched while the guest runs, MiB a second.
    pub(crate) grow: usize,
    /// `verify`: where that growth ends, MiB.
    pub(crate) grow_max: usize,
    /// Files for the web server in `/www`, if there is one.
    pub(crate) files: u64,
    /// Bytes in each of them.
    pub(crate) file_bytes: usize,
    /// TCP port of `serve`.
    pub(crate) port: u16,
    /// The block device or file that is read and written by direct I/O.
    pub(crate) disk: Option<PathBuf>,
    /// What is done with it.
    pub(crate) disk_use: DiskUse,
    /// A folder in which files are made, renamed, read and removed.
    pub(crate) tree: Option<PathBuf>,
    /// Milliseconds from one such file to the next.
    pub(crate) tree_ms: u64,
    /// Start of the random numbers.
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
            write_percent: 100,
            slow_us: 100,
            every_ms: 1000,
            clean_percent: 10,
            zero_percent: 10,
            grow: 0,
            grow_max: 64,
            files: 0,
            file_bytes: 102_400,
            port: 7000,
            disk: None,
            disk_use: DiskUse::default(),
            tree: None,
            tree_ms: 500,
            seed: 1,
        }
    }
}

/// An option that cannot be used as it stands.
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
    /// Reads the words that begin with `hk.`; others are the kernel's. A later word wins.
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
                wanted: "together with hk.zero at most 90, so that something is left to write",
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
                                "known are idle, dirty, verify, scan, lockstep, serve, joined by commas",
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
                    _ => return Err("known are random, sequential, hotspot"),
                }
            }
            "mib" => self.mib = within(value, 1, 1 << 20)?,
            "threads" => self.threads = within(value, 1, 256)?,
            "rate" => self.rate = within(value, 0, 1 << 40)?,
            "write" => self.write_percent = within(value, 0, 100)?,
            "slow_us" => self.slow_us = within(value, 1, 1 << 30)?,
            "every_ms" => self.every_ms = within(value, 10, 1 << 20)?,
            "clean" => self.clean_percent = within(value, 0, 90)?,
            "zero" => self.zero_percent = within(value, 0, 90)?,
            "grow" => self.grow = within(value, 0, 1 << 20)?,
            "grow_max" => self.grow_max = within(value, 1, 1 << 20)?,
            "files" => self.files = within(value, 0, 1 << 20)?,
            "file_bytes" => {
                self.file_bytes = within(value, 16, 1 << 30)?;
                if !self.file_bytes.is_multiple_of(8) {
                    return Err("a multiple of 8 is wanted");
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
            "tree" => self.tree = Some(path(value)?),
            "tree_ms" => self.tree_ms = within(value, 1, 1 << 20)?,
            // Read by /init, before this program starts.
            "net" | "mount" => {}
            _ => return Err("there is no such option; guest/README.md lists them"),
        }
        Ok(())
    }
}

fn path(value: &str) -> Result<PathBuf, &'static str> {
    match value.starts_with('/') {
        true => Ok(value.into()),
        false => Err("a path from / is wanted"),
    }
}

fn within<T: std::str::FromStr + PartialOrd>(
    value: &str,
    min: T,
    max: T,
) -> Result<T, &'static str> {
    match value.parse() {
        Ok(number) if number >= min && number <= max => Ok(number),
        _ => Err("a number within the option's limits is wanted; guest/README.md lists them"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_own_words_are_left_alone_and_ours_are_read() {
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
    fn a_wrong_option_is_named_with_its_value() {
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
    fn a_later_word_wins() {
        let options = Options::parse(["hk.workload=dirty,serve", "hk.workload=idle"]).unwrap();
        assert_eq!(options, Options::default());
    }
}
