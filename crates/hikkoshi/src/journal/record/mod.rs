//! The stored form of journals.
//!
//! The types in this folder describe the files and are used for nothing else. Run-time types of
//! the engine, the QEMU adapter and the command line may change freely; a change of what is stored
//! needs a new version:
//!
//! | version | written by | differs by |
//! |---|---|---|
//! | 1, 2 | development versions, never released | `form` instead of `version`; they are refused |
//! | 3 | this version | |
//!
//! To add a version: raise [`VERSION`], add it to [`READABLE`], copy the changed records into a
//! module of the previous version, which then only reads, and keep files of the new version in
//! `tests/journals/`. `format_tests.rs` compares the kept files with what is written.
//!
//! Credentials are stored in the form that `hikkoshi_link::tls` gives to `SourceCredentials` and
//! `DestinationCredentials`: these types exist for the journal only.

mod engine;
mod error;
#[cfg(test)]
mod format_tests;
mod options;
mod qemu;
mod version3;

use serde::Deserialize;

pub(super) use error::RecordError;

use super::entry::{DestinationEntry, SourceEntry};

/// The version that is written. The Debian package has it and [`READABLE`]:
/// `packaging/debian/rules` reads both lines.
const VERSION: u32 = 3;

/// The versions that are read.
const READABLE: [u32; 1] = [3];

/// The versions that are read, for a message.
fn readable() -> String {
    READABLE.map(|version| version.to_string()).join(" or ")
}

/// The part of a journal that says how to read the rest.
#[derive(Deserialize)]
struct Header {
    #[serde(alias = "form")]
    version: Option<u32>,
}

fn version(text: &[u8]) -> Result<u32, RecordError> {
    let header: Header = serde_json::from_slice(text)?;
    header.version.ok_or(RecordError::NotAJournal)
}

/// Encodes a source's journal.
///
/// # Errors
/// See [`RecordError`].
pub(super) fn encode_source(entry: &SourceEntry) -> Result<Vec<u8>, RecordError> {
    version3::encode_source(entry)
}

/// Encodes a destination's journal.
///
/// # Errors
/// See [`RecordError`].
pub(super) fn encode_destination(entry: &DestinationEntry) -> Result<Vec<u8>, RecordError> {
    version3::encode_destination(entry)
}

/// Decodes a source's journal of any supported version.
///
/// # Errors
/// See [`RecordError`].
pub(super) fn decode_source(text: &[u8]) -> Result<SourceEntry, RecordError> {
    match version(text)? {
        VERSION => version3::decode_source(text),
        found => Err(RecordError::Version { found }),
    }
}

/// Decodes a destination's journal of any supported version.
///
/// # Errors
/// See [`RecordError`].
pub(super) fn decode_destination(text: &[u8]) -> Result<DestinationEntry, RecordError> {
    match version(text)? {
        VERSION => version3::decode_destination(text),
        found => Err(RecordError::Version { found }),
    }
}
