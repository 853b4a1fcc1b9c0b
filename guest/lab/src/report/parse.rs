//! Parsing a console line.

use super::latency::{FineHistogram, Histogram, Latency};
use super::{
    Clocks, Devices, Dirty, DiskWork, Fault, Faults, GuestReport, Idle, Processors, Ready, Runs,
    Scan, Scanned, Serve, Slow, Task, Totals, Used, Verdict, Verify,
};

/// The `key=value` words of a line.
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

    /// A value that may be `-`.
    fn optional<T: std::str::FromStr>(&self, key: &str) -> Option<Option<T>> {
        match self.text(key)? {
            "-" => Some(None),
            text => text.parse().ok().map(Some),
        }
    }

    /// Values with commas between them.
    fn list<T: std::str::FromStr>(&self, key: &str) -> Option<Vec<T>> {
        let values = self.text(key)?.split(',');
        values.map(|value| value.parse().ok()).collect()
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

impl GuestReport {
    /// Parses a line; an incomplete one is [`GuestReport::Other`].
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
                datagrams: fields.get("datagrams")?,
                missing: fields.get("missing")?,
                repeated: fields.get("repeated")?,
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
            "runs" => Self::Runs(Runs {
                run: fields.get("run")?,
                beats: fields.get("beats")?,
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
            "clocks" => Self::Clocks(Clocks {
                ticks: fields.get("ticks")?,
                ns: fields.get("ns")?,
                kvm_clock: fields.get::<u8>("kvm_clock")? == 1,
            }),
            "totals" => Self::Totals(Totals {
                async_faults: match fields.text("async_pf")? {
                    "on" => true,
                    "off" => false,
                    _ => return None,
                },
                not_present: fields.get("not_present")?,
                ready: fields.get("ready")?,
                broadcasts: fields.get("broadcasts")?,
                unmatched: fields.get("unmatched")?,
                synchronous: fields.get("synchronous")?,
                refaults: fields.get("refaults")?,
                waiting: fields.get("waiting")?,
            }),
            "task" => Self::Task(Task {
                number: fields.get("number")?,
                processor: fields.get("processor")?,
                accesses: fields.get("accesses")?,
                ran_ms: fields.get("ran_ms")?,
                queued_ms: fields.get("queued_ms")?,
                waited_ms: fields.get("waited_ms")?,
                faults: fields.get("faults")?,
            }),
            "fault" => Self::Fault(Fault {
                token: fields.get("token")?,
                not_present: fields.get("not_present")?,
                other: fields.get("other")?,
                ready: fields.get("ready")?,
                resumed: fields.get("resumed")?,
            }),
            "noted" => Self::Noted(fields.get("faults")?),
            "faults" => Self::Faults(Faults {
                t: fields.get("t")?,
                span_ms: fields.get("span_ms")?,
                not_present: fields.get("not_present")?,
                ready: fields.get("ready")?,
                synchronous: fields.get("synchronous")?,
                refaults: fields.get("refaults")?,
                waiting: fields.get("waiting")?,
                wait_mean_us: fields.get("wait_mean_us")?,
                wait_max_us: fields.get("wait_max_us")?,
                waits: Histogram::parse(fields.text("wait_hist")?)?,
            }),
            "processors" => Self::Processors(Processors {
                t: fields.get("t")?,
                span_ms: fields.get("span_ms")?,
                ran: fields.list("ran_ms")?,
                idle: fields.list("idle_ms")?,
                stalled: fields.list("stalled_ms")?,
                in_kvm: fields.list("kvm_ms")?,
                scheduler: fields.list("scheduler_ms")?,
            }),
            "devices" => Self::Devices(Devices {
                cpus: fields.get("cpus")?,
                memory_kib: fields.get("memory_kib")?,
                random: fields.optional("random")?,
                tpm_random: fields.optional("tpm_random")?,
                pcr: fields.optional("pcr")?,
                tablet: match fields.text("tablet")? {
                    "-" => None,
                    position => {
                        let (x, y) = position.split_once(',')?;
                        Some([x.parse().ok()?, y.parse().ok()?])
                    }
                },
                echoed: fields.optional("echoed")?,
                drawn: fields.optional("drawn")?,
            }),
            "freed" => Self::Freed(fields.get("pages")?),
            "used" => Self::Used(Used {
                pages: fields.get("pages")?,
                bad: fields.get("bad")?,
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
