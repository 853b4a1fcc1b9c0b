//! What each side saves to continue its migration after a restart.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::certificates::{Certificates, CertificatesError};
use super::config::{TlsClient, TlsServer};
use super::identity::Identity;
use super::invitation::{Fingerprint, Proof, Secret};

/// The files of the authorities' certificates and of this side's own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Files {
    pub(super) ca: PathBuf,
    pub(super) cert: PathBuf,
    pub(super) key: PathBuf,
}

/// What a source saves, so that it and the same destination authenticate each other again: its key,
/// or the paths of its certificate files. A person who has the key can take the source's place in the
/// migration: write it with mode 0600, and remove it with the migration.
#[derive(Debug, Serialize, Deserialize)]
pub struct SourceCredentials(pub(super) Source);

#[derive(Serialize, Deserialize)]
pub(super) enum Source {
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
pub struct DestinationCredentials(pub(super) Destination);

#[derive(Serialize, Deserialize)]
pub(super) enum Destination {
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

impl SourceCredentials {
    /// How the links of the migration are protected after a restart.
    ///
    /// # Errors
    /// When a certificate's file is gone or cannot be used any more.
    pub fn client(self) -> Result<TlsClient, CertificatesError> {
        match self.0 {
            Source::Invited {
                key,
                destination,
                proof,
            } => TlsClient::with(*key, destination, proof),
            Source::Certified { files, host } => {
                let read = Certificates::read(&files.ca, &files.cert, &files.key)?;
                TlsClient::certified(read, &host)
            }
        }
    }
}

impl DestinationCredentials {
    /// How the links of the migration are protected after a restart.
    ///
    /// # Errors
    /// When a certificate's file is gone or cannot be used any more.
    pub fn server(self) -> Result<TlsServer, CertificatesError> {
        match self.0 {
            Destination::Inviting {
                key,
                secret,
                source,
            } => TlsServer::with(*key, secret, source),
            Destination::Certified { files } => {
                let read = Certificates::read(&files.ca, &files.cert, &files.key)?;
                TlsServer::certified(read)
            }
        }
    }
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
