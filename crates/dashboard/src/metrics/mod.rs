//! `/metrics`: what is known, in Prometheus' text format.
//!
//! The text is written by hand. The crates for it keep the values themselves, in registries that
//! are updated where something happens; here all values are in recordings, and a histogram comes as
//! counts. The crate of the Prometheus project (`prometheus-client`) writes OpenMetrics only, whose
//! counters `promtool check metrics` refuses.

mod families;
mod family;
mod samples;
mod text;

use std::cmp::Reverse;
use std::collections::BTreeSet;

use hikkoshi_account::State;
use hikkoshi_status::Recording;

use crate::follow::{Known, View};

pub use families::FAMILIES;
pub use family::{Family, Kind};

/// The format, for `Content-Type`.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The most migrations with metrics of their own: those that have not ended, then the newest
/// others. As many as `hikkoshi daemon` takes guests by default.
const MAX_MIGRATIONS: usize = 64;

/// A migration on one side.
#[derive(Debug)]
struct Migration<'a> {
    known: &'a Known,
    recording: &'a Recording,
    state: Option<&'a State>,
}

/// The metrics of all that is known.
pub(crate) fn metrics(view: &View<'_>) -> String {
    let migrations = shown(view);
    let mut out = text::Exposition::default();
    for family in FAMILIES {
        out.family(family);
        (family.write)(&mut out, view, &migrations);
    }
    out.into_text()
}

/// The migrations with metrics. Several engines can have taken part in one on the same side, one
/// after another: the newest of these has metrics, to which those before it are joined.
fn shown<'a>(view: &View<'a>) -> Vec<Migration<'a>> {
    let mut all: Vec<Migration<'a>> = view
        .entries
        .values()
        .filter_map(|known| {
            let recording = known.short()?;
            let state = recording.state.as_ref();
            Some(Migration {
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

impl Migration<'_> {
    fn id(&self) -> String {
        text::bounded(&self.recording.migration.id)
    }

    fn side(&self) -> &'static str {
        self.recording.migration.side.name()
    }
}

#[cfg(test)]
mod tests;
