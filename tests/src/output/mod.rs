//! What hikkoshi writes for programs and people: reports, recordings, pages.

pub(crate) mod json_report;
pub(crate) mod json_schema;
pub mod recordings;
#[cfg(test)]
mod released_schemas;
pub(crate) mod shown_page;
pub(crate) mod switchover_steps;
