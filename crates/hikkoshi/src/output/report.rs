//! The result of a migration, for people.

use std::fmt::Write as _;
use std::time::Duration;

use hikkoshi_account::{
    Account, AsynchronousFaults, CollapseAccount, FaultKind, GuestState, LatencySummary, Outage,
    RequestStatistics,
};

use crate::output::units::{mib, seconds};

/// Threads whose page faults are printed; the JSON has all.
const FAULTING_SHOWN: usize = 8;

/// What an operator wants to know first.
pub(crate) fn summary(account: &Account) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let downtime = downtime(account.downtime_ms, account.likely_downtime_ms);
    let _ = writeln!(text, "  downtime     {downtime}");
    let total = account.total_ms / 1e3;
    let _ = writeln!(text, "  total        {total:.2} s, mode {}", account.mode);
    if account.is_resumed() {
        let _ = writeln!(
            text,
            "  resumed      the rest is what this engine has done and measured"
        );
    }
    text.push_str(&outages(&account.outages, account.is_resumed()));
    let owed = match account.guest_state {
        GuestState::Running | GuestState::Paused | GuestState::Unknown => {
            "none: all of the guest's memory is there"
        }
        GuestState::ShutDown => "none: the guest needs no memory any more",
    };
    let _ = writeln!(text, "  pages owed   {owed}");
    if let Some(frames) = account.frames.filter(|frames| frames.dropped > 0) {
        let lost = frames.dropped;
        let _ = writeln!(text, "  frames       {lost} for the paused guest were lost");
    }
    text.push_str(&latencies(&account.requests.request_latency_us));
    text.push_str(&not_counted(&account.requests));
    if let Some(collapse) = &account.collapse {
        text.push_str(&rebuilt(collapse));
    }
    text
}

/// The rest of the result: what was sent, and how long page requests took (`--verbose`).
pub(crate) fn details(account: &Account) -> String {
    let mut text = String::new();
    let pages = &account.pages;
    let bytes = &account.bytes;
    if account.rounds > 0 {
        let _ = writeln!(text, "  rounds       {}", account.rounds);
    }
    let row = |text: &mut String, name: &str, pages: u64, bytes: Option<u64>| {
        let bytes = bytes.map_or(String::new(), |b| format!("  {:>10}", mib(b)));
        let _ = writeln!(text, "  {name:<11} {pages:>9} pages{bytes}");
    };
    row(&mut text, "pre-copied", pages.precopy, Some(bytes.precopy));
    row(
        &mut text,
        "background",
        pages.background,
        Some(bytes.background),
    );
    row(&mut text, "urgent", pages.urgent, Some(bytes.urgent));
    row(&mut text, "zero", pages.zero, None);
    let _ = writeln!(text, "  device state {:>27}", mib(bytes.device_state));
    let compression = account.compression.unwrap_or_default();
    for (method, compressed) in compression.by_method() {
        let _ = writeln!(
            text,
            "  {method:<11} {:>28}, sent as {}",
            mib(compressed.content_bytes),
            mib(compressed.sent_bytes)
        );
    }
    if let Some(ms) = account.postcopy_ms {
        let _ = writeln!(
            text,
            "  post-copy    {:>23.2} s, with pages only the source had",
            ms / 1e3
        );
    }
    for disk in &account.disks {
        let _ = writeln!(
            text,
            "  disk {:<15} {:>19} copied",
            disk.name,
            mib(disk.copied_bytes)
        );
    }
    if let Some(private) = account.source_private_bytes {
        let _ = writeln!(
            text,
            "  private      {:>26} of the guest's memory, in the source's QEMU only",
            mib(private)
        );
    }
    if let Some(uses) = account.asynchronous_faults.and_then(asynchronous_faults) {
        let _ = writeln!(text, "  asynchronous page faults: {uses}");
    }
    if let Some(frames) = &account.frames {
        let _ = writeln!(
            text,
            "  frames       {} arrived during the switchover, {} delivered, {} lost",
            frames.kept, frames.delivered, frames.dropped
        );
    }
    text.push_str(&histogram(&account.requests.request_latency_us));
    text.push_str(&stages(&account.requests));
    text
}

/// How long the guest was paused, as far as this side knows.
fn downtime(most: Option<f64>, likely: Option<f64>) -> String {
    match (most, likely) {
        (Some(most), Some(likely)) => format!("about {likely:.1} ms, at most {most:.1} ms"),
        (Some(most), None) => format!("{most:.1} ms"),
        (None, Some(likely)) => format!("about {likely:.1} ms"),
        (None, None) => "not known: an engine was ended while the guest was paused".to_owned(),
    }
}

/// Whether the guest uses them, and what to change if not. Nothing for an emulated guest.
fn asynchronous_faults(uses: AsynchronousFaults) -> Option<&'static str> {
    match uses {
        AsynchronousFaults::NoKvm => None,
        AsynchronousFaults::Off => Some(
            "off: the processors do not have the flag kvm-asyncpf-int (hikkoshi check says how to \
             switch it on)",
        ),
        AsynchronousFaults::Unused => {
            Some("off: the processors have them, but the guest has not switched them on")
        }
        AsynchronousFaults::Used => Some("on: the guest has switched them on"),
        AsynchronousFaults::Unknown => Some("not known whether the guest has switched them on"),
    }
}

/// How long there were no links after the handover, from the last sign of the other side on: the
/// guest waited for each page that it needed meanwhile. Empty: there were links all the time. The
/// times of an engine that has `resumed` the migration are its own.
fn outages(outages: &[Outage], resumed: bool) -> String {
    // An engine ends without links only if it needs none any more.
    let ended = outages
        .iter()
        .filter_map(|outage| Some((outage.lasted_ms()?, outage)));
    let Some((longest, last)) = ended.clone().max_by_key(|(lasted, _)| *lasted) else {
        return String::new();
    };
    let total: u64 = ended.clone().map(|(lasted, _)| lasted).sum();
    let seconds = |ms| seconds(Duration::from_millis(ms));
    let (ms, start) = match (last.before_ms, resumed) {
        (before @ 1.., _) => (before, "before this engine's start"),
        (0, true) => (last.from_ms, "after this engine's start"),
        (0, false) => (last.from_ms, "after the start"),
    };
    let from = format!("{} {start}", seconds(ms));
    let text = match ended.count() {
        1 => format!("1, {} without links, {from}", seconds(total)),
        count => format!(
            "{count}, {} without links in all; the longest took {}, {from}",
            seconds(total),
            seconds(longest)
        ),
    };
    format!("  outages      {text}\n")
}

/// Requests that the latencies do not have. Empty: none.
fn not_counted(requests: &RequestStatistics) -> String {
    let name = match requests.request_latency_us.count {
        0 => "  requests     ",
        _ => "    ",
    };
    match requests.unmeasured_requests {
        0 => String::new(),
        count => format!(
            "{name}not counted: {count} requests made while too many others were outstanding\n"
        ),
    }
}

/// The stages of request latency, and the threads that waited.
fn stages(requests: &RequestStatistics) -> String {
    let mut text = String::new();
    let stages = &requests.request_stages_us;
    if stages.request_to_page.count > 0 {
        for (name, stage) in [
            ("sending", &stages.fault_to_request),
            ("until received", &stages.request_to_page),
            ("installing", &stages.page_to_installed),
        ] {
            let _ = writeln!(
                text,
                "    {name:<14} mean {:>8}, p50 {:>8}, p99 {:>8}, max {:>8}",
                micros(stage.mean),
                micros(stage.p50),
                micros(stage.p99),
                micros(stage.max)
            );
        }
    }
    if let Some(count @ 1..) = requests.requests_under_way {
        let _ = writeln!(
            text,
            "    {count} arrived when their pages had already been sent"
        );
    }
    if !requests.faults.is_empty() {
        let shown = requests.faults.iter().take(FAULTING_SHOWN).map(|faults| {
            let vcpu = match faults.kind {
                FaultKind::Vcpu(number) => format!(" (vCPU {number})"),
                FaultKind::Asynchronous | FaultKind::Other => String::new(),
            };
            format!("{}{vcpu} {}", faults.thread, faults.count)
        });
        let _ = write!(
            text,
            "  faults       {}",
            shown.collect::<Vec<_>>().join(", ")
        );
        match requests.faults.len().saturating_sub(FAULTING_SHOWN) {
            0 => text.push('\n'),
            more => {
                let _ = writeln!(text, " and {more} more threads");
            }
        }
    }
    if let count @ 1.. = requests.asynchronous_faults() {
        let _ = writeln!(text, "    of them by workers of the kernel: {count}");
    }
    text
}

fn rebuilt(collapse: &CollapseAccount) -> String {
    let mut text = format!(
        "  huge pages   {} of {} rebuilt in {:.2} s",
        collapse.rebuilt,
        collapse.tried,
        collapse.total_ms / 1e3
    );
    if let Some(why) = &collapse.stopped {
        let _ = write!(text, "; ended early: {why}");
    }
    text.push('\n');
    for failures in &collapse.failed {
        let _ = writeln!(
            text,
            "    {} not rebuilt: {}",
            failures.count, failures.reason
        );
    }
    text
}

fn latencies(latency: &LatencySummary) -> String {
    if latency.count == 0 {
        return String::new();
    }
    format!(
        "  requests     {}, from fault to installed page: mean {}, p50 {}, p99 {}, max {}\n",
        latency.count,
        micros(latency.mean),
        micros(latency.p50),
        micros(latency.p99),
        micros(latency.max)
    )
}

fn histogram(latency: &LatencySummary) -> String {
    let mut text = String::new();
    let most = latency.histogram.iter().map(|b| b.count).max().unwrap_or(1);
    for bucket in &latency.histogram {
        // At least a dot if the bucket is not empty.
        let width = usize::try_from(bucket.count * 40 / most.max(1)).unwrap_or(0);
        let bar = if bucket.count > 0 && width == 0 {
            ".".to_owned()
        } else {
            "#".repeat(width)
        };
        #[allow(clippy::cast_precision_loss)]
        let bound = micros(bucket.le_us as f64);
        let _ = writeln!(text, "    up to {bound:>8} {:>8} {bar}", bucket.count);
    }
    text
}

/// A time in µs, in a unit that fits.
fn micros(us: f64) -> String {
    if us < 1e3 {
        format!("{us:.0} µs")
    } else if us < 1e6 {
        format!("{:.2} ms", us / 1e3)
    } else {
        format!("{:.2} s", us / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hikkoshi_account::{CollapseFailures, ThreadFaults};
    use hikkoshi_engine::report::{RequestLatencies, RequestTimeline};

    /// One that has everything.
    fn account() -> Account {
        serde_json::from_str(include_str!("../../../account/tests/account.json")).unwrap()
    }

    /// What an operator wants comes first, and numbers of pages only if they are asked for.
    #[test]
    fn the_summary_begins_with_the_downtime_and_what_is_owed() {
        let mut account = account();
        let names = |text: &str| {
            let lines = text.lines().filter(|line| !line.starts_with("    "));
            let names = lines.filter_map(|line| line.split_whitespace().next());
            names.map(str::to_owned).collect::<Vec<_>>()
        };
        let text = summary(&account);
        let first = ["downtime", "total", "pages"];
        let all = [
            "downtime", "total", "outages", "pages", "frames", "requests", "huge",
        ];
        assert_eq!(names(&text), all, "{text}");
        assert!(text.contains("pages owed   none: the guest needs no memory any more\n"));
        (account.frames, account.collapse) = (None, None);
        account.outages.clear();
        account.requests.request_latency_us.count = 0;
        account.requests.unmeasured_requests = 0;
        account.guest_state = GuestState::Running;
        account.likely_downtime_ms = None;
        account.total_ms = 1234.0;
        assert_eq!(
            summary(&account),
            "  downtime     2.5 ms\n  total        1.23 s, mode hybrid\n  pages owed   none: all of \
             the guest's memory is there\n"
        );
        let rest = names(&details(&account));
        assert!(
            rest.starts_with(&["rounds".to_owned(), "pre-copied".to_owned()]),
            "{rest:?}"
        );
        assert!(details(&account).contains(" 1.50 s, with pages only the source had\n"));
        assert!(
            !rest.iter().any(|name| first.contains(&name.as_str())),
            "{rest:?}"
        );
    }

    #[test]
    fn stages_and_threads_are_printed() {
        let latencies = RequestLatencies::default();
        latencies.record(&RequestTimeline {
            fault_read: 0,
            request_sent: 3_000,
            page_received: 1_503_000,
            installed: 1_515_000,
        });
        let faults = |number: u32| ThreadFaults {
            thread: format!("CPU {number}/KVM"),
            kind: FaultKind::Vcpu(number),
            count: 100,
        };
        let text = stages(&RequestStatistics {
            request_latency_us: latencies.total(),
            request_stages_us: latencies.stages(),
            unmeasured_requests: 2,
            faults: (0..10).map(faults).collect(),
            requests_under_way: Some(4),
            faults_before_running: None,
        });
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 5, "{text}");
        assert!(
            lines[0].starts_with("    sending        mean     3 µs"),
            "{text}"
        );
        assert!(lines[1].contains("mean  1.50 ms"), "{text}");
        assert!(lines[2].contains("mean    12 µs"), "{text}");
        assert!(
            lines[3].contains("4 arrived when their pages had already been sent"),
            "{text}"
        );
        assert!(
            lines[4].starts_with("  faults       CPU 0/KVM (vCPU 0) 100, "),
            "{text}"
        );
        assert!(
            lines[4].ends_with("CPU 7/KVM (vCPU 7) 100 and 2 more threads"),
            "{text}"
        );
        assert_eq!(stages(&RequestStatistics::default()), "");
    }

    /// Without `--verbose`, too: the longest wait may be one of them.
    #[test]
    fn the_summary_says_what_its_latencies_do_not_count() {
        let mut account = account();
        account.requests.unmeasured_requests = 2;
        let text = summary(&account);
        let mut lines = text
            .lines()
            .skip_while(|line| !line.starts_with("  requests"));
        let next = lines.nth(1).unwrap();
        assert!(next.starts_with("    not counted: 2 requests"), "{text}");
        assert!(!details(&account).contains("not counted"));
        account.requests.unmeasured_requests = 0;
        assert!(!summary(&account).contains("not counted"));
    }

    #[test]
    fn a_downtime_that_is_not_known_is_not_zero() {
        assert_eq!(
            downtime(Some(2.0), Some(1.5)),
            "about 1.5 ms, at most 2.0 ms"
        );
        assert_eq!(downtime(Some(0.0), None), "0.0 ms");
        assert!(downtime(None, None).starts_with("not known"));
    }

    #[test]
    fn outages_are_summed_up() {
        let outage = |from, to| Outage {
            from_ms: from,
            before_ms: 0,
            to_ms: Some(to),
            until_ms: None,
        };
        assert_eq!(outages(&[], false), "");
        assert_eq!(
            outages(&[outage(900, 10_630)], false),
            "  outages      1, 9.7 s without links, 0.9 s after the start\n"
        );
        // The total is that of all engines.
        assert_eq!(
            outages(&[outage(900, 10_630)], true),
            "  outages      1, 9.7 s without links, 0.9 s after this engine's start\n"
        );
        let before = Outage {
            before_ms: 2000,
            ..outage(0, 500)
        };
        assert_eq!(
            outages(&[before], true),
            "  outages      1, 2.5 s without links, 2.0 s before this engine's start\n"
        );
        let open = Outage {
            to_ms: None,
            ..outage(20_000, 0)
        };
        assert_eq!(
            outages(&[outage(0, 500), outage(900, 10_630), open], false),
            "  outages      2, 10.2 s without links in all; the longest took 9.7 s, 0.9 s after \
             the start\n"
        );
    }

    #[test]
    fn the_histogram_is_printed_if_verbose() {
        let all = RequestLatencies::default();
        for microseconds in [90, 110, 5_000] {
            all.record(&RequestTimeline {
                fault_read: 0,
                request_sent: 1_000,
                page_received: microseconds * 1_000,
                installed: microseconds * 1_000,
            });
        }
        let (short, long) = (latencies(&all.total()), histogram(&all.total()));
        assert_eq!(short.lines().count(), 1, "{short}");
        assert!(short.starts_with("  requests     3, from fault to installed page"));
        assert!(long.contains("up to"), "{long}");
    }

    #[test]
    fn failures_to_rebuild_are_printed() {
        let text = rebuilt(&CollapseAccount {
            tried: 9,
            rebuilt: 7,
            failed: vec![CollapseFailures {
                reason: "some pages were in use".into(),
                count: 2,
            }],
            stopped: Some("it was cancelled".into()),
            total_ms: 1234.0,
        });
        assert_eq!(
            text,
            "  huge pages   7 of 9 rebuilt in 1.23 s; ended early: it was cancelled\n    2 not \
             rebuilt: \
             some pages were in use\n"
        );
    }
}
