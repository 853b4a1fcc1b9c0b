//! The output: one line for each check, and the verdict at the end.

use crate::say;
use core::fmt::Display;

/// Counts the checks that passed and failed.
#[derive(Debug, Default)]
pub struct Report {
    held: u32,
    failed: u32,
}

impl Report {
    /// Prints what is checked next.
    pub fn part(&self, what: impl Display) {
        say!("--- {what}");
    }

    /// Reports one check.
    pub fn check(&mut self, what: impl Display, holds: bool) {
        if holds {
            self.held += 1;
            say!("ok   {what}");
        } else {
            self.failed += 1;
            say!("FAIL {what}");
        }
    }

    /// Reports one check of a value: on failure the line has both values.
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

    /// Reports behaviour of the processor that differs from the SDM without affecting a check.
    pub fn note(&self, what: impl Display) {
        say!("note {what}");
    }

    /// Reports a measured number, which is not checked.
    pub fn figure(&self, what: impl Display) {
        say!("figure {what}");
    }

    /// Prints the last line.
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
