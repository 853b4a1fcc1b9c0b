//! The outcome of a row.

use crate::JsonReport;
use std::any::Any;
use std::fmt;

/// The outcome of a row.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The guest was moved, and every check succeeded.
    Moved(Vec<Trip>),
    /// It was refused, as expected.
    Refused,
    /// It cannot be tested on this host.
    NotTested(&'static str),
    /// A check failed.
    Failed(String),
}

/// One move.
#[derive(Debug)]
pub(super) struct Trip {
    pub(super) mode: &'static str,
    pub(super) downtime_ms: f64,
}

impl Trip {
    pub(super) fn new(mode: &'static str, report: &JsonReport) -> Self {
        Self {
            mode,
            downtime_ms: report.downtime_ms.expect("it was not resumed"),
        }
    }
}

impl Outcome {
    /// From the message of a panic.
    pub(super) fn failed(panic: &(dyn Any + Send)) -> Self {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied());
        Self::Failed(text.unwrap_or("no message").to_owned())
    }

    pub(super) fn is_failure(&self) -> bool {
        matches!(self, Self::Failed(_))
    }

    /// The downtime of the trip by that mode.
    pub(super) fn downtime_ms(&self, mode: &str) -> Option<f64> {
        match self {
            Self::Moved(trips) => {
                let trip = trips.iter().find(|trip| trip.mode == mode);
                trip.map(|trip| trip.downtime_ms)
            }
            _ => None,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Moved(_) => f.write_str("moved"),
            Self::Refused => f.write_str("refused"),
            Self::NotTested(why) => write!(f, "not tested: {why}"),
            Self::Failed(why) => {
                let line = why.lines().next().unwrap_or_default();
                // A bar would end the table's cell.
                let short: String = line.chars().take(120).collect();
                write!(f, "**FAILED**: {}", short.replace('|', "/"))
            }
        }
    }
}
