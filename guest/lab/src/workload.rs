//! What the guest does, as words on its kernel's command line (guest/README.md).

/// In which order pages are visited.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Pattern {
    /// Any page, each as likely as the next.
    Random,
    /// One after the other.
    Sequential,
    /// Nine accesses in ten go to a tenth of the pages.
    Hotspot,
}

/// What the guest does.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Workload {
    words: Vec<String>,
    kinds: Vec<&'static str>,
}

impl Workload {
    /// Nothing but a line a second.
    pub fn idle() -> Self {
        Self {
            words: Vec::new(),
            kinds: vec!["idle"],
        }
    }

    /// One counted word a page, written as fast as it goes, over `mib` MiB.
    pub fn dirty(mib: u64) -> Self {
        Self {
            words: Vec::new(),
            kinds: vec!["dirty"],
        }
        .option("mib", mib)
    }

    /// Whole pages, checked to the byte, over `mib` MiB.
    pub fn verify(mib: u64) -> Self {
        Self {
            words: Vec::new(),
            kinds: vec!["verify"],
        }
        .option("mib", mib)
    }

    /// Whole pages over `mib` MiB, checked to the byte, each thread's part from start to end, once
    /// the guest is sent the line `scan`.
    pub fn scan(mib: u64) -> Self {
        Self {
            words: Vec::new(),
            kinds: vec!["scan"],
        }
        .option("mib", mib)
    }

    /// Whole pages over `mib` MiB, checked to the byte, each by every thread at the same time, over
    /// and over.
    pub fn lockstep(mib: u64) -> Self {
        Self {
            words: Vec::new(),
            kinds: vec!["lockstep"],
        }
        .option("mib", mib)
    }

    /// Answers lines on TCP port `port` as well.
    #[must_use]
    pub fn with_server(mut self, port: u16) -> Self {
        self.kinds.push("serve");
        self.option("port", port)
    }

    /// So many threads, pinned to the processors in turn.
    #[must_use]
    pub fn threads(self, threads: u32) -> Self {
        self.option("threads", threads)
    }

    /// In which order pages are visited.
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

    /// At most so many accesses a second, over all threads.
    #[must_use]
    pub fn rate(self, accesses_per_second: u64) -> Self {
        self.option("rate", accesses_per_second)
    }

    /// Of a hundred accesses, so many write.
    #[must_use]
    pub fn write_percent(self, percent: u32) -> Self {
        self.option("write", percent)
    }

    /// Touches so many new MiB a second while it runs, up to `max` MiB (`verify` only).
    #[must_use]
    pub fn grow(self, mib_per_second: u64, max: u64) -> Self {
        self.option("grow", mib_per_second).option("grow_max", max)
    }

    /// Mounts the first disk's file system (`DiskContent::FileSystem`), makes and reads files there,
    /// and now and then reads or writes pages of its file `blocks` by direct I/O: so little that
    /// what else the guest does is hardly slower.
    #[must_use]
    pub fn with_file_system(self) -> Self {
        self.option("mount", "/dev/vda")
            .option("tree", "/disk/tree")
            .option("disk", "/disk/blocks")
            .option("disk_threads", 2)
            .option("disk_chunk_kib", 16)
            .option("disk_mib", 2)
            .option("disk_write", 50)
            .option("disk_rate", 40)
    }

    /// Six threads read random chunks of 128 KiB of the first disk (`DiskContent::Blocks`) by direct
    /// I/O into `mib` MiB, as fast as it goes, and all of that memory is checked over and over.
    #[must_use]
    pub fn with_direct_reads(self, mib: u64) -> Self {
        self.option("disk", "/dev/vda").option("disk_mib", mib)
    }

    /// Any other option of guest/README.md, without its `hk.`.
    #[must_use]
    pub fn option(mut self, name: &str, value: impl std::fmt::Display) -> Self {
        self.words.push(format!("hk.{name}={value}"));
        self
    }

    /// The words for the kernel command line.
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
    fn a_workload_is_words() {
        let workload = Workload::verify(8).threads(2).grow(1, 16).with_server(7001);
        assert_eq!(
            workload.command_line(),
            "hk.workload=verify,serve hk.mib=8 hk.threads=2 hk.grow=1 hk.grow_max=16 hk.port=7001"
        );
    }
}
