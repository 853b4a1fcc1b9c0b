//! The options on the kernel command line: those of the Linux test guest that apply here, and this
//! guest's own.

use crate::fault_times;
use crate::net::Address;
use crate::page_order::Pattern;
use crate::tasks::MOST_WORKERS;

/// What the workers do with the region.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Workload {
    /// None: there are no workers.
    Idle,
    /// One counted word per page.
    Dirty,
    /// Whole pages, every byte checked.
    Verify,
    /// Whole pages, read once on command.
    Scan,
    /// The same, but every worker reads all pages of the region.
    Walk,
}

impl Workload {
    /// The name in its reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Dirty => "dirty",
            Self::Verify => "verify",
            // Its reports are those of a scan.
            Self::Scan | Self::Walk => "scan",
        }
    }
}

/// What the guest does.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// What the workers do.
    pub workload: Workload,
    /// Whether lines and datagrams are answered.
    pub serve: bool,
    /// At this port of TCP and of UDP.
    pub port: u16,
    /// Number of files that are served.
    pub files: usize,
    /// Bytes of each, a multiple of 8.
    pub file_bytes: usize,
    /// The address of the network card.
    pub net: Option<Address>,
    /// Size of the region, MiB.
    pub mib: usize,
    /// Number of workers.
    pub threads: usize,
    /// The order of their accesses.
    pub pattern: Pattern,
    /// Accesses a second; 0: as fast as possible.
    pub rate: u64,
    /// Percentage of accesses that write.
    pub write_percent: u64,
    /// An access counts as slow from this many µs.
    pub slow_us: u64,
    /// Milliseconds between two reports.
    pub every_ms: u64,
    /// Percentage of pages that are written once and then only read.
    pub clean_percent: usize,
    /// Percentage of pages that are all zero in every other generation.
    pub zero_percent: usize,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Whether asynchronous page faults are used where the host has them.
    pub async_faults: bool,
    /// Milliseconds between two accounts of faults and processors; 0: none.
    pub account_ms: u64,
    /// How many asynchronous page faults are noted, with their times.
    pub fault_times: usize,
    /// Microseconds for which a task runs while others could.
    pub slice_us: u64,
}

/// An option with an unusable value: its name and the value.
pub type BadOption<'a> = (&'a str, &'a str);

impl Options {
    /// Parses the words that start with `hk.`; unknown ones are for other guests.
    ///
    /// # Errors
    /// With the first unusable option.
    pub fn parse(line: &str) -> Result<Self, BadOption<'_>> {
        let mut options = Self {
            workload: Workload::Verify,
            serve: false,
            port: 7000,
            files: 0,
            file_bytes: 102_400,
            net: None,
            mib: 64,
            threads: 1,
            pattern: Pattern::Random,
            rate: 0,
            write_percent: 100,
            slow_us: 100,
            every_ms: 1000,
            clean_percent: 10,
            zero_percent: 10,
            seed: 1,
            async_faults: true,
            account_ms: 0,
            fault_times: 0,
            slice_us: 10_000,
        };
        for word in line.split_ascii_whitespace() {
            let Some(option) = word.strip_prefix("hk.") else {
                continue;
            };
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            options.set(name, value).ok_or((name, value))?;
        }
        match options.clean_percent + options.zero_percent {
            0..=90 => Ok(options),
            _ => Err(("clean", "with hk.zero over 90")),
        }
    }

    fn set(&mut self, name: &str, value: &str) -> Option<()> {
        match name {
            "workload" => self.set_workload(value)?,
            // A first address, of a card that this guest uses.
            "net" => self.net = Some(Address::parse(value.split(',').next()?)?),
            "port" => self.port = within(value, 1, u16::MAX)?,
            "files" => self.files = within(value, 0, 1 << 20)?,
            "file_bytes" => {
                let bytes = within(value, 16, 1_usize << 30)?;
                self.file_bytes = bytes.is_multiple_of(8).then_some(bytes)?;
            }
            "pattern" => {
                self.pattern = match value {
                    "random" => Pattern::Random,
                    "sequential" => Pattern::Sequential,
                    "hotspot" => Pattern::Hotspot,
                    _ => return None,
                }
            }
            "async_pf" => {
                self.async_faults = match value {
                    "on" => true,
                    "off" => false,
                    _ => return None,
                }
            }
            "mib" => self.mib = within(value, 1, 3 << 10)?,
            "threads" => self.threads = within(value, 1, MOST_WORKERS)?,
            "rate" => self.rate = within(value, 0, 1 << 40)?,
            "write" => self.write_percent = within(value, 0, 100)?,
            "slow_us" => self.slow_us = within(value, 1, 1 << 30)?,
            "every_ms" => self.every_ms = within(value, 10, 1 << 20)?,
            "clean" => self.clean_percent = within(value, 0, 90)?,
            "zero" => self.zero_percent = within(value, 0, 90)?,
            "seed" => self.seed = within(value, 0, u64::MAX)?,
            "account_ms" => self.account_ms = within(value, 0, 1 << 20)?,
            "fault_times" => self.fault_times = within(value, 0, fault_times::MOST)?,
            "slice_us" => self.slice_us = within(value, 1000, 1 << 20)?,
            _ => {}
        }
        Some(())
    }
}

impl Options {
    /// Names with commas: what the workers do, and `serve`.
    fn set_workload(&mut self, names: &str) -> Option<()> {
        (self.workload, self.serve) = (Workload::Idle, false);
        for name in names.split(',') {
            match name {
                "idle" => self.workload = Workload::Idle,
                "dirty" => self.workload = Workload::Dirty,
                "verify" => self.workload = Workload::Verify,
                "scan" => self.workload = Workload::Scan,
                "walk" => self.workload = Workload::Walk,
                "serve" => self.serve = true,
                _ => return None,
            }
        }
        Some(())
    }

    /// Whether the guest has a server.
    pub fn has_server(&self) -> bool {
        self.serve || self.files > 0
    }

    /// The number of workers.
    pub fn workers(&self) -> usize {
        match self.workload {
            Workload::Idle => 0,
            _ => self.threads,
        }
    }

    /// The pages of their region.
    pub fn pages(&self) -> usize {
        match self.workload {
            Workload::Idle => 0,
            _ => self.mib * 256,
        }
    }
}

fn within<T: core::str::FromStr + PartialOrd>(value: &str, min: T, max: T) -> Option<T> {
    value
        .parse()
        .ok()
        .filter(|number| *number >= min && *number <= max)
}
