//! The table of all interruptions, for docs/reliability.md.

use super::random::seed;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Mutex;
use std::time::Duration;

/// What links are: plain text, or TLS.
pub(super) const LINKS: [&str; 2] = ["plain", "TLS"];

/// One interruption, and what it was like.
#[derive(Clone, Debug)]
pub(super) struct Interruption {
    /// What was done.
    pub(super) how: String,
    /// What the links were: plain text, or TLS.
    pub(super) links: &'static str,
    /// The part of the pages that had arrived.
    pub(super) at: f64,
    /// Until both engines worked together again.
    pub(super) outage: Duration,
    /// The longest that the guest itself noticed, until it was well again.
    pub(super) waited: Duration,
}

/// What all drills of this process came to.
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

/// The table, and behind it each interruption.
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
