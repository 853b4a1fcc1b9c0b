//! What is measured in one run of a case.

mod display;
mod outcomes;
mod run;
#[cfg(test)]
mod test_run;
mod timeline;

pub(crate) use outcomes::{ClientsOutcome, ScanOutcome, WebOutcome};
#[cfg(test)]
pub(crate) use run::SlowAccesses;
pub(crate) use run::{Cost, Run, Series};
#[cfg(test)]
pub(crate) use test_run::{test_report, test_run};
pub(crate) use timeline::{FaultTimeline, Place, Step};
