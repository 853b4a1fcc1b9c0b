//! Failures that a second run must not hide.

use std::fmt::Display;

/// Prints what is wrong with a guest or an engine to the test's output. CI runs a failed test with
/// real guests again, because it may depend on the machine's load, but not if its output has such a
/// line (`.ci/retry.sh`): a wrong page, a guest that ran twice and a crash do not depend on it.
#[allow(clippy::print_stderr)] // The test runner captures it, and prints it if the test fails.
pub fn never_retried(what: impl Display) {
    eprintln!("NEVER RETRIED: {what}");
}
