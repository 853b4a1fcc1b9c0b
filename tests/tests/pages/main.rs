//! The pages that show migrations, in a browser: the dashboard's live page and reports.
//!
//! The recordings are those of a model ([`hikkoshi_tests::recordings`]), so that a test knows every
//! number that a page must show. A small server in the test sends the live page's events.
//!
//! Screenshots are kept in `build/tests/screenshots`, or in the folder that `HIKKOSHI_SCREENSHOTS`
//! names.

#![allow(clippy::unwrap_used)] // a test's failure is the message

mod event_server;
mod feed;
mod live;
mod report;
mod resumed;
mod tables;
mod unknown;
mod update_cost;
mod usage;
