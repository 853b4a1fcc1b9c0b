//! What all parts of one migration share.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use hikkoshi_handover::{Journal, SourceRecord};
use hikkoshi_link::UrgentActivity;
use hikkoshi_linux::CancelFlag;
use hikkoshi_memory::GuestRam;

use crate::report::{Counters, Live, MemoryMap, Observer, SwitchoverSteps, Tracker};
use crate::source::control::SourceControl;
use crate::source::error::{SourceFailure, list_blocks};
use crate::source::options::SourceOptions;
use crate::source::private_blocks::may_be_lost;
use crate::source::repeat_counter::RepeatCounter;

/// How the caller controls and observes a migration.
#[derive(Clone)]
pub struct MigrateControl {
    /// Cancels the migration.
    pub cancel: CancelFlag,
    /// Changes the migration. Belongs to this one only.
    pub control: SourceControl,
    /// Can read the state, and receives notices.
    pub observer: Arc<dyn Observer>,
    /// Stores the record. *Commit* is sent only after
    /// [`SourceStage::Committed`](hikkoshi_handover::SourceStage::Committed) is
    /// recorded. From then on the guest may be resumed at the source only by the
    /// rules of `docs/protocol.md`. If the stage cannot be recorded, the source
    /// does not commit.
    pub journal: Arc<dyn Journal<SourceRecord>>,
}

impl fmt::Debug for MigrateControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MigrateControl").finish_non_exhaustive()
    }
}

/// What all parts of one migration share.
#[derive(Debug, Clone)]
pub(crate) struct MigrationContext {
    pub(crate) ram: Arc<GuestRam>,
    /// What an observer reads; the next four are parts of it.
    pub(crate) live: Arc<Live>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) progress: Arc<Tracker>,
    pub(crate) map: Arc<MemoryMap>,
    /// The pages that were sent.
    pub(crate) sent: Arc<RepeatCounter>,
    /// The steps of the switchover so far.
    pub(crate) steps: Arc<SwitchoverSteps>,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) cancel: CancelFlag,
    /// Limits that were changed are here, and not in the options.
    pub(crate) control: SourceControl,
    pub(crate) options: SourceOptions,
    /// Set by the thread that answers requests. The background links yield to it.
    pub(crate) urgency: UrgentActivity,
    /// Whether the first round of pre-copy marks holes, as the destination asks.
    pub(crate) marks_holes: Arc<AtomicBool>,
}

/// Guest memory that is private to the guest's process at the source, where post-copy may need it.
#[derive(Debug)]
pub(crate) struct PrivateBlocks {
    pub(crate) bytes: u64,
    blocks: Vec<String>,
}

impl fmt::Display for PrivateBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} MiB of the guest's memory are private to its process here ({}): do not end that \
             process before the migration has. If it ends in post-copy, the pages that have not \
             arrived at the destination are lost, and the guest with them",
            self.bytes.div_ceil(1 << 20),
            list_blocks(&self.blocks),
        )
    }
}

impl MigrationContext {
    /// The memory that must stay here until the end, if post-copy is possible. What is in a file
    /// is held open, whatever the guest's process does.
    pub(crate) fn private_blocks(&self) -> Option<PrivateBlocks> {
        if !self.options.may_postcopy() {
            return None;
        }
        let blocks: Vec<_> = self.ram.layout().blocks().collect();
        let (mut bytes, mut names) = (0, Vec::new());
        for (block, _) in may_be_lost(&self.ram)
            .into_iter()
            .filter_map(|number| blocks.get(number))
        {
            bytes += block.bytes;
            names.push(block.id.clone());
        }
        (bytes > 0).then_some(PrivateBlocks {
            bytes,
            blocks: names,
        })
    }

    /// Fails after the migration was cancelled.
    pub(crate) fn check(&self) -> Result<(), SourceFailure> {
        if self.cancel.is_cancelled() {
            Err(SourceFailure::Cancelled)
        } else {
            Ok(())
        }
    }
}
