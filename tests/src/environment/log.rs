//! Lines on standard output that the test runner does not capture.

use std::io::Write;

/// Prints a line with the test's name, not captured by the test runner: results are of interest for
/// successful tests, too.
pub fn log(text: impl AsRef<str>) {
    let thread = std::thread::current();
    let line = format!("    {}: {}\n", thread.name().unwrap_or("?"), text.as_ref());
    let _ = std::io::stdout().write_all(line.as_bytes());
}
