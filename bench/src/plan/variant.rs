//! hikkoshi with one of its policies switched off, or set otherwise than it chooses itself.

use serde::Serialize;
use std::fmt;

/// What is different from the defaults.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
pub enum Variant {
    /// Nothing.
    Plain,
    /// Pages that were dirtied often do not go first.
    NoHotFirst,
    /// The background does not move to the last urgent page.
    NoFollow,
    /// What is in flight unasked is not bounded.
    NoBound,
    /// No pages around the one asked for.
    NoReadAhead,
    /// Always 8 pages on either side of the one asked for.
    ReadAhead8,
    /// So many background links.
    Links(u8),
    /// Spins instead of sleeping.
    Poll,
    /// All threads are equal before the scheduler.
    NoPriority,
    /// Encrypted, by invitation.
    Tls,
    /// The guest's disks are not drained in pre-copy: loses memory.
    NoDrain,
}

impl Variant {
    /// Whether the links are encrypted.
    pub fn is_encrypted(self) -> bool {
        self == Self::Tls
    }

    /// What `hikkoshi migrate` is told.
    pub fn migrate_words(self) -> Vec<String> {
        let words: &[&str] = match self {
            Self::Plain | Self::Tls => &[],
            Self::NoHotFirst => &["--no-hot-first"],
            Self::NoFollow => &["--no-follow"],
            Self::NoBound => &["--no-bound"],
            Self::NoReadAhead => &["--read-ahead", "off"],
            Self::ReadAhead8 => &["--read-ahead", "8"],
            Self::Links(links) => return vec!["--links".to_owned(), links.to_string()],
            Self::Poll => &["--poll"],
            Self::NoPriority => &["--no-priority"],
            Self::NoDrain => &["--no-drain"],
        };
        words.iter().map(|&word| word.to_owned()).collect()
    }

    /// What `hikkoshi receive` is told.
    pub fn receive_words(self) -> &'static [&'static str] {
        match self {
            Self::Poll => &["--poll"],
            Self::NoPriority => &["--no-priority"],
            _ => &[],
        }
    }
}

impl fmt::Display for Variant {
    /// Its name in filters and tables.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain => f.write_str("plain"),
            Self::NoHotFirst => f.write_str("no-hot-first"),
            Self::NoFollow => f.write_str("no-follow"),
            Self::NoBound => f.write_str("no-bound"),
            Self::NoReadAhead => f.write_str("no-read-ahead"),
            Self::ReadAhead8 => f.write_str("read-ahead-8"),
            Self::Links(links) => write!(f, "links-{links}"),
            Self::Poll => f.write_str("poll"),
            Self::NoPriority => f.write_str("no-priority"),
            Self::Tls => f.write_str("tls"),
            Self::NoDrain => f.write_str("no-drain"),
        }
    }
}
