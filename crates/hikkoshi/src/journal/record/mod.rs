//! The stored form of journals: one JSON object.
//!
//! It has the members of [`SourceEntry`] or [`DestinationEntry`] as serde writes them, so a change
//! of a type below them (`hikkoshi_handover`'s records, what `hikkoshi_qemu` needs to reattach, the
//! resolved options, the credentials) changes the stored form. `format_tests.rs` notices that: it
//! compares the kept files in `tests/journals/` with what is written. The stored form has a
//! version, so that a program refuses a journal that it cannot read.
//!
//! There is one version. Programs of the same minor version read each other's journals: a changed
//! form gets a new [`VERSION`] and is added to [`READABLE`], a module of the previous form only
//! reads, and its kept files stay.

mod error;
#[cfg(test)]
mod format_tests;

use hikkoshi_account::Side;
use serde::Serialize;
use serde_json::{Map, Value};

pub(super) use error::RecordError;

use super::entry::{DestinationEntry, JournalEntry, SourceEntry};

/// The version that is written. The Debian package has it and [`READABLE`]:
/// `packaging/debian/rules` reads both lines.
const VERSION: u32 = 1;

/// The versions that are read.
const READABLE: [u32; 1] = [1];

/// The versions that are read, for a message.
fn readable() -> String {
    READABLE.map(|version| version.to_string()).join(" or ")
}

/// A journal's file.
#[derive(Serialize)]
struct File<'a, E> {
    version: u32,
    side: &'a str,
    #[serde(flatten)]
    entry: &'a E,
}

/// Encodes a journal.
///
/// # Errors
/// See [`RecordError`].
pub(super) fn encode<E: JournalEntry>(entry: &E) -> Result<Vec<u8>, RecordError> {
    let file = File {
        version: VERSION,
        side: E::SIDE,
        entry,
    };
    serde_json::to_vec_pretty(&file).map_err(RecordError::Encode)
}

/// Decodes a journal.
///
/// # Errors
/// See [`RecordError`].
pub(crate) fn decode<E: JournalEntry>(text: &[u8]) -> Result<E, RecordError> {
    let mut file: Map<String, Value> = serde_json::from_slice(text)?;
    let mut take = |member| file.remove(member).unwrap_or_default();
    match serde_json::from_value(take("version"))? {
        Some(VERSION) => {}
        Some(found) => {
            return Err(RecordError::Version {
                found,
                readable: readable(),
            });
        }
        None => return Err(RecordError::NotAJournal),
    }
    let (found, command) = match serde_json::from_value(take("side"))? {
        Side::Source => (SourceEntry::SIDE, SourceEntry::COMMAND),
        Side::Destination => (DestinationEntry::SIDE, DestinationEntry::COMMAND),
    };
    match found == E::SIDE {
        true => Ok(serde_json::from_value(file.into())?),
        false => Err(RecordError::Side { found, command }),
    }
}
