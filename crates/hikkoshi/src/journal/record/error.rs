//! Why a journal cannot be decoded or encoded.

use thiserror::Error;

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
        "the journal has version {found}, and this hikkoshi reads version {readable}: resume the migration \
         with the hikkoshi that began it"
    )]
    Version {
        /// Its version.
        found: u32,
        /// The versions that are read.
        readable: String,
    },
    /// It belongs to the other side.
    #[error("this is the journal of a {found}; 'hikkoshi {command} --resume' reads it")]
    Side {
        /// Its side.
        found: &'static str,
        /// The command for that side.
        command: &'static str,
    },
    /// It has a path that is not UTF-8.
    #[error("a journal cannot hold this")]
    Encode(#[source] serde_json::Error),
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
