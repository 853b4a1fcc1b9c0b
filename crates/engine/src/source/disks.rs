//! Has the guest's disks copied before its memory.

use std::sync::Arc;

use hikkoshi_link::LinkError;

use crate::disks::{DiskRelay, RelayStart};
use crate::guest::SourceGuest;
use crate::source::context::MigrationContext;
use crate::source::error::SourceFailure;
use crate::source::session::{CommitState, Session};

const DOING: &str = "copying the guest's disks";

/// Copies the disks of the session, if it has any. Returns when all of them have the same content
/// at both sides; from then on each write of the guest reaches both.
pub(crate) fn copy(
    shared: &MigrationContext,
    guest: &mut dyn SourceGuest,
    session: &mut Session,
) -> Result<(), SourceFailure> {
    let links = std::mem::take(&mut session.disk_links);
    if links.is_empty() {
        return Ok(());
    }
    for (number, (stream, ends)) in links.into_iter().enumerate() {
        shared.check()?;
        let relay = DiskRelay::start(RelayStart {
            name: format!("src-disk-{number}"),
            socket: guest.connect_disk(number)?,
            stream,
            ends,
            bandwidth: shared.control.bandwidth(),
            priority: shared.options.priority,
            stop: session.stop.clone(),
            counters: Arc::clone(&shared.counters),
            counts_sent: true,
        });
        session.disks.push(relay.map_err(SourceFailure::Thread)?);
        guest.copy_disk(number, &shared.cancel)?;
    }
    loop {
        shared.check()?;
        let disks = guest.disk_progress()?;
        let complete = disks.iter().all(|disk| disk.in_sync);
        shared.live.set_disks(disks);
        if complete {
            return Ok(());
        }
        // Waits for a tick.
        let stage = CommitState::BeforeCommit(&shared.cancel);
        if let Some(other) = session.receive(DOING, stage)? {
            return Err(SourceFailure::unexpected(DOING, &other));
        }
    }
}

/// Fails if the copy of a disk has failed since then.
pub(crate) fn check(
    shared: &MigrationContext,
    guest: &mut dyn SourceGuest,
) -> Result<(), SourceFailure> {
    let disks = guest.disk_progress()?;
    if !disks.is_empty() {
        shared.live.set_disks(disks);
    }
    Ok(())
}

impl Session {
    /// A copy that has failed because its link ended: the link's failure.
    pub(crate) fn explain_disks(&self, failure: SourceFailure) -> SourceFailure {
        if !matches!(
            failure,
            SourceFailure::Guest(_) | SourceFailure::PausedTooLong { .. }
        ) {
            return failure;
        }
        let ended: Option<LinkError> = self.disks.iter().find_map(DiskRelay::take_failure);
        match ended {
            Some(cause) => SourceFailure::Link {
                doing: DOING,
                cause,
            },
            None => failure,
        }
    }
}
