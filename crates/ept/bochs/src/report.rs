//! What is checked, a line each, and the verdict at the end.

use crate::say;
use core::fmt::Display;

/// Counts what held and what did not.
#[derive(Debug, Default)]
pub struct Report {
    held: u32,
    failed: u32,
}

impl Report {
    /// Says what is checked next.
    pub fn part(&self, what: impl Display) {
        say!("--- {what}");
    }

    /// One check: its line, and whether it held.
    pub fn check(&mut self, what: impl Display, holds: bool) {
        if holds {
            self.held += 1;
            say!("ok   {what}");
        } else {
            self.failed += 1;
            say!("FAIL {what}");
        }
    }

    /// One check of a value: on failure the line has both.
    pub fn equal<T: PartialEq + core::fmt::Debug>(
        &mut self,
        what: impl Display,
        found: T,
        expected: T,
    ) {
        if found == expected {
            self.check(what, true);
        } else {
            self.check(
                format_args!("{what}: found {found:x?}, expected {expected:x?}"),
                false,
            );
        }
    }

    /// What was seen of the processor and is not as the SDM says, without harm to what is checked.
    pub fn note(&self, what: impl Display) {
        say!("note {what}");
    }

    /// A measured number; not checked.
    pub fn figure(&self, what: impl Display) {
        say!("figure {what}");
    }

    /// The last line.
    pub fn verdict(&self) {
        if self.failed == 0 && self.held > 0 {
            say!("verdict: passed, {} checks", self.held);
        } else {
            say!(
                "verdict: FAILED, {} of {} checks",
                self.failed,
                self.held + self.failed
            );
        }
    }
}
