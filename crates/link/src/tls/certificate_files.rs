//! The certificate files of one side.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The files of the authorities' certificates and of this side's own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Files {
    pub(crate) ca: PathBuf,
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}
