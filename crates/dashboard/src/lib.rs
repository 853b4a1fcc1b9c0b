//! The dashboard's web page, and the report of ended migrations.
//!
//! # Model
//!
//! Both show the same **views** (`web/js/views/`) of the same data, [`Recording`]s of
//! `hikkoshi-status`:
//!
//! - The live page asks the server for `events`, a stream of Server-Sent Events, and applies each
//!   record to the recording that it keeps.
//! - A [`report()`] is one file with everything in it: the page, its scripts and styles, and the
//!   recordings.
//!
//! Neither fetches anything from another host, and their content security policies forbid it. All
//! text of a recording is untrusted: guest names, messages, names of RAM blocks. Scripts set it only
//! as the text of an element, and the report escapes it.
//!
//! | folder or file | holds |
//! |---|---|
//! | `web/` | the page: HTML, styles and scripts, used as they are, without a build step |
//! | `assets.rs` | the files of `web/`, in this program |
//! | `report/` | the report of one or several migrations |
//!
//! [`Recording`]: hikkoshi_status::Recording

mod assets;
mod report;

pub use assets::{Asset, CONTENT_SECURITY_POLICY, asset};
pub use report::{recordings_in, report, report_policy};
