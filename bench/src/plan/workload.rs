//! What the guest does, and what its memory is made of.

use hikkoshi_lab::{Pattern, Ram, RamBackend, Workload as GuestWorkload};
use serde::{Deserialize, Serialize};
use std::fmt;

use super::network::NetworkKind;

/// The guest's memory, MiB.
pub(crate) const RAM_MIB: u64 = 1024;
/// The memory that the virtual processor writes to, MiB.
pub(crate) const WORKING_SET_MIB: u64 = 600;
/// Memory of the large guest, MiB, and how much of it is written: 90 %.
const SCALE_RAM_MIB: u64 = 8192;
const SCALE_WRITTEN_MIB: u64 = 7200;
/// Its processors, and how many of them write where several do.
const SCALE_CPUS: u32 = 20;
const SCALE_BUSY_CPUS: u32 = 4;
/// An access counts as slow from this time on, µs: far above an undisturbed one (0.3 µs), and below
/// the fastest fault.
pub(crate) const SLOW_US: u64 = 20;
/// The limit for slow accesses to huge pages, µs. There are only hundreds of faults, each of a
/// millisecond or more, so a few accesses that were delayed by the scheduler would distort them.
const SLOW_HUGE_US: u64 = 300;
/// The limit for slow accesses of the nano guest, µs: an access that the timer interrupts takes
/// some 20 µs more, and the fastest fault more than twice this.
const SLOW_NANO_US: u64 = 40;
/// Time for which a task of the nano guest runs while others could, µs: longer than a page takes,
/// so that without asynchronous page faults a task that waits for a page keeps the processor.
const NANO_SLICE_US: u64 = 200_000;
/// The memory that the tasks of [`Workload::NanoTasks`] and [`Workload::NanoWalk`] read, MiB.
const NANO_TASKS_MIB: u64 = 32;
/// The memory that the tasks of [`Workload::NanoTimeline`] read, MiB, and the number of page faults
/// that the guest notes.
const NANO_TIMELINE_MIB: u64 = 8;
const NANO_FAULT_TIMES: u64 = 1024;
/// How long no background pages are sent in [`Workload::NanoWebRequests`], ms: the files that are
/// asked for have been read by then.
pub(crate) const BACKGROUND_DELAY_MS: u64 = 5_000;
/// Time between two reports of the guest, ms.
pub(crate) const REPORT_MS: u64 = 100;

/// The memory that each thread of the scan reads, MiB (about 200 MB).
const SCAN_PART_MIB: u64 = 191;
/// Threads of the scan.
const SCAN_THREADS: u32 = 4;
/// The memory that the sequential reader reads, MiB.
const SEQUENTIAL_MIB: u64 = 400;

/// The memory that the guest reads its disk into, MiB.
pub(crate) const DISK_ARENA_MIB: u64 = 300;
/// The memory that the processor of the guest with the disk writes to, MiB.
const DISK_WRITTEN_MIB: u64 = 64;
/// Pages that it writes a second.
const DISK_WRITES: u64 = 2000;
/// The memory of the guest whose move is long, and what its processor writes to, MiB: a minute at 1
/// Gbit/s.
const LONG_RAM_MIB: u64 = 8192;
const LONG_WRITTEN_MIB: u64 = 6144;

/// Pages that the guest with two clients writes to, MiB, and how many a second: pre-copy converges.
const CLIENTS_WRITTEN_MIB: u64 = 64;
const CLIENTS_WRITES: u64 = 2000;
/// The port that it serves.
pub(crate) const CLIENTS_PORT: u16 = 7000;

/// Pages that the Debian guest writes to, MiB, and how many a second.
const DEBIAN_WRITTEN_MIB: u64 = 64;
const DEBIAN_WRITES: u64 = 2000;
/// Its requests to its second disk, a second.
const DEBIAN_DISK_REQUESTS: u64 = 40;

/// Files on the web server.
pub(crate) const WEB_FILES: u64 = 5_000;
/// Bytes in each file.
pub(crate) const WEB_FILE_BYTES: usize = 102_400;
/// Memory of the guest with the web server, MiB: the files take 490.
const WEB_RAM_MIB: u64 = 1536;

/// What the guest does during the migration.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Deserialize, Serialize)]
pub(crate) enum Workload {
    /// Writes random pages as fast as it can, until all pages are received.
    Busy,
    /// Writes pages as fast as it can, with 90 % of the accesses to 10 % of them.
    Hotspot,
    /// Writes random pages of 90 % of 8 GiB, private memory, as fast as one of 20 processors can.
    Scale,
    /// The same with four processors, all of which write.
    ScaleBusy,
    /// Writes random pages of 80 % of so many GiB of private memory as fast as it can.
    Grow(u64),
    /// Writes random pages as fast as it can, in private memory (`-m` alone) at both sides.
    Private,
    /// Fills private memory, at both sides ([`Workload::Fill`]).
    PrivateFill,
    /// Writes random pages as fast as it can, in huge host pages of 2 MiB.
    Huge,
    /// Writes this many pages a second: pre-copy converges after several rounds.
    Paced(u64),
    /// Writes this many pages a second of private memory, at both sides.
    PrivatePaced(u64),
    /// Writes random pages as fast as it can, and is moved by pre-copy, which is cancelled after a
    /// while.
    Endless,
    /// Touches almost nothing: all traffic is background.
    Fill,
    /// One thread reads page after page, once, after the switchover, without background.
    Sequential,
    /// Four threads read 200 MB each, page after page, after the switchover, without background.
    Scan,
    /// Reads a disk limited to 20 MB/s by direct I/O.
    Disk20,
    /// Reads a disk limited to 100 MB/s by direct I/O.
    Disk100,
    /// Reads a disk limited to 20 MB/s, and has 8 GiB of memory, so that its move is long.
    Disk20Long,
    /// Answers two clients, each a thousand times a second.
    Clients,
    /// Answers two clients, as a domain of libvirt with a disk, between two daemons.
    Domain,
    /// A whole Debian with its network card and two disks, which writes some pages and checks its
    /// disks.
    Debian,
    /// Serves files over the network.
    Web,
    /// Four threads of the nano guest under KVM read memory, page after page.
    NanoScan,
    /// This many tasks of the nano guest on one processor read 32 MiB in all, without background.
    NanoTasks(u32),
    /// Four tasks of the nano guest on this many processors each read the same 32 MiB, without
    /// background.
    NanoWalk(u32),
    /// Four tasks of the nano guest read 8 MiB in all, without background, and the steps of each
    /// page fault are noted.
    NanoTimeline,
    /// The nano guest serves files over the network, asked for at random without a pause.
    NanoWeb,
    /// The same; no background pages are sent in the first seconds at the destination.
    NanoWebRequests,
}

/// How a case is measured.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    /// The guest is moved while it works.
    Move,
    /// The guest is switched over and scans its memory.
    Scan,
    /// The guest is moved while two clients wait for its answers.
    Clients,
    /// The guest is moved while clients request files from it.
    Web,
    /// The guest is a domain of libvirt, and is moved while two clients wait for its answers.
    Domain,
}

impl Workload {
    /// A rate at which QEMU's pre-copy needs several rounds on that network: two fifths of the
    /// pages that it carries.
    pub(crate) fn paced(network: NetworkKind) -> Self {
        Self::Paced(paced_rate(network))
    }

    /// A rate at which QEMU's pre-copy of private memory needs several rounds on that network.
    pub(crate) fn private_paced(network: NetworkKind) -> Self {
        Self::PrivatePaced(paced_rate(network))
    }

    /// How the workload is measured.
    pub(crate) fn kind(self) -> Kind {
        match self {
            Self::Sequential
            | Self::Scan
            | Self::NanoScan
            | Self::NanoTasks(_)
            | Self::NanoWalk(_)
            | Self::NanoTimeline => Kind::Scan,
            Self::Clients => Kind::Clients,
            Self::Domain => Kind::Domain,
            Self::Web | Self::NanoWeb | Self::NanoWebRequests => Kind::Web,
            _ => Kind::Move,
        }
    }

    /// The workload of the test guest.
    pub(crate) fn guest_workload(self) -> GuestWorkload {
        let dirty = GuestWorkload::dirty(WORKING_SET_MIB);
        let workload =
            match self {
                Self::Busy | Self::Private | Self::Endless | Self::Huge => dirty,
                Self::Hotspot => dirty.pattern(Pattern::Hotspot),
                Self::Scale => GuestWorkload::dirty(SCALE_WRITTEN_MIB),
                Self::ScaleBusy => GuestWorkload::dirty(SCALE_WRITTEN_MIB).threads(SCALE_BUSY_CPUS),
                Self::Grow(gib) => GuestWorkload::dirty(gib * 1024 * 8 / 10),
                Self::Paced(rate) | Self::PrivatePaced(rate) => dirty.rate(rate),
                Self::Fill | Self::PrivateFill => dirty.rate(1),
                Self::Sequential => GuestWorkload::scan(SEQUENTIAL_MIB),
                Self::Scan => GuestWorkload::scan(SCAN_PART_MIB * u64::from(SCAN_THREADS))
                    .threads(SCAN_THREADS),
                Self::Disk20 | Self::Disk100 => GuestWorkload::dirty(DISK_WRITTEN_MIB)
                    .rate(DISK_WRITES)
                    .with_direct_reads(DISK_ARENA_MIB),
                Self::Disk20Long => GuestWorkload::dirty(LONG_WRITTEN_MIB)
                    .rate(DISK_WRITES)
                    .with_direct_reads(DISK_ARENA_MIB),
                Self::Clients | Self::Domain => GuestWorkload::dirty(CLIENTS_WRITTEN_MIB)
                    .rate(CLIENTS_WRITES)
                    .with_server(CLIENTS_PORT),
                Self::Debian => GuestWorkload::dirty(DEBIAN_WRITTEN_MIB)
                    .rate(DEBIAN_WRITES)
                    .in_debian(DEBIAN_DISK_REQUESTS),
                Self::Web | Self::NanoWeb | Self::NanoWebRequests => GuestWorkload::idle()
                    .option("files", WEB_FILES)
                    .option("file_bytes", WEB_FILE_BYTES),
                Self::NanoScan => GuestWorkload::scan(SCAN_PART_MIB * u64::from(SCAN_THREADS))
                    .threads(SCAN_THREADS),
                Self::NanoTimeline => GuestWorkload::scan(NANO_TIMELINE_MIB)
                    .threads(SCAN_THREADS)
                    .option("fault_times", NANO_FAULT_TIMES),
                Self::NanoWalk(_) => GuestWorkload::walk(NANO_TASKS_MIB).threads(SCAN_THREADS),
                Self::NanoTasks(tasks) => GuestWorkload::scan(NANO_TASKS_MIB).threads(tasks),
            };
        let workload = match self.is_nano() {
            true => workload
                .option("account_ms", REPORT_MS)
                .option("slice_us", NANO_SLICE_US),
            false => workload,
        };
        workload
            .option("slow_us", self.slow_us())
            .option("every_ms", REPORT_MS)
    }

    /// The guest's processors.
    pub(crate) fn cpus(self) -> u32 {
        match self {
            Self::Scale => SCALE_CPUS,
            Self::ScaleBusy => SCALE_BUSY_CPUS,
            Self::NanoWalk(cpus) => cpus,
            _ => 1,
        }
    }

    /// Whether the guest has a network card.
    pub(crate) fn has_network_card(self) -> bool {
        matches!(
            self,
            Self::Clients
                | Self::Domain
                | Self::Debian
                | Self::Web
                | Self::NanoWeb
                | Self::NanoWebRequests
        )
    }

    /// Whether the guest is the nano guest, under KVM.
    pub(crate) fn is_nano(self) -> bool {
        matches!(
            self,
            Self::NanoScan
                | Self::NanoTasks(_)
                | Self::NanoWalk(_)
                | Self::NanoTimeline
                | Self::NanoWeb
                | Self::NanoWebRequests
        )
    }

    /// Whether nothing is compressed: the pages of a guest that writes a word here and there
    /// compress more than those of others, and these cases compare what the line carries, or are
    /// of a long move.
    pub(crate) fn is_uncompressed(self) -> bool {
        matches!(
            self,
            Self::Fill
                | Self::PrivateFill
                | Self::Paced(_)
                | Self::PrivatePaced(_)
                | Self::Endless
                | Self::Disk20Long
        )
    }

    /// The rate limit of its disk, if it has one.
    pub(crate) fn disk_bytes_per_second(self) -> Option<u64> {
        match self {
            Self::Disk20 | Self::Disk20Long => Some(20_000_000),
            Self::Disk100 => Some(100_000_000),
            _ => None,
        }
    }

    /// An access counts as slow from this time on, µs.
    pub(crate) fn slow_us(self) -> u64 {
        match self {
            Self::Huge => SLOW_HUGE_US,
            _ if self.is_nano() => SLOW_NANO_US,
            _ => SLOW_US,
        }
    }

    /// The guest's memory.
    pub(crate) fn ram(self) -> Ram {
        match self {
            Self::Huge => Ram::huge_2m(RAM_MIB),
            Self::Web => Ram::shared(WEB_RAM_MIB),
            Self::Disk20Long => Ram::new(RamBackend::Default, LONG_RAM_MIB),
            Self::Scale | Self::ScaleBusy => Ram::new(RamBackend::Default, SCALE_RAM_MIB),
            Self::Grow(gib) => Ram::new(RamBackend::Default, gib * 1024),
            Self::Private | Self::PrivateFill | Self::PrivatePaced(_) => {
                Ram::new(RamBackend::Default, RAM_MIB)
            }
            _ => Ram::shared(RAM_MIB),
        }
    }

    /// The name in filters and tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Hotspot => "hotspot",
            Self::Scale => "scale",
            Self::ScaleBusy => "scale-4",
            Self::Grow(_) => "grow",
            Self::Private => "private",
            Self::PrivateFill => "private-fill",
            Self::Huge => "huge",
            Self::Paced(_) => "paced",
            Self::PrivatePaced(_) => "private-paced",
            Self::Endless => "endless",
            Self::Fill => "fill",
            Self::Sequential => "sequential",
            Self::Scan => "scan",
            Self::Disk20 => "disk20",
            Self::Disk100 => "disk100",
            Self::Disk20Long => "disk20-long",
            Self::Clients => "clients",
            Self::Domain => "libvirt",
            Self::Debian => "debian",
            Self::Web => "web",
            Self::NanoScan => "nano-scan",
            Self::NanoTasks(_) => "nano-tasks",
            Self::NanoWalk(_) => "nano-walk",
            Self::NanoTimeline => "nano-timeline",
            Self::NanoWeb => "nano-web",
            Self::NanoWebRequests => "nano-web-requests",
        }
    }

    /// The description in tables.
    pub(crate) fn describe(self) -> String {
        match self {
            Self::Busy => "busy: random writes at full speed".to_owned(),
            Self::Hotspot => "hotspot: as busy, 90 % of the writes to 10 % of the pages".to_owned(),
            Self::Scale => format!(
                "scale: {SCALE_CPUS} processors, {SCALE_RAM_MIB} MiB of private memory; one writes \
                 {SCALE_WRITTEN_MIB} MiB at random at full speed"
            ),
            Self::ScaleBusy => {
                format!("scale-4: as scale, {SCALE_BUSY_CPUS} processors, all of which write")
            }
            Self::Grow(gib) => format!(
                "grow-{gib}: {gib} GiB of private memory; 80 % are written at random at full speed"
            ),
            Self::Private => "private: as busy, private memory".to_owned(),
            Self::PrivateFill => "private-fill: as fill, private memory".to_owned(),
            Self::Huge => "huge: as busy, host pages of 2 MiB".to_owned(),
            Self::Paced(rate) => format!("paced: {rate} pages a second"),
            Self::PrivatePaced(rate) => {
                format!("private-paced: {rate} pages a second, private memory")
            }
            Self::Endless => "endless: full speed, pre-copy with a time limit".to_owned(),
            Self::Fill => "fill: an idle guest, background only".to_owned(),
            Self::Sequential => {
                format!("sequential: one thread reads {SEQUENTIAL_MIB} MiB, no background")
            }
            Self::Scan => {
                format!("scan: {SCAN_THREADS} threads read {SCAN_PART_MIB} MiB each, no background")
            }
            Self::Disk20 | Self::Disk100 | Self::Disk20Long => format!(
                "{}: a disk of {} MB/s, cache=none, direct reads by six threads into \
                 {DISK_ARENA_MIB} MiB; {DISK_WRITES} pages written a second",
                self.name(),
                self.disk_bytes_per_second().unwrap_or(0) / 1_000_000
            ),
            Self::Clients => format!(
                "clients: requests over TCP and datagrams, 1,000 a second each; {CLIENTS_WRITES} \
                 pages written a second"
            ),
            Self::Domain => {
                "libvirt: as clients, a domain of libvirt with private memory and a disk".to_owned()
            }
            Self::Debian => format!(
                "debian: a whole Debian, two processors, network card and two disks; \
                 {DEBIAN_WRITES} pages written a second"
            ),
            Self::Web => format!("web: {WEB_FILES} files of {WEB_FILE_BYTES} bytes"),
            Self::NanoScan => format!(
                "nano-scan: under KVM, {SCAN_THREADS} tasks read {SCAN_PART_MIB} MiB each, no \
                 background"
            ),
            Self::NanoWeb => format!(
                "nano-web: under KVM, {WEB_FILES} files of {WEB_FILE_BYTES} bytes, asked for at random \
                 without a pause"
            ),
            Self::NanoWebRequests => format!(
                "nano-web-requests: as nano-web, no background for {} s",
                BACKGROUND_DELAY_MS / 1000
            ),
            Self::NanoTimeline => format!(
                "nano-timeline: the steps of a page fault of one of {SCAN_THREADS} tasks under KVM"
            ),
            Self::NanoWalk(_) => format!(
                "nano-walk: under KVM, {SCAN_THREADS} tasks on one processor or two each read the \
                 same {NANO_TASKS_MIB} MiB, no background"
            ),
            Self::NanoTasks(tasks) => format!(
                "nano-{tasks}-tasks: under KVM, {tasks} tasks read {NANO_TASKS_MIB} MiB, no background"
            ),
        }
    }
}

/// Pages written a second.
fn paced_rate(network: NetworkKind) -> u64 {
    match network {
        NetworkKind::Gbit(1) => 12_000,
        _ => 60_000,
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NanoTasks(tasks) => write!(f, "nano-{tasks}-tasks"),
            Self::Grow(gib) => write!(f, "grow-{gib}"),
            Self::NanoWalk(cpus) => write!(f, "nano-walk-{cpus}"),
            _ => f.write_str(self.name()),
        }
    }
}
