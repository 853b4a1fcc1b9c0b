//! A metric: its name, type and meaning, and what writes its values.

use super::shown_migration::ShownMigration;
use super::text::{Exposition, MetricKind};
use crate::follow::View;

/// A metric.
#[allow(missing_debug_implementations)] // It has a function.
pub struct Family {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub kind: MetricKind,
    /// Its meaning.
    pub help: &'static str,
    pub(super) write: fn(&mut Exposition, &View<'_>, &[ShownMigration<'_>]),
}

pub(super) const fn family(
    name: &'static str,
    kind: MetricKind,
    help: &'static str,
    write: fn(&mut Exposition, &View<'_>, &[ShownMigration<'_>]),
) -> Family {
    Family {
        name,
        kind,
        help,
        write,
    }
}
