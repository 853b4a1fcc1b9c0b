//! The result of `hikkoshi estimate`.

mod report;
mod text;

pub(crate) use report::{EstimateReport, SpanReport};
pub(crate) use text::readable;
