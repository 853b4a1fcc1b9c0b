//! The table of all interruptions, for docs/reliability.md.

use super::random::seed;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Mutex;
use std::time::Duration;

/// Encryption of the links: plain text, or TLS.
pub(super) const LINKS: [&str; 2] = ["plain", "TLS"];

/// One interruption, and its effects.
#[derive(Clone, Debug)]
pub(super) struct Interruption {
    /// What was done.
    pub(super) how: String,
    /// Encryption of the links: plain text, or TLS.
    pub(super) links: &'static str,
    /// The fraction of the pages that had arrived.
    pub(super) at: f64,
    /// Time until both engines worked together again.
    pub(super) outage: Duration,
    /// The longest time that the guest waited, by its own clock, until it made progress again.
    pub(super) waited: Duration,
}

/// The interruptions of all drills of this process.
pub(super) static DONE: Mutex<BTreeMap<&'static str, Vec<Interruption>>> =
    Mutex::new(BTreeMap::new());

pub(super) fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn median_and_max(times: impl Iterator<Item = Duration>) -> (f64, f64) {
    let mut times: Vec<_> = times.map(ms).collect();
    times.sort_by(f64::total_cmp);
    let median = times.get(times.len() / 2).copied().unwrap_or(0.0);
    (median, times.last().copied().unwrap_or(0.0))
}

/// The table, followed by each interruption.
pub(super) fn render(all: &BTreeMap<&str, Vec<Interruption>>) -> String {
    let mut text = format!("HIKKOSHI_SEED={}\n\n", seed());
    // Writing to a String cannot fail.
    text.push_str(
        "| what was done | links | times | lost | outage, median | max | guest waited, median | \
         max |\n\
         |---|---|--:|--:|--:|--:|--:|--:|\n",
    );
    let rows = all.iter().flat_map(|row| LINKS.map(|links| (row, links)));
    for ((what, done), links) in rows {
        let done = done.iter().filter(|one| one.links == links);
        let outage = median_and_max(done.clone().map(|one| one.outage));
        let waited = median_and_max(done.clone().map(|one| one.waited));
        let _ = writeln!(
            text,
            "| {what} | {links} | {} | nothing | {:.0} ms | {:.0} ms | {:.0} ms | {:.0} ms |",
            done.count(),
            outage.0,
            outage.1,
            waited.0,
            waited.1
        );
    }
    text.push_str(
        "\n| what | links | how | pages arrived | outage | guest waited |\n\
         |---|---|---|--:|--:|--:|\n",
    );
    for (what, done) in all {
        for one in done {
            let _ = writeln!(
                text,
                "| {what} | {} | {} | {:.0} % | {:.0} ms | {:.0} ms |",
                one.links,
                one.how,
                one.at * 100.0,
                ms(one.outage),
                ms(one.waited)
            );
        }
    }
    text
}
