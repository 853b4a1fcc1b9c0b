//! The lines of the test guest, as values.

use std::collections::BTreeMap;

/// What a console line says.
#[derive(Clone, Debug, PartialEq)]
pub enum Report {
    /// The workload begins.
    Ready(Ready),
    /// A line of `dirty`.
    Dirty(Dirty),
    /// A line of `verify` or `together`.
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
    /// `idle`, `dirty`, `verify`, `scan` or `together`.
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

/// How long memory accesses took. Times are in microseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Latency {
    /// How many accesses.
    pub accesses: u64,
    /// How many of them took at least the workload's threshold.
    pub slow: u64,
    /// Mean over all.
    pub mean_us: f64,
    /// The longest.
    pub max_us: f64,
    /// Mean over the slow ones; 0 without any.
    pub slow_mean_us: f64,
    /// How many took how long.
    pub histogram: Histogram,
}

impl Latency {
    /// Adds another interval's accesses.
    pub fn add(&mut self, other: &Self) {
        let mean = |a: f64, n: u64, b: f64, m: u64| match n + m {
            0 => 0.0,
            sum => (a * as_f64(n) + b * as_f64(m)) / as_f64(sum),
        };
        self.mean_us = mean(self.mean_us, self.accesses, other.mean_us, other.accesses);
        self.slow_mean_us = mean(self.slow_mean_us, self.slow, other.slow_mean_us, other.slow);
        self.max_us = self.max_us.max(other.max_us);
        self.accesses += other.accesses;
        self.slow += other.slow;
        self.histogram.add(&other.histogram);
    }
}

/// Counts far below 2^52 keep every digit.
#[allow(clippy::cast_precision_loss)]
fn as_f64(count: u64) -> f64 {
    count as f64
}

/// Counts by power of two of a microsecond: bucket 0 is below 1 µs, bucket `k` from 2^(k-1) µs to
/// below 2^k µs.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Histogram(BTreeMap<u32, u64>);

impl Histogram {
    /// The buckets that are not empty, ascending: number and count.
    pub fn buckets(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.0.iter().map(|(&bucket, &count)| (bucket, count))
    }

    /// How many in all.
    pub fn count(&self) -> u64 {
        self.0.values().sum()
    }

    /// Adds another one's counts.
    pub fn add(&mut self, other: &Self) {
        for (bucket, count) in other.buckets() {
            *self.0.entry(bucket).or_default() += count;
        }
    }

    /// Microseconds below which at least the part `part` (0 to 1) lies; `None` when empty.
    pub fn below_us(&self, part: f64) -> Option<u64> {
        let wanted = as_f64(self.count()) * part;
        let mut seen = 0;
        self.buckets().find_map(|(bucket, count)| {
            seen += count;
            (as_f64(seen) >= wanted).then(|| 1u64.checked_shl(bucket).unwrap_or(u64::MAX))
        })
    }

    fn parse(text: &str) -> Option<Self> {
        if text == "-" {
            return Some(Self::default());
        }
        text.split(',')
            .map(|pair| {
                let (bucket, count) = pair.split_once(':')?;
                Some((bucket.parse().ok()?, count.parse().ok()?))
            })
            .collect::<Option<_>>()
            .map(Self)
    }
}

/// Counts with eight buckets to each doubling: bucket `8 k + s` is from 2^k (1 + s/8) µs to below
/// 2^k (1 + (s+1)/8) µs.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct FineHistogram(BTreeMap<u32, u64>);

impl FineHistogram {
    /// The buckets that are not empty, ascending: upper bound in µs, and count.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        self.0
            .iter()
            .map(|(&bucket, &count)| (Self::below(bucket), count))
    }

    /// How many in all.
    pub fn count(&self) -> u64 {
        self.0.values().sum()
    }

    /// Microseconds below which at least the part `part` (0 to 1) lies: at most an eighth above the
    /// true value. `None` when empty.
    pub fn below_us(&self, part: f64) -> Option<f64> {
        let wanted = as_f64(self.count()) * part;
        let mut seen = 0;
        self.0.iter().find_map(|(&bucket, &count)| {
            seen += count;
            (as_f64(seen) >= wanted).then(|| Self::below(bucket))
        })
    }

    fn below(bucket: u32) -> f64 {
        f64::from(bucket / 8).exp2() * (1.0 + f64::from(bucket % 8 + 1) / 8.0)
    }
}

/// `key=value` words of a line.
struct Fields<'a>(&'a str);

impl<'a> Fields<'a> {
    fn text(&self, key: &str) -> Option<&'a str> {
        self.0
            .split(' ')
            .find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
    }

    fn get<T: std::str::FromStr>(&self, key: &str) -> Option<T> {
        self.text(key)?.parse().ok()
    }

    fn latency(&self, accesses: &str) -> Option<Latency> {
        Some(Latency {
            accesses: self.get(accesses)?,
            slow: self.get("slow")?,
            mean_us: self.get("mean_us")?,
            max_us: self.get("max_us")?,
            slow_mean_us: self.get("slow_mean_us")?,
            histogram: Histogram::parse(self.text("hist")?)?,
        })
    }
}

impl Report {
    /// Reads a line; one that is not whole is [`Report::Other`].
    pub fn parse(line: &str) -> Self {
        Self::try_parse(line).unwrap_or(Self::Other)
    }

    fn try_parse(line: &str) -> Option<Self> {
        let (kind, rest) = line.split_once(':')?;
        let rest = rest.trim_start();
        let fields = Fields(rest);
        let ok = match rest.split(' ').next() {
            Some("ok") => Some(true),
            Some("BAD") => Some(false),
            _ => None,
        };
        Some(match kind {
            "ready" => Self::Ready(Ready {
                workload: fields.text("workload")?.to_owned(),
                pages: fields.get("pages")?,
                threads: fields.get("threads")?,
                cpus: fields.get("cpus")?,
                uptime: fields.get("uptime")?,
            }),
            "dirty" => Self::Dirty(Dirty {
                ok: ok?,
                t: fields.get("t")?,
                span_ms: fields.get("span_ms")?,
                latency: fields.latency("accesses")?,
            }),
            "verify" => Self::Verify(Verify {
                ok: ok?,
                t: fields.get("t")?,
                span_ms: fields.get("span_ms")?,
                pages: fields.get("pages")?,
                generation: fields.get("generation")?,
                bad: fields.get("bad")?,
                latency: fields.latency("checks")?,
            }),
            "idle" => Self::Idle(Idle {
                t: fields.get("t")?,
                beat: fields.get("beat")?,
            }),
            "serve" => Self::Serve(Serve {
                t: fields.get("t")?,
                open: fields.get("open")?,
                lines: fields.get("lines")?,
            }),
            "disk" => Self::Disk(DiskWork {
                ok: ok?,
                t: fields.get("t")?,
                span_ms: fields.get("span_ms")?,
                reads: fields.get("reads")?,
                writes: fields.get("writes")?,
                read_kib: fields.get("read_kib")?,
                written_kib: fields.get("written_kib")?,
                files: fields.get("files")?,
                passes: fields.get("passes")?,
            }),
            "scan" => Self::Scan(Scan {
                ok: ok?,
                t: fields.get("t")?,
                span_ms: fields.get("span_ms")?,
                latency: fields.latency("accesses")?,
            }),
            "scanned" => Self::Scanned(Scanned {
                ok: ok?,
                pages: fields.get("pages")?,
                bad: fields.get("bad")?,
                ms: fields.get("ms")?,
            }),
            "slow" => Self::Slow(Slow {
                count: fields.get("count")?,
                sum_us: fields.get("sum_us")?,
                fine: FineHistogram(Histogram::parse(fields.text("fine")?)?.0),
            }),
            "verdict" => Self::Verdict(Verdict {
                ok: ok?,
                pages: fields.get("pages")?,
                bad: fields.get("bad")?,
                disk_pages: fields.get("disk_pages")?,
            }),
            "BAD" => Self::Bad(rest.to_owned()),
            "failed" => Self::Failed(rest.to_owned()),
            "stopped" => Self::Stopped,
            _ => return None,
        })
    }
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
