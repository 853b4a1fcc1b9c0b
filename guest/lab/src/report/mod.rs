//! The reports of the test guest, parsed from its console lines.

mod latency;
mod parse;

pub use latency::{FineHistogram, Histogram, Latency};

/// A parsed console line.
#[derive(Clone, Debug, PartialEq)]
pub enum Report {
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
    /// The answer to `devices`.
    Devices(Devices),
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
        let Report::Verify(verify) = Report::parse(VERIFY) else {
            panic!("not parsed");
        };
        assert!(verify.ok);
        assert_eq!((verify.pages, verify.generation), (17416, 99));
        assert_eq!(verify.latency.slow, 3);
        assert_eq!(verify.latency.histogram.count(), verify.latency.accesses);
        assert_eq!(verify.latency.histogram.below_us(0.99), Some(1));
        assert_eq!(verify.latency.histogram.below_us(1.0), Some(256));
        assert_eq!(
            Report::parse("verdict: BAD pages=7 bad=2 disk_pages=0"),
            Report::Verdict(Verdict {
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
            assert_eq!(Report::parse(&VERIFY[..cut]), Report::Other, "{cut}");
        }
        assert_eq!(Report::parse("[    1.0] reboot: Power down"), Report::Other);
        assert_eq!(Report::parse("verdict: maybe pages=1 bad=0"), Report::Other);
    }

    #[test]
    fn a_fine_histogram_is_parsed() {
        let Report::Slow(slow) = Report::parse("slow: ok count=100 sum_us=9000 fine=40:98,80:2")
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
        let none = Report::parse("slow: ok count=0 sum_us=0 fine=-");
        assert_eq!(none, Report::Slow(Slow::default()));
        assert_eq!(Report::parse("slow: ok count=1 sum_us=2"), Report::Other);
    }

    #[test]
    fn clocks_are_parsed() {
        let clocks = Clocks {
            ticks: 12,
            ns: 5,
            kvm_clock: true,
        };
        assert_eq!(
            Report::parse("clocks: ok ticks=12 ns=5 kvm_clock=1"),
            Report::Clocks(clocks)
        );
        assert_eq!(Report::parse("clocks: ok ticks=12 ns=5"), Report::Other);
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
        assert_eq!(Report::parse(line), Report::Devices(devices));
        let cut = line.rfind(" drawn").unwrap();
        assert_eq!(Report::parse(&line[..cut]), Report::Other);
    }

    #[test]
    fn a_disk_report_is_parsed() {
        let line = "disk: ok t=1.003 span_ms=1003 bad=0 reads=41 writes=2 read_kib=5248 written_kib=256 files=1 passes=3";
        let Report::Disk(work) = Report::parse(line) else {
            panic!("not parsed");
        };
        assert_eq!((work.reads, work.written_kib, work.passes), (41, 256, 3));
        assert_eq!(Report::parse(&line[..90]), Report::Other);
    }

    #[test]
    fn intervals_add_up() {
        let Report::Verify(one) = Report::parse(VERIFY) else {
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
