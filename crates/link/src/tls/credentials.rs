//! What each side saves to continue its migration after a restart.

use serde::{Deserialize, Serialize};

use crate::tls::certificate_files::Files;
use crate::tls::identity::Identity;
use crate::tls::invitation::{Fingerprint, Proof, Secret};

/// What a source saves, so that it and the same destination authenticate each other again: its key,
/// or the paths of its certificate files. A person who has the key can take the source's place in the
/// migration: write it with mode 0600, and remove it with the migration.
#[derive(Debug, Serialize, Deserialize)]
pub struct SourceCredentials(pub(crate) Source);

#[derive(Serialize, Deserialize)]
pub(crate) enum Source {
    Invited {
        key: Box<Identity>,
        destination: Fingerprint,
        proof: Proof,
    },
    Certified {
        files: Files,
        host: String,
    },
}

/// What a destination saves, for the same purpose.
#[derive(Debug, Serialize, Deserialize)]
pub struct DestinationCredentials(pub(crate) Destination);

#[derive(Serialize, Deserialize)]
pub(crate) enum Destination {
    Inviting {
        key: Box<Identity>,
        secret: Secret,
        /// The source of the migration under way.
        source: Option<Fingerprint>,
    },
    Certified {
        files: Files,
    },
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Source");
        match self {
            Self::Invited {
                key, destination, ..
            } => shown.field("key", key).field("destination", destination),
            Self::Certified { files, host } => shown.field("files", files).field("host", host),
        };
        shown.finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Destination {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Destination");
        match self {
            Self::Inviting { key, source, .. } => shown.field("key", key).field("source", source),
            Self::Certified { files } => shown.field("files", files),
        };
        shown.finish_non_exhaustive()
    }
}
