//! A run as one line of text.

use std::fmt;

use super::run::Run;
use crate::meter::Span;

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<36}", self.label)?;
        if let Some(failure) = &self.failure {
            return write!(f, " FAILED: {failure}");
        }
        if self.called_off {
            write!(f, " cancelled, does not converge;")?;
        }
        if let Some(downtime) = self.downtime_ms {
            write!(f, " downtime {downtime:.1} ms")?;
        }
        if let Some(own) = self.own_downtime_ms {
            write!(f, " (own {own:.1})")?;
        }
        if let Some(total) = self.total_ms {
            write!(f, ", total {:.2} s", total / 1e3)?;
        }
        if let Some(accesses) = self
            .accesses
            .as_ref()
            .filter(|_| self.case.system.is_postcopy())
        {
            write!(
                f,
                ", {} faults of {:.0} µs, {:.0} accesses/s",
                accesses.slow,
                accesses.slow_mean_us,
                accesses.per_second.unwrap_or(0.0)
            )?;
        }
        if let Some(slow) = &self.slow {
            write!(f, ", p99 {:.0} µs", slow.p99_us.unwrap_or(0.0))?;
        }
        if let Some(rounds) = self.rounds {
            write!(f, ", {rounds} rounds")?;
        }
        if let Some(scan) = &self.scan {
            let (seconds, rate) = (scan.ms / 1e3, scan.pages_per_second());
            write!(
                f,
                " {seconds:.2} s, {rate:.0} pages/s, processor ran {:.2}",
                scan.ran
            )?;
        }
        if let Some(guest) = self.scan.as_ref().and_then(|scan| scan.guest.as_ref()) {
            let percent = |part: f64| part * 100.0;
            write!(
                f,
                ", tasks ran {:.0} %, idle {:.0} %, stalled {:.0} %, KVM {:.0} %, scheduler {:.0} %; \
                 {} asynchronous and {} synchronous faults of {:.0} µs, {} refaults",
                percent(guest.ran()),
                percent(guest.idle()),
                percent(guest.stalled()),
                percent(guest.in_kvm()),
                percent(guest.scheduler()),
                guest.asynchronous(),
                guest.synchronous(),
                guest.fault_us(),
                guest.refaults()
            )?;
            if let Some(kvm) = guest.kvm() {
                write!(
                    f,
                    "; by the kernel {} events and {} repeated faults",
                    kvm.not_present, kvm.repeated
                )?;
            }
        }
        if let Some(timeline) = &self.timeline {
            write!(f, ", {} faults with every step", timeline.faults)?;
        }
        if let Some(disk) = &self.disk {
            let mb = |rate: Option<f64>| rate.unwrap_or(0.0) / 1e6;
            write!(
                f,
                ", disk {:.1} then {:.1} MB/s, {} drains of {:.1} ms in all, {} bad pages",
                mb(disk.before),
                mb(disk.during),
                disk.drains.unwrap_or(0),
                disk.drains_ms.unwrap_or(0.0),
                disk.bad_pages
            )?;
        }
        if let Some(clients) = &self.clients {
            write!(
                f,
                ", longest gap: requests {}, datagrams {}; {} of {} datagrams lost, {} repeated",
                clients.request_gaps_ms,
                clients.datagram_gaps_ms,
                clients.lost,
                clients.datagrams,
                clients.repeated
            )?;
        }
        if let Some(web) = &self.web {
            for (phase, span) in [
                ("before", web.before),
                ("until the switchover", web.until_switch),
                ("until the end", web.until_end),
                ("after", web.after),
            ] {
                if let Some(span) = span {
                    let Span {
                        p50_ms,
                        p99_ms,
                        max_ms,
                        ..
                    } = span;
                    write!(f, "; {phase} {p50_ms:.0}/{p99_ms:.0}/{max_ms:.0} ms")?;
                }
            }
        }
        write!(f, ", others {:.2} cores", self.others_cores)
    }
}
