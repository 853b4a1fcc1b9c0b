//! The certificate files of one side.

use std::path::PathBuf;

/// The files of the authorities' certificates and of this side's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Files {
    pub(crate) ca: PathBuf,
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}
