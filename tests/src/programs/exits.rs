//! The exits of a migration's engines, and assertions about them.

use crate::{Exit, JsonReport};

/// The exits of both engines.
#[derive(Debug)]
pub struct Exits {
    /// `hikkoshi migrate`.
    pub migrate: Exit,
    /// `hikkoshi receive`.
    pub receive: Exit,
    /// Their JSON reports, if they wrote any.
    pub json_reports: [Option<JsonReport>; 2],
}

impl Exits {
    /// Both exit codes, the source's first.
    pub fn codes(&self) -> [Option<i32>; 2] {
        [self.migrate.code, self.receive.code]
    }

    /// Asserts that the source exited with `code` and printed each of `parts`.
    ///
    /// # Panics
    /// When it did not.
    pub fn assert_source(&self, code: i32, parts: &[&str]) {
        self.migrate.assert(code, parts);
    }

    /// Asserts that the destination exited with `code` and printed each of `parts`.
    ///
    /// # Panics
    /// When it did not.
    pub fn assert_destination(&self, code: i32, parts: &[&str]) {
        self.receive.assert(code, parts);
    }
}

impl Exit {
    /// Asserts that it exited with `code` and printed each of `parts` on standard error.
    ///
    /// # Panics
    /// When it did not.
    pub fn assert(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        for part in parts {
            assert!(self.stderr.contains(part), "no {part:?} in {self:?}");
        }
        if code != 0 {
            assert!(
                !self.stderr.trim().is_empty(),
                "it failed without a message"
            );
        }
    }
}
