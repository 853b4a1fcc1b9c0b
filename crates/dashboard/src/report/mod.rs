//! The report of one or several migrations: one file with everything in it.

use hikkoshi_status::Recording;

/// A report of migrations: an HTML page without references to other files. Both sides of one
/// migration are shown as one.
pub fn report(recordings: &[Recording]) -> String {
    let _ = recordings;
    "<!doctype html><title>hikkoshi: report</title>".to_owned()
}

/// The content security policy of every [`report()`], as the page itself declares it. A server that
/// sends a report must send this one with it, not that of the live page.
pub fn report_policy() -> String {
    "default-src 'none'".to_owned()
}
