//! The guest's workload, as options on its kernel's command line (guest/README.md).

/// The order in which pages are accessed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Pattern {
    /// Uniformly at random.
    Random,
    /// One after the other.
    Sequential,
    /// 90 % of the accesses go to 10 % of the pages.
    Hotspot,
}

/// The guest's workload.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Workload {
    words: Vec<String>,
    kinds: Vec<&'static str>,
}

impl Workload {
    /// Prints a report a second, and does nothing else.
    pub fn idle() -> Self {
        Self {
            words: Vec::new(),
            kinds: vec!["idle"],
        }
    }

    /// Writes one counted word per page, as fast as possible, over `mib` MiB.
    pub fn dirty(mib: u64) -> Self {
        Self {
            words: Vec::new(),
            kinds: vec!["dirty"],
        }
        .option("mib", mib)
    }

    /// Writes and checks whole pages over `mib` MiB, every byte.
    pub fn verify(mib: u64) -> Self {
        Self {
            words: Vec::new(),
            kinds: vec!["verify"],
        }
        .option("mib", mib)
    }

    /// Checks whole pages over `mib` MiB, every byte. Each thread checks its part from start to
    /// end, after the command `scan`.
    pub fn scan(mib: u64) -> Self {
        Self {
            words: Vec::new(),
            kinds: vec!["scan"],
        }
        .option("mib", mib)
    }

    /// As [`Self::scan`], but each thread checks all pages. Of the nano guest only.
    pub fn walk(mib: u64) -> Self {
        Self {
            words: Vec::new(),
            kinds: vec!["walk"],
        }
        .option("mib", mib)
    }

    /// Checks whole pages over `mib` MiB, every byte, repeatedly; all threads check the same page
    /// at the same time.
    pub fn lockstep(mib: u64) -> Self {
        Self {
            words: Vec::new(),
            kinds: vec!["lockstep"],
        }
        .option("mib", mib)
    }

    /// Also answers lines on TCP port `port`.
    #[must_use]
    pub fn with_server(mut self, port: u16) -> Self {
        self.kinds.push("serve");
        self.option("port", port)
    }

    /// Also serves so many files of `bytes` bytes by HTTP: in the nano guest, or in the Linux guest
    /// with a web server.
    #[must_use]
    pub fn with_files(self, count: usize, bytes: usize) -> Self {
        self.option("files", count).option("file_bytes", bytes)
    }

    /// Sets the number of threads, pinned to the processors in turn.
    #[must_use]
    pub fn threads(self, threads: u32) -> Self {
        self.option("threads", threads)
    }

    /// Sets the order in which pages are accessed.
    #[must_use]
    pub fn pattern(self, pattern: Pattern) -> Self {
        self.option(
            "pattern",
            match pattern {
                Pattern::Random => "random",
                Pattern::Sequential => "sequential",
                Pattern::Hotspot => "hotspot",
            },
        )
    }

    /// Limits the accesses a second, over all threads.
    #[must_use]
    pub fn rate(self, accesses_per_second: u64) -> Self {
        self.option("rate", accesses_per_second)
    }

    /// Sets the percentage of accesses that write.
    #[must_use]
    pub fn write_percent(self, percent: u32) -> Self {
        self.option("write", percent)
    }

    /// Touches this many new MiB a second while running, up to `max` MiB (`verify` only).
    #[must_use]
    pub fn grow(self, mib_per_second: u64, max: u64) -> Self {
        self.option("grow", mib_per_second).option("grow_max", max)
    }

    /// Fills `mib` MiB, which the guest frees and uses again on command
    /// ([`Vm::free`](crate::Vm::free)).
    #[must_use]
    pub fn with_returned_memory(self, mib: u64) -> Self {
        self.option("returned", mib)
    }

    /// Mounts the file system of `device` (`DiskContent::FileSystem`), creates and reads files
    /// there, and sometimes reads or writes pages of its file `blocks` by direct I/O: so rarely
    /// that the rest of the workload is hardly slower.
    #[must_use]
    pub fn with_file_system(self, device: &str) -> Self {
        self.option("mount", device)
            .option("tree", "/disk/tree")
            .option("disk", "/disk/blocks")
            .option("disk_threads", 2)
            .option("disk_chunk_kib", 16)
            .option("disk_mib", 2)
            .option("disk_write", 50)
            .option("disk_rate", 40)
    }

    /// Boots the whole Debian of the first disk ([`DiskContent::Debian`](crate::DiskContent)),
    /// which then starts this workload, and creates and reads files in Debian's file system. A
    /// second disk ([`DiskContent::Blocks`](crate::DiskContent)) is read and written by direct I/O,
    /// `rate` times a second.
    #[must_use]
    pub fn in_debian(self, rate: u64) -> Self {
        self.option("root", "/dev/vda")
            .option("tree", "/var/tmp")
            .option("disk", "/dev/vdb")
            .option("disk_threads", 2)
            .option("disk_mib", 16)
            .option("disk_write", 50)
            .option("disk_rate", rate)
    }

    /// Six threads read random chunks of 128 KiB of the first disk (`DiskContent::Blocks`) by
    /// direct I/O into `mib` MiB, as fast as possible, and all of that memory is checked
    /// repeatedly.
    #[must_use]
    pub fn with_direct_reads(self, mib: u64) -> Self {
        self.option("disk", "/dev/vda").option("disk_mib", mib)
    }

    /// Records the guest's runs on `device`, and finds out when it runs twice.
    #[must_use]
    pub fn with_runs(self, device: &str) -> Self {
        self.option("runs", device)
    }

    /// Sets any other option of guest/README.md, given without `hk.`.
    #[must_use]
    pub fn option(mut self, name: &str, value: impl std::fmt::Display) -> Self {
        self.words.push(format!("hk.{name}={value}"));
        self
    }

    /// The options for the kernel command line.
    pub(crate) fn command_line(&self) -> String {
        format!(
            "hk.workload={} {}",
            self.kinds.join(","),
            self.words.join(" ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workload_becomes_kernel_options() {
        let workload = Workload::verify(8).threads(2).grow(1, 16).with_server(7001);
        assert_eq!(
            workload.command_line(),
            "hk.workload=verify,serve hk.mib=8 hk.threads=2 hk.grow=1 hk.grow_max=16 hk.port=7001"
        );
    }
}
