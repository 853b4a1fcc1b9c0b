//! A metric: its name, type and meaning, and what writes its values.

use std::fmt::{self, Display};

use super::Migration;
use super::text::Exposition;
use crate::follow::View;

/// The type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A number that only grows.
    Counter,
    /// A number.
    Gauge,
    /// Counts by size.
    Histogram,
}

impl Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        })
    }
}

/// A metric.
#[allow(missing_debug_implementations)] // It has a function.
pub struct Family {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// Its meaning.
    pub help: &'static str,
    pub(super) write: fn(&mut Exposition, &View<'_>, &[Migration<'_>]),
}

pub(super) const fn family(
    name: &'static str,
    kind: Kind,
    help: &'static str,
    write: fn(&mut Exposition, &View<'_>, &[Migration<'_>]),
) -> Family {
    Family {
        name,
        kind,
        help,
        write,
    }
}
