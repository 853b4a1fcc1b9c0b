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
    pub repeated: u64,
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
    pub repeated: u64,
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
mod tests {
    use super::*;

    const VERIFY: &str = "verify: ok t=2.001 span_ms=1000 pages=17416 checks=524866 generation=99 bad=0 slow=3 mean_us=0.260 max_us=2050.708 slow_mean_us=937.068 slow_max_us=2050.708 hist=0:524480,1:383,8:3";

    #[test]
    fn a_report_is_parsed() {
        let GuestReport::Verify(verify) = GuestReport::parse(VERIFY) else {
            panic!("not parsed");
        };
        assert!(verify.ok);
        assert_eq!((verify.pages, verify.generation), (17416, 99));
        assert_eq!(verify.latency.slow, 3);
        assert_eq!(verify.latency.histogram.count(), verify.latency.accesses);
        assert_eq!(verify.latency.histogram.below_us(0.99), Some(1));
        assert_eq!(verify.latency.histogram.below_us(1.0), Some(256));
        assert_eq!(
            GuestReport::parse("verdict: BAD pages=7 bad=2 disk_pages=0"),
            GuestReport::Verdict(Verdict {
                ok: false,
                pages: 7,
                bad: 2,
                disk_pages: 0
            })
        );
    }

    #[test]
    fn a_truncated_line_is_not_parsed() {
        for cut in 0..VERIFY.rfind("hist").unwrap() {
            assert_eq!(
                GuestReport::parse(&VERIFY[..cut]),
                GuestReport::Other,
                "{cut}"
            );
        }
        assert_eq!(
            GuestReport::parse("[    1.0] reboot: Power down"),
            GuestReport::Other
        );
        assert_eq!(
            GuestReport::parse("verdict: maybe pages=1 bad=0"),
            GuestReport::Other
        );
    }

    #[test]
    fn a_fine_histogram_is_parsed() {
        let GuestReport::Slow(slow) =
            GuestReport::parse("slow: ok count=100 sum_us=9000 fine=40:98,80:2")
        else {
            panic!("not parsed");
        };
        assert_eq!((slow.count, slow.fine.count()), (100, 100));
        assert_eq!(
            slow.fine.below_us(0.5),
            Some(36.0),
            "from 32 to below 36 µs"
        );
        assert_eq!(slow.fine.below_us(0.99), Some(1152.0));
        let none = GuestReport::parse("slow: ok count=0 sum_us=0 fine=-");
        assert_eq!(none, GuestReport::Slow(Slow::default()));
        assert_eq!(
            GuestReport::parse("slow: ok count=1 sum_us=2"),
            GuestReport::Other
        );
    }

    #[test]
    fn clocks_are_parsed() {
        let clocks = Clocks {
            ticks: 12,
            ns: 5,
            kvm_clock: true,
        };
        assert_eq!(
            GuestReport::parse("clocks: ok ticks=12 ns=5 kvm_clock=1"),
            GuestReport::Clocks(clocks)
        );
        assert_eq!(
            GuestReport::parse("clocks: ok ticks=12 ns=5"),
            GuestReport::Other
        );
    }

    #[test]
    fn totals_are_parsed() {
        let line = "totals: ok async_pf=on not_present=9 ready=8 broadcasts=1 unmatched=0 \
                    synchronous=3 repeated=2 waiting=7 ran_ms=1.000";
        let totals = Totals {
            async_faults: true,
            not_present: 9,
            ready: 8,
            broadcasts: 1,
            unmatched: 0,
            synchronous: 3,
            repeated: 2,
            waiting: 7,
        };
        assert_eq!(GuestReport::parse(line), GuestReport::Totals(totals));
        let off = line.replace("=on", "=off").replace("=7", "=0");
        let GuestReport::Totals(totals) = GuestReport::parse(&off) else {
            panic!("not parsed: {off}");
        };
        assert_eq!((totals.async_faults, totals.waiting), (false, 0));
        assert_eq!(
            GuestReport::parse("totals: ok async_pf=on"),
            GuestReport::Other
        );
    }

    #[test]
    fn accounts_are_parsed() {
        let line = "faults: ok t=1.009 span_ms=505 not_present=3 ready=2 broadcasts=0 unmatched=0 \
                    synchronous=4 repeated=1 waiting=1 wait_mean_us=10.500 wait_max_us=20.000 \
                    wait_hist=4:1,5:1";
        let GuestReport::Faults(faults) = GuestReport::parse(line) else {
            panic!("not parsed");
        };
        assert_eq!((faults.not_present, faults.waits.count()), (3, 2));
        assert_eq!((faults.synchronous, faults.repeated), (4, 1));
        let line = "fault: ok token=4096 not_present=1 other=2 ready=3 resumed=4";
        let fault = Fault {
            token: 4096,
            not_present: 1,
            other: 2,
            ready: 3,
            resumed: 4,
        };
        assert_eq!(GuestReport::parse(line), GuestReport::Fault(fault));
        assert_eq!(
            GuestReport::parse("noted: ok faults=7"),
            GuestReport::Noted(7)
        );
        let line = "processors: ok t=1.009 span_ms=505 ran_ms=1.500,2.000 idle_ms=3.000,4.000 \
                    stalled_ms=0.000,0.000 kvm_ms=0.500,0.600 scheduler_ms=0.100,0.200 switches=7";
        let GuestReport::Processors(processors) = GuestReport::parse(line) else {
            panic!("not parsed");
        };
        assert_eq!(processors.ran, [1.5, 2.0]);
        assert_eq!(processors.in_kvm, [0.5, 0.6]);
        assert_eq!(processors.scheduler, [0.1, 0.2]);
        let bad = line.replace("2.000", "-");
        assert_eq!(GuestReport::parse(&bad), GuestReport::Other);
        let line = "task: ok number=1 processor=0 accesses=9 ran_ms=1.000 queued_ms=2.000 \
                    waited_ms=3.000 faults=4 synchronous=0 repeated=0 wait_mean_us=0.000";
        let GuestReport::Task(task) = GuestReport::parse(line) else {
            panic!("not parsed");
        };
        assert_eq!((task.number, task.accesses, task.faults), (1, 9, 4));
    }

    #[test]
    fn devices_are_parsed() {
        let line = "devices: ok cpus=2 memory_kib=4 random=- tpm_random=0a pcr=ff tablet=7,-8 \
                    echoed=5 drawn=-";
        let devices = Devices {
            cpus: 2,
            memory_kib: 4,
            random: None,
            tpm_random: Some("0a".to_owned()),
            pcr: Some("ff".to_owned()),
            tablet: Some([7, -8]),
            echoed: Some(5),
            drawn: None,
        };
        assert_eq!(GuestReport::parse(line), GuestReport::Devices(devices));
        let cut = line.rfind(" drawn").unwrap();
        assert_eq!(GuestReport::parse(&line[..cut]), GuestReport::Other);
    }

    #[test]
    fn freed_memory_is_parsed() {
        assert_eq!(
            GuestReport::parse("freed: ok pages=9"),
            GuestReport::Freed(9)
        );
        let used = Used { pages: 9, bad: 2 };
        let line = "used: BAD pages=9 bad=2";
        assert_eq!(GuestReport::parse(line), GuestReport::Used(used));
        assert_eq!(GuestReport::parse("used: BAD pages=9"), GuestReport::Other);
    }

    #[test]
    fn a_disk_report_is_parsed() {
        let line = "disk: ok t=1.003 span_ms=1003 bad=0 reads=41 writes=2 read_kib=5248 written_kib=256 files=1 passes=3";
        let GuestReport::Disk(work) = GuestReport::parse(line) else {
            panic!("not parsed");
        };
        assert_eq!((work.reads, work.written_kib, work.passes), (41, 256, 3));
        assert_eq!(GuestReport::parse(&line[..90]), GuestReport::Other);
    }

    #[test]
    fn intervals_add_up() {
        let GuestReport::Verify(one) = GuestReport::parse(VERIFY) else {
            panic!("not parsed");
        };
        let mut sum = Latency::default();
        sum.add(&one.latency);
        assert_eq!(sum.histogram, one.latency.histogram);
        sum.add(&one.latency);
        assert_eq!((sum.accesses, sum.slow), (1_049_732, 6));
        assert!((sum.slow_mean_us - 937.068).abs() < 1e-6);
        assert_eq!(sum.histogram.count(), sum.accesses);
    }
}
