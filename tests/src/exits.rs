//! How the engines of a migration ended, and assertions about that.

use crate::{Exit, JsonReport};

/// How both engines ended.
#[derive(Debug)]
pub struct Exits {
    /// `hikkoshi migrate`.
    pub migrate: Exit,
    /// `hikkoshi receive`.
    pub receive: Exit,
    /// The accounts that they wrote, if any.
    pub accounts: [Option<JsonReport>; 2],
}

impl Exits {
    /// Both exit codes, the source's first.
    pub fn codes(&self) -> [Option<i32>; 2] {
        [self.migrate.code, self.receive.code]
    }

    /// Asserts that the source ended with `code` and said each of `parts`.
    ///
    /// # Panics
    /// When not.
    pub fn assert_source(&self, code: i32, parts: &[&str]) {
        self.migrate.assert(code, parts);
    }

    /// Asserts that the destination ended with `code` and said each of `parts`.
    ///
    /// # Panics
    /// When not.
    pub fn assert_destination(&self, code: i32, parts: &[&str]) {
        self.receive.assert(code, parts);
    }
}

impl Exit {
    /// Asserts that it ended with `code` and said each of `parts` on standard error.
    ///
    /// # Panics
    /// When not.
    pub fn assert(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        for part in parts {
            assert!(self.stderr.contains(part), "{part:?} is not in {self:?}");
        }
        if code != 0 {
            assert!(!self.stderr.trim().is_empty(), "it ended without a word");
        }
    }
}
