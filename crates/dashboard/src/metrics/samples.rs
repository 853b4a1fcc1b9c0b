//! Samples of several migrations, from their states.

use std::collections::BTreeSet;

use hikkoshi_account::{Compressed, DiskCopy, LatencySummary, Side, State};

use super::shown_migration::ShownMigration;
use super::text::{Exposition, bounded, count_value};

/// Upper bounds of the latency's histogram, as powers of two in µs: 16 µs to 16.8 s. They are the
/// same for all migrations, so that histograms can be added.
const BOUNDS: std::ops::RangeInclusive<u32> = 4..=24;

/// The most disks of a migration that have metrics: as many as hikkoshi copies. A state comes from
/// another process.
const MAX_DISKS: usize = 32;

pub(super) fn is_destination(it: &ShownMigration<'_>) -> bool {
    it.recording.migration.side == Side::Destination
}

pub(super) fn milliseconds(time: u64) -> f64 {
    count_value(time) / 1e3
}

pub(super) fn flag(is_set: bool) -> f64 {
    f64::from(u8::from(is_set))
}

/// A sample for each migration that has a value.
pub(super) fn one(
    out: &mut Exposition,
    migrations: &[ShownMigration<'_>],
    value: impl Fn(&ShownMigration<'_>) -> Option<f64>,
) {
    for it in migrations {
        if let Some(value) = value(it) {
            out.sample(&[("id", &*it.id()), ("side", it.side())], value);
        }
    }
}

/// A sample for each migration whose state has a value.
pub(super) fn of_state(
    out: &mut Exposition,
    migrations: &[ShownMigration<'_>],
    value: impl Fn(&State) -> Option<f64>,
) {
    one(out, migrations, |it| value(it.state?));
}

/// A sample for each disk that is copied, or was. If several have the same name, all but the first
/// have their number before it.
pub(super) fn of_disks(
    out: &mut Exposition,
    migrations: &[ShownMigration<'_>],
    value: impl Fn(&DiskCopy) -> f64,
) {
    for it in migrations {
        let disks = it.state.map_or(&[][..], |state| &state.disks);
        let mut names = BTreeSet::new();
        for (number, disk) in disks.iter().take(MAX_DISKS).enumerate() {
            let mut name = bounded(&disk.name);
            while !names.insert(name.clone()) {
                name = format!("{number} {name}");
            }
            labelled(out, it, "disk", &name, value(disk));
        }
    }
}

/// What [`of_state`] writes, of one side.
pub(super) fn of_side(
    out: &mut Exposition,
    migrations: &[ShownMigration<'_>],
    side: Side,
    value: impl Fn(&State) -> Option<f64>,
) {
    one(out, migrations, |it| {
        let is_of_side = it.recording.migration.side == side;
        value(it.state.filter(|_| is_of_side)?)
    });
}

pub(super) fn labelled(
    out: &mut Exposition,
    it: &ShownMigration<'_>,
    label: &str,
    content: &str,
    value: f64,
) {
    let labels = [("id", &*it.id()), ("side", it.side()), (label, content)];
    out.sample(&labels, value);
}

/// Several counts of each migration.
pub(super) fn by_kind(
    out: &mut Exposition,
    migrations: &[ShownMigration<'_>],
    counts: impl Fn(&State) -> Vec<(&'static str, u64)>,
) {
    for it in migrations {
        for (kind, count) in it.state.map(&counts).unwrap_or_default() {
            labelled(out, it, "kind", kind, count_value(count));
        }
    }
}

/// A count of each compression method that was used.
pub(super) fn of_compression(
    out: &mut Exposition,
    migrations: &[ShownMigration<'_>],
    count: impl Fn(&Compressed) -> u64,
) {
    for it in migrations {
        let compression = it.state.and_then(|state| state.compression);
        for (method, compressed) in compression.unwrap_or_default().by_method() {
            labelled(out, it, "method", method, count_value(count(&compressed)));
        }
    }
}

/// One of several names for each migration: 1 for this one, and 0 for the others.
pub(super) fn of_set(
    out: &mut Exposition,
    migrations: &[ShownMigration<'_>],
    label: &str,
    names: impl Fn(Side) -> Vec<&'static str>,
    present: impl Fn(&State) -> &str,
) {
    for it in migrations {
        let Some(state) = it.state else { continue };
        for name in names(it.recording.migration.side) {
            labelled(out, it, label, name, flag(name == present(state)));
        }
    }
}

/// The latency of page requests, with the bounds of [`BOUNDS`].
pub(super) fn latency(out: &mut Exposition, labels: &[(&str, &str)], requests: &LatencySummary) {
    let mut before = None;
    let buckets: Vec<(f64, u64)> = BOUNDS
        .map(|power| {
            let bound = 1_u64 << power;
            let within = |le_us: u64| le_us <= bound && before.is_none_or(|before| le_us > before);
            let counts = requests.histogram.iter();
            let counts = counts.filter(|bucket| within(bucket.le_us));
            let count = counts.fold(0_u64, |all, bucket| all.saturating_add(bucket.count));
            before = Some(bound);
            (count_value(bound) / 1e6, count)
        })
        .collect();
    let sum = requests.mean * count_value(requests.count) / 1e6;
    out.histogram(labels, &buckets, requests.count, sum);
}
