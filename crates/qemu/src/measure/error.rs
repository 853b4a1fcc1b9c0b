//! Why a guest's writes cannot be measured.

use error_reporter::Report;
use hikkoshi_dirty::{DirtyError, StartError, UnsupportedKernel};
use hikkoshi_pages::{LayoutError, RamLayout};
use hikkoshi_userfault::{CloseRemoteError, RemoteUserfaultError};
use thiserror::Error;

use crate::attach::AttachError;
use crate::attach::preflight::Refusal;
use crate::process::exclusive_access::ExclusiveAccessError;
use crate::qmp::ConnectError;
use crate::qmp::pause_mark;

/// The guest's writes cannot be measured. It is unchanged.
#[derive(Debug, Error)]
pub enum MeasureError {
    /// The QMP session was not opened.
    #[error(transparent)]
    Connect(ConnectError),
    /// The kernel does not have a dirty log.
    #[error("this host's kernel cannot track writes to the guest's memory")]
    Kernel(#[from] UnsupportedKernel),
    /// Nothing can be found out about the guest, or a dirty log of a killed run was not closed.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The guest is in a state, or has memory, that cannot be measured. One text for each obstacle.
    #[error("this guest's writes cannot be measured: {}", .0.join("; "))]
    Refused(Vec<String>),
    /// The guest is paused for a move, or its move has failed and it was not restored.
    #[error(
        "this guest's writes cannot be measured: it is {}: {}",
        pause_mark::STATE,
        pause_mark::ADVICE
    )]
    PausedForMove,
    /// Another hikkoshi process has the guest.
    #[error(transparent)]
    Occupied(#[from] ExclusiveAccessError),
    /// There is no such block.
    #[error("the guest has no RAM block {name:?}; it has {}", .known.join(", "))]
    NoBlock {
        /// The name.
        name: String,
        /// The names of its blocks.
        known: Vec<String>,
    },
    /// The blocks are not a layout.
    #[error("the guest's RAM blocks cannot be measured")]
    Layout {
        /// The cause.
        source: LayoutError,
    },
    /// A userfaultfd could not be created in QEMU.
    #[error("starting the dirty log")]
    Userfault(#[from] RemoteUserfaultError),
    /// The log could not be started.
    #[error("starting the dirty log")]
    Start(#[from] StartError),
}

impl From<Refusal> for MeasureError {
    fn from(refusal: Refusal) -> Self {
        Self::Attach(refusal.into())
    }
}

/// The log was not closed completely. It does not block the guest, and the next migration or
/// measurement closes it.
#[derive(Debug, Error)]
pub enum StopMeasuringError {
    /// The memory could not be unregistered.
    #[error(
        "closing the dirty log (it slows the guest down until the next migration or measurement)"
    )]
    Log(#[from] DirtyError),
    /// The userfaultfd inside QEMU could not be closed.
    #[error(
        "closing the dirty log (it slows the guest down until the next migration or measurement)"
    )]
    Userfault(#[from] CloseRemoteError),
}

/// The obstacles to a move that are obstacles to measuring the blocks of `layout`, too; and notes
/// on those by which the result is too low. The others do not matter here.
pub(super) fn sort(
    obstacles: Vec<AttachError>,
    layout: Option<&RamLayout>,
) -> (Vec<String>, Vec<String>) {
    let (mut refused, mut notes) = (Vec::new(), Vec::new());
    let is_measured = |name: &str| {
        layout.is_some_and(|layout| layout.blocks().any(|(block, _)| block.id == name))
    };
    for obstacle in obstacles {
        match &obstacle {
            AttachError::Refused(refusal) => match refusal {
                Refusal::Untracked { block, why } if is_measured(block) => {
                    refused.push(format!(
                        "writes to RAM block {block:?} cannot be tracked: {why}"
                    ));
                }
                Refusal::State { .. }
                | Refusal::Migrating { .. }
                | Refusal::TooOld { .. }
                | Refusal::Confidential { .. }
                | Refusal::Qmp(_) => refused.push(obstacle.reason()),
                Refusal::Device { path, kind, .. }
                | Refusal::Rounds { path, kind, .. }
                | Refusal::Unknown { path, kind } => notes.push(format!(
                    "writes of the device {path} ({kind}) to the guest's memory may not be counted"
                )),
                Refusal::Nested { .. } => notes.push(
                    "KVM's own writes to the memory of a nested hypervisor are not counted"
                        .to_owned(),
                ),
                _ => {}
            },
            AttachError::DirtyLog(_) => {}
            AttachError::Untrackable(cause) => refused.push(Report::new(cause).to_string()),
            _ => refused.push(obstacle.reason()),
        }
    }
    (refused, notes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hikkoshi_pages::RamBlock;

    #[test]
    fn only_what_matters_for_measuring_is_refused() {
        let layout = RamLayout::new(vec![RamBlock::new("pc.ram", 1 << 20, 4096)]).unwrap();
        let state = Refusal::State {
            state: "inmigrate".into(),
            advice: "wait",
        };
        let device = Refusal::Device {
            path: "/machine/peripheral/x".into(),
            kind: "vfio-pci".into(),
            why: "why",
            process: String::new(),
        };
        let job = Refusal::Job {
            id: "j".into(),
            kind: "mirror".into(),
            status: "running".into(),
        };
        let obstacles = vec![state.into(), device.into(), job.into()];
        let (refused, notes) = sort(obstacles, Some(&layout));
        assert_eq!(refused.len(), 1, "{refused:?}");
        assert!(refused[0].contains("inmigrate"));
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert!(notes[0].contains("vfio-pci"));
    }
}
