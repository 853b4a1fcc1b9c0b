//! The reports of the test guest, parsed from its console lines.

mod latency;
mod parse;

pub use latency::{FineHistogram, Histogram, Latency};

/// A parsed console line.
#[derive(Clone, Debug, PartialEq)]
pub enum GuestReport {
    /// The workload starts.
    Ready(Ready),
    /// A report of `dirty`.
    Dirty(Dirty),
    /// A report of `verify` or `lockstep`.
    Verify(Verify),
    /// A report of `idle`.
    Idle(Idle),
    /// A report of `serve`.
    Serve(Serve),
    /// A report of the disk workload.
    Disk(DiskWork),
    /// A report of the guest's runs.
    Runs(Runs),
    /// A report of `scan`.
    Scan(Scan),
    /// The scan has finished.
    Scanned(Scanned),
    /// The answer to `slow`.
    Slow(Slow),
    /// The nano guest's answer to `clocks`.
    Clocks(Clocks),
    /// The nano guest's answer to `totals`.
    Totals(Totals),
    /// A line of the nano guest's answer to `tasks`.
    Task(Task),
    /// A line of the nano guest's answer to `faults`.
    Fault(Fault),
    /// The end of that answer, with the number of the faults.
    Noted(u64),
    /// The nano guest's page faults in an interval.
    Faults(Faults),
    /// How the nano guest's processors spent an interval.
    Processors(Processors),
    /// The answer to `devices`.
    Devices(Devices),
    /// The answer to `free`, with the number of the pages.
    Freed(u64),
    /// The answer to `use`.
    Used(Used),
    /// The answer to `sweep`.
    Verdict(Verdict),
    /// A page had wrong content; the text describes it.
    Bad(String),
    /// The workload cannot continue, for the reason in the text.
    Failed(String),
    /// The workload has ended after `stop`.
    Stopped,
    /// Any other line, such as a kernel message or a line mixed with one.
    Other,
}

/// The workload starts.
#[derive(Clone, Debug, PartialEq)]
pub struct Ready {
    /// `idle`, `dirty`, `verify`, `scan` or `lockstep`.
    pub workload: String,
    /// Pages of the workload.
    pub pages: u64,
    /// Number of worker threads.
    pub threads: u64,
    /// Number of virtual processors.
    pub cpus: u64,
    /// Seconds since the guest's kernel started.
    pub uptime: f64,
}

/// An interval of `dirty`.
#[derive(Clone, Debug, PartialEq)]
pub struct Dirty {
    /// Whether no bad page was found so far.
    pub ok: bool,
    /// Seconds since the workload started, by the guest's clock.
    pub t: f64,
    /// Length of the interval by the guest's clock, ms.
    pub span_ms: u64,
    /// The interval's accesses.
    pub latency: Latency,
}

/// An interval of `verify`.
#[derive(Clone, Debug, PartialEq)]
pub struct Verify {
    /// Whether no bad page was found so far.
    pub ok: bool,
    /// Seconds since the workload started, by the guest's clock.
    pub t: f64,
    /// Length of the interval by the guest's clock, ms.
    pub span_ms: u64,
    /// Pages of the workload; increases with `grow`.
    pub pages: u64,
    /// The highest generation of a page.
    pub generation: u64,
    /// Bad pages found so far.
    pub bad: u64,
    /// The accesses of the interval; the first touch of the page is timed.
    pub latency: Latency,
}

/// An interval of `idle`.
#[derive(Clone, Debug, PartialEq)]
pub struct Idle {
    /// Seconds since the workload started, by the guest's clock.
    pub t: f64,
    /// Number of the report.
    pub beat: u64,
}

/// An interval of `serve`.
#[derive(Clone, Debug, PartialEq)]
pub struct Serve {
    /// Seconds since the workload started, by the guest's clock.
    pub t: f64,
    /// Open connections.
    pub open: u64,
    /// Lines answered so far.
    pub lines: u64,
    /// Different datagrams that have arrived so far.
    pub datagrams: u64,
    /// Datagrams that have not arrived although later ones of the same client have.
    pub missing: u64,
    /// Datagrams that have arrived once more.
    pub repeated: u64,
}

/// An interval of the disk workload.
#[derive(Clone, Debug, PartialEq)]
pub struct DiskWork {
    /// Whether no bad page was found so far.
    pub ok: bool,
    /// Seconds since the workload started, by the guest's clock.
    pub t: f64,
    /// Length of the interval by the guest's clock, ms.
    pub span_ms: u64,
    /// Number of direct reads.
    pub reads: u64,
    /// Number of direct writes.
    pub writes: u64,
    /// Data read, KiB.
    pub read_kib: u64,
    /// Data written, KiB.
    pub written_kib: u64,
    /// Files created.
    pub files: u64,
    /// How often the whole arena was checked.
    pub passes: u64,
}

/// The guest's run, and how far its record is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Runs {
    /// The number of this run: how often the guest has booted from its disk.
    pub run: u64,
    /// How often it has checked and written the record.
    pub beats: u64,
}

/// An interval of `scan`.
#[derive(Clone, Debug, PartialEq)]
pub struct Scan {
    /// Whether no bad page was found so far.
    pub ok: bool,
    /// Seconds since the workload started, by the guest's clock.
    pub t: f64,
    /// Length of the interval by the guest's clock, ms.
    pub span_ms: u64,
    /// The accesses of the interval, one per page; the first touch of the page is timed.
    pub latency: Latency,
}

/// The result of a scan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scanned {
    /// Whether every page was good.
    pub ok: bool,
    /// Pages scanned.
    pub pages: u64,
    /// Bad pages found.
    pub bad: u64,
    /// From the command to the end of the last thread, by the guest's clock, ms.
    pub ms: f64,
}

/// Times of slow accesses since the last `slow` command.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Slow {
    /// Number of slow accesses.
    pub count: u64,
    /// Their sum, µs.
    pub sum_us: u64,
    /// Their times.
    pub fine: FineHistogram,
}

/// One time by two clocks of the nano guest.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Clocks {
    /// The time-stamp counter.
    pub ticks: u64,
    /// The monotonic clock, ns.
    pub ns: u64,
    /// Whether that is KVM's clock; otherwise it is computed from the counter.
    pub kvm_clock: bool,
}

/// What the nano guest has counted since it started.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Totals {
    /// Whether it uses asynchronous page faults.
    pub async_faults: bool,
    /// *Page not present* events: asynchronous page faults.
    pub not_present: u64,
    /// *Page ready* events.
    pub ready: u64,
    /// Events by which every waiting task is to try again; counted in `ready`, too.
    pub broadcasts: u64,
    /// *Page ready* events that no task waited for.
    pub unmatched: u64,
    /// Accesses that took long without an asynchronous fault, and while no other task ran.
    pub synchronous: u64,
    /// Asynchronous faults of accesses that had faulted before.
    pub refaults: u64,
    /// Tasks that wait for a page now.
    pub waiting: u64,
}

/// What the nano guest has counted of one worker since it started.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// Its number, from 0.
    pub number: u64,
    /// The number of its processor.
    pub processor: u64,
    /// Its accesses.
    pub accesses: u64,
    /// How long it ran, ms.
    pub ran_ms: f64,
    /// How long it could have run while another task did, ms.
    pub queued_ms: f64,
    /// How long it waited for pages, ms.
    pub waited_ms: f64,
    /// Its asynchronous page faults.
    pub faults: u64,
}

/// The times of an asynchronous page fault of the nano guest, by the time-stamp counter.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Fault {
    /// KVM's token.
    pub token: u32,
    /// The *not present* event was taken.
    pub not_present: u64,
    /// The processor left for another task.
    pub other: u64,
    /// The *page ready* event was taken.
    pub ready: u64,
    /// The processor left for the task.
    pub resumed: u64,
}

/// An interval of the nano guest's page faults.
#[derive(Clone, Debug, PartialEq)]
pub struct Faults {
    /// Seconds since the workload started, by the guest's clock.
    pub t: f64,
    /// Length of the interval, ms.
    pub span_ms: u64,
    /// *Page not present* events: asynchronous page faults.
    pub not_present: u64,
    /// *Page ready* events.
    pub ready: u64,
    /// Accesses that took long without an asynchronous fault, and while no other task ran.
    pub synchronous: u64,
    /// Asynchronous faults of accesses that had faulted before.
    pub refaults: u64,
    /// Tasks that wait for a page at the end of the interval.
    pub waiting: u64,
    /// Mean time that tasks waited for a page, µs.
    pub wait_mean_us: f64,
    /// Longest time, µs.
    pub wait_max_us: f64,
    /// These times.
    pub waits: Histogram,
}

/// How each of the nano guest's processors spent an interval, in ms.
#[derive(Clone, Debug, PartialEq)]
pub struct Processors {
    /// Seconds since the workload started, by the guest's clock.
    pub t: f64,
    /// Length of the interval, ms.
    pub span_ms: u64,
    /// Tasks ran.
    pub ran: Vec<f64>,
    /// It was halted.
    pub idle: Vec<f64>,
    /// A task had it, without progress.
    pub stalled: Vec<f64>,
    /// KVM started asynchronous page faults.
    pub in_kvm: Vec<f64>,
    /// The scheduler ran, and the ways there and back.
    pub scheduler: Vec<f64>,
}

/// The use of the guest's devices. What the guest does not have is `None`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Devices {
    /// Number of processors that are online.
    pub cpus: u64,
    /// The guest's memory without what the balloon has taken, KiB.
    pub memory_kib: u64,
    /// Bytes of the random number generator, hexadecimal.
    pub random: Option<String>,
    /// Random bytes of the TPM, hexadecimal.
    pub tpm_random: Option<String>,
    /// A register of the TPM that the guest has extended once, hexadecimal.
    pub pcr: Option<String>,
    /// The position of the tablet's pointer.
    pub tablet: Option<[i32; 2]>,
    /// Bytes that were sent back on the virtio-serial port so far.
    pub echoed: Option<u64>,
    /// Pictures drawn on the screen so far.
    pub drawn: Option<u64>,
}

/// Memory that the guest had freed, and uses again.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Used {
    /// Its pages.
    pub pages: u64,
    /// Those that were not zero.
    pub bad: u64,
}

/// The result of a sweep over every page.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Verdict {
    /// Whether every page was good, now and at every earlier access.
    pub ok: bool,
    /// Pages checked.
    pub pages: u64,
    /// Bad pages found so far.
    pub bad: u64,
    /// Pages checked in the arena, on the disk, and of files.
    pub disk_pages: u64,
}

#[cfg(test)]
mod tests;
