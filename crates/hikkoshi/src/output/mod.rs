//! What the program writes, and how it ends.

pub(crate) mod check;
pub(crate) mod colours;
pub(crate) mod columns;
pub(crate) mod dirty_rate;
pub(crate) mod estimate;
pub(crate) mod evacuate;
pub(crate) mod exit;
pub(crate) mod history;
pub(crate) mod line_format;
pub(crate) mod log;
pub(crate) mod progress;
mod progress_line;
pub(crate) mod reason;
pub(crate) mod report;
pub(crate) mod result_file;
pub(crate) mod status;
pub(crate) mod stderr;
pub(crate) mod streams;
pub(crate) mod units;
