//! What each side saves to continue its migration after a restart, and its stored form.

use std::path::PathBuf;

use serde::{Deserialize, Serialize, Serializer};
use thiserror::Error;

use crate::tls::certificate_files::Files;
use crate::tls::fingerprint::Fingerprint;
use crate::tls::identity::Identity;
use crate::tls::invitation::{Proof, Secret};
use crate::tls::route::Route;

/// What a source saves, so that it and the same destination authenticate each other again: its key,
/// or the paths of its certificate files. A person who has the key can take the source's place in
/// the migration: write it with mode 0600, and remove it with the migration.
#[derive(Debug, Deserialize)]
#[serde(try_from = "SourceRecord")]
pub struct SourceCredentials(pub(crate) Source);

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
#[derive(Debug, Deserialize)]
#[serde(try_from = "DestinationRecord")]
pub struct DestinationCredentials(pub(crate) Destination);

impl DestinationCredentials {
    /// Where a front passes the connections of its source; `None` with certificates.
    pub fn route(&self) -> Option<Route> {
        match &self.0 {
            Destination::Inviting { key, .. } => Some(Route::to(key.fingerprint())),
            Destination::Certified { .. } => None,
        }
    }
}

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

/// [`Source`], as it is stored. Keys and secrets are text.
#[derive(Serialize, Deserialize)]
enum SourceRecord {
    Invited {
        key: String,
        destination: String,
        proof: String,
    },
    Certified {
        files: FilesRecord,
        host: String,
    },
}

/// [`Destination`], as it is stored.
#[derive(Serialize, Deserialize)]
enum DestinationRecord {
    Inviting {
        key: String,
        secret: String,
        source: Option<String>,
    },
    Certified {
        files: FilesRecord,
    },
}

/// [`Files`], as they are stored.
#[derive(Serialize, Deserialize)]
struct FilesRecord {
    ca: PathBuf,
    cert: PathBuf,
    key: PathBuf,
}

/// A stored key or secret cannot be read. The text is not repeated: it may be a secret.
#[derive(Debug, Error)]
#[error("a damaged {0}")]
struct Damaged(&'static str);

impl Serialize for SourceCredentials {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let record = match &self.0 {
            Source::Invited {
                key,
                destination,
                proof,
            } => SourceRecord::Invited {
                key: key.text(),
                destination: destination.text(),
                proof: proof.text(),
            },
            Source::Certified { files, host } => SourceRecord::Certified {
                files: files.into(),
                host: host.clone(),
            },
        };
        record.serialize(serializer)
    }
}

impl Serialize for DestinationCredentials {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let record = match &self.0 {
            Destination::Inviting {
                key,
                secret,
                source,
            } => DestinationRecord::Inviting {
                key: key.text(),
                secret: secret.text(),
                source: source.as_ref().map(Fingerprint::text),
            },
            Destination::Certified { files } => DestinationRecord::Certified {
                files: files.into(),
            },
        };
        record.serialize(serializer)
    }
}

impl TryFrom<SourceRecord> for SourceCredentials {
    type Error = Damaged;

    fn try_from(record: SourceRecord) -> Result<Self, Damaged> {
        Ok(Self(match record {
            SourceRecord::Invited {
                key,
                destination,
                proof,
            } => Source::Invited {
                key: identity(&key)?,
                destination: fingerprint(&destination)?,
                proof: Proof::from_text(&proof).ok_or(Damaged("proof"))?,
            },
            SourceRecord::Certified { files, host } => Source::Certified {
                files: files.into(),
                host,
            },
        }))
    }
}

impl TryFrom<DestinationRecord> for DestinationCredentials {
    type Error = Damaged;

    fn try_from(record: DestinationRecord) -> Result<Self, Damaged> {
        Ok(Self(match record {
            DestinationRecord::Inviting {
                key,
                secret,
                source,
            } => Destination::Inviting {
                key: identity(&key)?,
                secret: Secret::from_text(&secret).ok_or(Damaged("secret"))?,
                source: source.as_deref().map(fingerprint).transpose()?,
            },
            DestinationRecord::Certified { files } => Destination::Certified {
                files: files.into(),
            },
        }))
    }
}

fn identity(text: &str) -> Result<Box<Identity>, Damaged> {
    let key = Identity::from_text(text).ok_or(Damaged("private key"))?;
    Ok(Box::new(key))
}

fn fingerprint(text: &str) -> Result<Fingerprint, Damaged> {
    Fingerprint::from_text(text).ok_or(Damaged("fingerprint"))
}

impl From<&Files> for FilesRecord {
    fn from(files: &Files) -> Self {
        Self {
            ca: files.ca.clone(),
            cert: files.cert.clone(),
            key: files.key.clone(),
        }
    }
}

impl From<FilesRecord> for Files {
    fn from(record: FilesRecord) -> Self {
        Self {
            ca: record.ca,
            cert: record.cert,
            key: record.key,
        }
    }
}
