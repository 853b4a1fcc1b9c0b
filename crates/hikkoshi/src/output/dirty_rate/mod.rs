//! The result of `hikkoshi dirty-rate`.

mod report;
mod text;

pub(crate) use report::DirtyRateReport;
pub(crate) use text::readable;
