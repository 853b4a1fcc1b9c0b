//! `/metrics`: what is known, in Prometheus' text format.
//!
//! The text is written by hand. The crates for it keep the values themselves, in registries that
//! are updated where something happens; here all values are in recordings, and a histogram comes as
//! counts. The crate of the Prometheus project (`prometheus-client`) writes OpenMetrics only, whose
//! counters `promtool check metrics` refuses.

mod families;
mod family;
mod samples;
mod shown_migration;
mod text;

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::follow::View;

pub use families::FAMILIES;
pub use family::Family;
use shown_migration::ShownMigration;
pub use text::MetricKind;

/// The format, for `Content-Type`.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The most migrations with metrics of their own: those that have not ended, then the newest
/// others. As many as `hikkoshi daemon` takes guests by default.
const MAX_MIGRATIONS: usize = 64;

/// The metrics of all that is known.
pub(crate) fn metrics(view: &View<'_>) -> String {
    let migrations = shown(view);
    let mut out = text::Exposition::default();
    for family in FAMILIES {
        out.family(family.name, family.kind, family.help);
        (family.write)(&mut out, view, &migrations);
    }
    out.into_text()
}

/// The migrations with metrics. Several engines can have taken part in one on the same side, one
/// after another: the newest of these has metrics, to which those before it are joined.
fn shown<'a>(view: &View<'a>) -> Vec<ShownMigration<'a>> {
    let mut all: Vec<ShownMigration<'a>> = view
        .entries
        .values()
        .filter_map(|known| {
            let recording = known.short()?;
            let state = recording.state.as_ref();
            Some(ShownMigration {
                known,
                recording,
                state,
            })
        })
        .collect();
    all.sort_by_key(|it| Reverse(it.recording.engine_started_unix_ms()));
    let mut seen = BTreeSet::new();
    all.retain(|it| seen.insert((it.id(), it.side())));
    all.sort_by_key(|it| it.recording.end.is_some());
    all.truncate(MAX_MIGRATIONS);
    all
}

#[cfg(test)]
mod tests;
