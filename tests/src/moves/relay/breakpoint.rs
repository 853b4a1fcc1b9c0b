//! A point of a migration: before or after a message is passed on.

use super::message::MessageKind;
use std::fmt;

/// The position relative to the message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum When {
    /// The message was received, but is not passed on yet.
    Before,
    /// The message was passed on; nothing after it is, nor an answer to it.
    After,
}

/// A point of a migration.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Breakpoint {
    /// Before or after the message.
    pub when: When,
    /// The kind of the message.
    pub kind: MessageKind,
    /// The number of the message among those of its kind, from 1 on.
    pub nth: u32,
}

impl Breakpoint {
    /// Right before the first message of this kind is passed on.
    pub fn before(kind: MessageKind) -> Self {
        let when = When::Before;
        Self { when, kind, nth: 1 }
    }

    /// Right after the first message of this kind is passed on.
    pub fn after(kind: MessageKind) -> Self {
        let when = When::After;
        Self { when, kind, nth: 1 }
    }

    /// The `nth` message of its kind instead of the first.
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
