//! The lines of the test guest, as values.

mod latency;
mod parse;

pub use latency::{FineHistogram, Histogram, Latency};

/// What a console line says.
#[derive(Clone, Debug, PartialEq)]
pub enum Report {
    /// The workload begins.
    Ready(Ready),
    /// A line of `dirty`.
    Dirty(Dirty),
    /// A line of `verify` or `lockstep`.
    Verify(Verify),
    /// A line of `idle`.
    Idle(Idle),
    /// A line of `serve`.
    Serve(Serve),
    /// What was done with the disk.
    Disk(DiskWork),
    /// A line of `scan`.
    Scan(Scan),
    /// The scan is through.
    Scanned(Scanned),
    /// The answer to `slow`.
    Slow(Slow),
    /// The answer to a sweep.
    Verdict(Verdict),
    /// A page was not as it should be; the text says which and how.
    Bad(String),
    /// The workload cannot go on, for the reason in the text.
    Failed(String),
    /// The workload has ended as asked.
    Stopped,
    /// Anything else: the kernel's words, or a line that was mixed with them.
    Other,
}

/// The workload begins.
#[derive(Clone, Debug, PartialEq)]
pub struct Ready {
    /// `idle`, `dirty`, `verify`, `scan` or `lockstep`.
    pub workload: String,
    /// Pages in play.
    pub pages: u64,
    /// Worker threads.
    pub threads: u64,
    /// Virtual processors.
    pub cpus: u64,
    /// Seconds since the guest's kernel started.
    pub uptime: f64,
}

/// An interval of `dirty`.
#[derive(Clone, Debug, PartialEq)]
pub struct Dirty {
    /// Whether no page was bad so far.
    pub ok: bool,
    /// Seconds since the workload began, by the guest's clock.
    pub t: f64,
    /// Length of the interval by the guest's clock, ms.
    pub span_ms: u64,
    /// The interval's accesses.
    pub latency: Latency,
}

/// An interval of `verify`.
#[derive(Clone, Debug, PartialEq)]
pub struct Verify {
    /// Whether no page was bad so far.
    pub ok: bool,
    /// Seconds since the workload began, by the guest's clock.
    pub t: f64,
    /// Length of the interval by the guest's clock, ms.
    pub span_ms: u64,
    /// Pages in play; grows with `grow`.
    pub pages: u64,
    /// The highest generation that a page has reached.
    pub generation: u64,
    /// Bad pages found so far.
    pub bad: u64,
    /// The interval's accesses; the time is that of the first touch of the page.
    pub latency: Latency,
}

/// An interval of `idle`.
#[derive(Clone, Debug, PartialEq)]
pub struct Idle {
    /// Seconds since the workload began, by the guest's clock.
    pub t: f64,
    /// Counts the lines.
    pub beat: u64,
}

/// An interval of `serve`.
#[derive(Clone, Debug, PartialEq)]
pub struct Serve {
    /// Seconds since the workload began, by the guest's clock.
    pub t: f64,
    /// Open connections.
    pub open: u64,
    /// Lines answered so far.
    pub lines: u64,
}

/// An interval of the disk's work.
#[derive(Clone, Debug, PartialEq)]
pub struct DiskWork {
    /// Whether no page was bad so far.
    pub ok: bool,
    /// Seconds since the workload began, by the guest's clock.
    pub t: f64,
    /// Length of the interval by the guest's clock, ms.
    pub span_ms: u64,
    /// Direct reads.
    pub reads: u64,
    /// Direct writes.
    pub writes: u64,
    /// What was read, KiB.
    pub read_kib: u64,
    /// What was written, KiB.
    pub written_kib: u64,
    /// Files made.
    pub files: u64,
    /// How often all of the memory that the disk is read into was checked.
    pub passes: u64,
}

/// An interval of `scan`.
#[derive(Clone, Debug, PartialEq)]
pub struct Scan {
    /// Whether no page was bad so far.
    pub ok: bool,
    /// Seconds since the workload began, by the guest's clock.
    pub t: f64,
    /// Length of the interval by the guest's clock, ms.
    pub span_ms: u64,
    /// The interval's accesses, one a page; the time is that of the first touch of the page.
    pub latency: Latency,
}

/// The scan is through.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scanned {
    /// Whether every page was good.
    pub ok: bool,
    /// Pages scanned.
    pub pages: u64,
    /// Bad pages found.
    pub bad: u64,
    /// From the order to the last thread's end, by the guest's clock, ms.
    pub ms: f64,
}

/// How long slow accesses took since the last time that the guest was asked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Slow {
    /// How many.
    pub count: u64,
    /// Their sum, µs.
    pub sum_us: u64,
    /// How many took how long.
    pub fine: FineHistogram,
}

/// The answer to a sweep over every page.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Verdict {
    /// Whether every page was good, now and at every access before.
    pub ok: bool,
    /// Pages checked.
    pub pages: u64,
    /// Bad pages found so far.
    pub bad: u64,
    /// Pages checked in memory that a disk was read into, on the disk, and of files.
    pub disk_pages: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERIFY: &str = "verify: ok t=2.001 span_ms=1000 pages=17416 checks=524866 generation=99 bad=0 slow=3 mean_us=0.260 max_us=2050.708 slow_mean_us=937.068 slow_max_us=2050.708 hist=0:524480,1:383,8:3";

    #[test]
    fn a_line_of_the_guest_is_read() {
        let Report::Verify(verify) = Report::parse(VERIFY) else {
            panic!("not read");
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
    fn a_line_cut_anywhere_is_not_read_as_something_else() {
        for cut in 0..VERIFY.rfind("hist").unwrap() {
            assert_eq!(Report::parse(&VERIFY[..cut]), Report::Other, "{cut}");
        }
        assert_eq!(Report::parse("[    1.0] reboot: Power down"), Report::Other);
        assert_eq!(Report::parse("verdict: maybe pages=1 bad=0"), Report::Other);
    }

    #[test]
    fn the_fine_times_of_slow_accesses_are_read() {
        let Report::Slow(slow) = Report::parse("slow: ok count=100 sum_us=9000 fine=40:98,80:2")
        else {
            panic!("not read");
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
    fn the_disks_work_is_read() {
        let line = "disk: ok t=1.003 span_ms=1003 bad=0 reads=41 writes=2 read_kib=5248 written_kib=256 files=1 passes=3";
        let Report::Disk(work) = Report::parse(line) else {
            panic!("not read");
        };
        assert_eq!((work.reads, work.written_kib, work.passes), (41, 256, 3));
        assert_eq!(Report::parse(&line[..90]), Report::Other);
    }

    #[test]
    fn intervals_add_up() {
        let Report::Verify(one) = Report::parse(VERIFY) else {
            panic!("not read");
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
