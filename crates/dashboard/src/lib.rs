//! The dashboard: a web page and metrics of the migrations on this host, and reports of ended ones.
//!
//! # Model
//!
//! A [`Server`] follows all migrations of a status folder (`hikkoshi-status`), and serves what it
//! knows: as a page that shows each change, as JSON, as metrics for Prometheus. It only reads. It
//! has no user and no password: it listens on loopback, unless the operator says otherwise.
//!
//! The page and the report show the same **views** (`web/js/views/`) of the same data,
//! [`Recording`]s of `hikkoshi-status`:
//!
//! - The live page asks the server for `events`, a stream of Server-Sent Events, and applies each
//!   record to the recording that it keeps.
//! - A [`report()`] is one file with everything in it: the page, its scripts and styles, and the
//!   recordings.
//!
//! Neither fetches anything from another host, and their content security policies forbid it. All
//! text of a recording is untrusted: guest names, messages, names of RAM blocks. Scripts set it
//! only as the text of an element, and the report escapes it.
//!
//! | folder or file | holds |
//! |---|---|
//! | `web/` | the page: HTML, styles and scripts, used as they are, without a build step |
//! | `assets.rs` | the files of `web/`, in this program |
//! | `follow/` | follows the status folder: sockets of running, files of ended migrations |
//! | `server/` | the HTTP server |
//! | `metrics/` | the metrics |
//! | `report/` | the report of one or several migrations |
//!
//! [`Recording`]: hikkoshi_status::Recording

mod assets;
#[cfg(test)]
#[path = "../tests/examples/mod.rs"]
mod examples;
mod follow;
mod metrics;
mod report;
mod server;

pub use assets::{Asset, CONTENT_SECURITY_POLICY, asset};
pub use metrics::{FAMILIES, Family, MetricKind};
pub use report::{evacuation_report, recordings_in, report, report_policy, served_report_policy};
pub use server::{
    AllowedHost, BindError, InvalidHost, InvalidListen, Limits, Listen, Options, RunError, Server,
};
