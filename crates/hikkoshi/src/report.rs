//! The account, for people and for programs.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use hikkoshi_engine::Account;
use hikkoshi_engine::stats::LatencySummary;

/// The account as a person wants to read it.
pub fn readable(account: &Account) -> String {
    let mut text = String::new();
    let pages = &account.pages;
    let bytes = &account.bytes;
    // Writing to a String cannot fail.
    let _ = writeln!(text, "  mode         {}", account.mode);
    let _ = writeln!(text, "  downtime     {:.1} ms", account.downtime_ms);
    let _ = writeln!(text, "  total        {:.2} s", account.total_ms / 1e3);
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
    text.push_str(&latencies(&account.requests.request_latency_us));
    text
}

fn latencies(latency: &LatencySummary) -> String {
    let mut text = String::new();
    if latency.count == 0 {
        return "  requests     none\n".into();
    }
    let _ = writeln!(
        text,
        "  requests     {}, from fault to installed page: mean {}, p50 {}, p99 {}, max {}",
        latency.count,
        micros(latency.mean),
        micros(latency.p50),
        micros(latency.p99),
        micros(latency.max)
    );
    let most = latency.histogram.iter().map(|b| b.count).max().unwrap_or(1);
    for bucket in &latency.histogram {
        // At least a dot for a bucket that is not empty.
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

/// A time in µs, in the unit that suits it.
fn micros(us: f64) -> String {
    if us < 1e3 {
        format!("{us:.0} µs")
    } else if us < 1e6 {
        format!("{:.2} ms", us / 1e3)
    } else {
        format!("{:.2} s", us / 1e6)
    }
}

/// Bytes in MiB.
#[allow(clippy::cast_precision_loss)]
pub fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// A duration to a tenth of a second.
pub fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// Writes the account as one JSON object; "-" is standard output.
pub fn write_json(account: &Account, path: &Path) -> io::Result<()> {
    let mut json = serde_json::to_vec(account).map_err(io::Error::other)?;
    json.push(b'\n');
    if path == Path::new("-") {
        io::stdout().write_all(&json)
    } else {
        std::fs::write(path, json)
    }
}
