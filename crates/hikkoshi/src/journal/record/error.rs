//! Why a journal cannot be decoded or encoded.

use std::path::PathBuf;

use hikkoshi_link::AddressError;
use thiserror::Error;

use super::readable;

/// A journal could not be converted from or to its stored form.
#[derive(Debug, Error)]
pub(crate) enum RecordError {
    /// It is not JSON.
    #[error("the journal is damaged")]
    Json(#[source] serde_json::Error),
    /// It is not what its version says: it has an unknown field, for example.
    #[error("the journal is damaged, or a newer hikkoshi wrote it")]
    Content(#[source] serde_json::Error),
    /// It has no version.
    #[error("not a journal of hikkoshi: it has no version")]
    NotAJournal,
    /// It has a version that this program does not know.
    #[error(
        "the journal has version {found}, and this hikkoshi reads version {}: resume the migration \
         with the hikkoshi that began it",
        readable()
    )]
    Version {
        /// Its version.
        found: u32,
    },
    /// It belongs to the other side.
    #[error("this is the journal of a {found}; 'hikkoshi {command} --resume' reads it")]
    Side {
        /// Its side.
        found: &'static str,
        /// The command for that side.
        command: &'static str,
    },
    /// A path that JSON cannot hold.
    #[error("the path {} is not UTF-8, so a journal cannot hold it", .0.display())]
    Path(PathBuf),
    /// It does not say where the monitor is, or says it twice.
    #[error("the journal is damaged: it names not one monitor of QEMU")]
    Monitor,
    /// The migration's number.
    #[error("the migration's number '{0}' does not have 32 hexadecimal digits")]
    MigrationId(String),
    /// The address of the destination.
    #[error("the address in the journal")]
    Address(#[from] AddressError),
}

impl From<serde_json::Error> for RecordError {
    fn from(error: serde_json::Error) -> Self {
        if error.is_data() {
            Self::Content(error)
        } else {
            Self::Json(error)
        }
    }
}
