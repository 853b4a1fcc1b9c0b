//! The stored form of journals.
//!
//! The types in this folder describe the files and are used for nothing else. Run-time types of
//! the engine, the QEMU adapter and the command line may change freely. The stored form has a
//! version, so that a program refuses a journal that it cannot read.
//!
//! There is one version, and before release 0.1.0 the form changes without a new one. From then on
//! programs of the same minor version read each other's journals: a changed form gets a new
//! [`VERSION`] and is added to [`READABLE`], a module of the previous form only reads, and its kept
//! files in `tests/journals/` stay. `format_tests.rs` compares the kept files with what is written.
//!
//! Credentials are stored in the form that `hikkoshi_link::tls` gives to `SourceCredentials` and
//! `DestinationCredentials`: these types exist for the journal only.

mod engine;
mod error;
mod file;
#[cfg(test)]
mod format_tests;
mod qemu;

use serde::Deserialize;

pub(super) use error::RecordError;

use super::entry::{DestinationEntry, SourceEntry};

/// The version that is written. The Debian package has it and [`READABLE`]:
/// `packaging/debian/rules` reads both lines.
const VERSION: u32 = 1;

/// The versions that are read.
const READABLE: [u32; 1] = [1];

/// The versions that are read, for a message.
fn readable() -> String {
    READABLE.map(|version| version.to_string()).join(" or ")
}

/// The part of a journal that says how to read the rest.
#[derive(Deserialize)]
struct Header {
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
    file::encode_source(entry)
}

/// Encodes a destination's journal.
///
/// # Errors
/// See [`RecordError`].
pub(super) fn encode_destination(entry: &DestinationEntry) -> Result<Vec<u8>, RecordError> {
    file::encode_destination(entry)
}

/// Decodes a source's journal.
///
/// # Errors
/// See [`RecordError`].
pub(super) fn decode_source(text: &[u8]) -> Result<SourceEntry, RecordError> {
    match version(text)? {
        VERSION => file::decode_source(text),
        found => Err(RecordError::Version { found }),
    }
}

/// Decodes a destination's journal.
///
/// # Errors
/// See [`RecordError`].
pub(super) fn decode_destination(text: &[u8]) -> Result<DestinationEntry, RecordError> {
    match version(text)? {
        VERSION => file::decode_destination(text),
        found => Err(RecordError::Version { found }),
    }
}
