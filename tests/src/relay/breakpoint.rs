//! A point of a migration: before or after a message is passed on.

use super::message::MessageKind;
use std::fmt;

/// Before or after it is passed on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum When {
    /// It came, and does not go further.
    Before,
    /// It has been passed on, nothing behind it; nor an answer to it.
    After,
}

/// A moment of a migration.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Breakpoint {
    /// Before or after.
    pub when: When,
    /// Which message.
    pub kind: MessageKind,
    /// The how manieth of its kind, from 1 on.
    pub nth: u32,
}

impl Breakpoint {
    /// Right before the first message of this kind is passed on.
    pub fn before(kind: MessageKind) -> Self {
        let when = When::Before;
        Self { when, kind, nth: 1 }
    }

    /// Right after the first message of this kind was passed on.
    pub fn after(kind: MessageKind) -> Self {
        let when = When::After;
        Self { when, kind, nth: 1 }
    }

    /// The `nth` of its kind instead of the first.
    #[must_use]
    pub fn nth(mut self, nth: u32) -> Self {
        self.nth = nth;
        self
    }
}

impl fmt::Display for Breakpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let when = match self.when {
            When::Before => "before",
            When::After => "after",
        };
        write!(f, "{when} {:?}", self.kind)?;
        if self.nth > 1 {
            write!(f, " {}", self.nth)?;
        }
        Ok(())
    }
}
