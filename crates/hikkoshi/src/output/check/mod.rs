//! The result of `hikkoshi check`, for people and for programs (`docs/json.md`).

mod report;
mod text;

pub(crate) use self::report::CheckReport;
pub(crate) use self::text::readable;
