//! The plan and the result of `hikkoshi evacuate`.

mod plan;
mod plan_text;
mod result;

pub(crate) use plan::{is_whole, plan_report, refusal_text};
pub(crate) use plan_text::plan_text;
pub(crate) use result::{EndedGuest, Outcome, ResultReport, result_text, status_of};
