//! Lines on standard output that the test runner does not capture.

use std::io::Write;

/// Tells a line, with the test's name, past the test harness's capture: what was moved and how it
/// went is of interest when all is well, too.
pub fn log(text: impl AsRef<str>) {
    let thread = std::thread::current();
    let line = format!("    {}: {}\n", thread.name().unwrap_or("?"), text.as_ref());
    let _ = std::io::stdout().write_all(line.as_bytes());
}
