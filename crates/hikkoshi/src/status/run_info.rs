//! What the command line says of a run.

use std::path::PathBuf;

use hikkoshi_account::{Limits, Side};
use hikkoshi_estimate::WorkingSet;

/// What the command line says of a run.
#[derive(Debug, Clone)]
pub(crate) struct RunInfo {
    /// The side.
    pub(crate) side: Side,
    /// The guest's name, for people.
    pub(crate) guest: String,
    /// The path of its QMP socket, if there is one.
    pub(crate) qmp: Option<PathBuf>,
    /// The limits at the beginning: at the source.
    pub(crate) limits: Limits,
    /// What the guest writes, if that was measured before (`--mode auto`).
    pub(crate) working_set: Option<WorkingSet>,
}
