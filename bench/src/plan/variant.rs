//! hikkoshi with one policy disabled, or set to another value than the default.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The difference from the defaults.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Deserialize, Serialize)]
pub(crate) enum Variant {
    /// None.
    Plain,
    /// Does not send frequently dirtied pages first.
    NoHotFirst,
    /// Does not limit background bytes in flight.
    NoInFlightLimit,
    /// Sends no pages around a requested page.
    NoReadAhead,
    /// Always sends 8 pages on either side of a requested page.
    ReadAhead8,
    /// This many background links.
    Links(u8),
    /// Polls instead of sleeping.
    Poll,
    /// All threads have the same scheduling priority.
    NoPriority,
    /// Encrypted, by invitation.
    Tls,
    /// Never compresses.
    CompressOff,
    /// Does not drain the guest's disks in pre-copy, so memory is lost.
    NoDrain,
    /// Sends no pages around a requested page, and logs the times of each request.
    Traced,
}

impl Variant {
    /// Whether the links are encrypted.
    pub(crate) fn is_encrypted(self) -> bool {
        self == Self::Tls
    }

    /// The options for `hikkoshi migrate`.
    pub(crate) fn migrate_words(self) -> Vec<String> {
        let words: &[&str] = match self {
            Self::Plain | Self::Tls => &[],
            Self::NoHotFirst => &["--no-hot-first"],
            Self::NoInFlightLimit => &["--no-in-flight-limit"],
            Self::NoReadAhead | Self::Traced => &["--read-ahead", "off"],
            Self::ReadAhead8 => &["--read-ahead", "8"],
            Self::Links(links) => return vec!["--links".to_owned(), links.to_string()],
            Self::Poll => &["--poll"],
            Self::NoPriority => &["--no-priority"],
            Self::CompressOff => &["--compress", "off"],
            Self::NoDrain => &["--no-drain"],
        };
        words.iter().map(|&word| word.to_owned()).collect()
    }

    /// What `HIKKOSHI_LOG` selects, if it is set.
    pub(crate) fn log(self) -> Option<&'static str> {
        (self == Self::Traced).then_some("hikkoshi_engine=trace")
    }

    /// The options for `hikkoshi receive`.
    pub(crate) fn receive_words(self) -> &'static [&'static str] {
        match self {
            Self::Poll => &["--poll"],
            Self::NoPriority => &["--no-priority"],
            _ => &[],
        }
    }
}

impl fmt::Display for Variant {
    /// The name in filters and tables.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain => f.write_str("plain"),
            Self::NoHotFirst => f.write_str("no-hot-first"),
            Self::NoInFlightLimit => f.write_str("no-in-flight-limit"),
            Self::NoReadAhead => f.write_str("no-read-ahead"),
            Self::ReadAhead8 => f.write_str("read-ahead-8"),
            Self::Links(links) => write!(f, "links-{links}"),
            Self::Poll => f.write_str("poll"),
            Self::NoPriority => f.write_str("no-priority"),
            Self::Tls => f.write_str("tls"),
            Self::CompressOff => f.write_str("compress-off"),
            Self::NoDrain => f.write_str("no-drain"),
            Self::Traced => f.write_str("traced"),
        }
    }
}
