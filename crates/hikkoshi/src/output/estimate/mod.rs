//! The result of `hikkoshi estimate`.

mod estimated;
mod report;
mod text;

pub(crate) use estimated::{Estimated, EstimatedMode};
pub(crate) use report::{EstimateReport, SpanReport};
pub(crate) use text::readable;
