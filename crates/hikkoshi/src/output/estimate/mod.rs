//! The result of `hikkoshi estimate`.

mod estimated;
mod report;
mod text;

pub(crate) use estimated::{Estimated, EstimatedMode};
pub(crate) use report::{EstimateReport, predicted};
pub(crate) use text::readable;
