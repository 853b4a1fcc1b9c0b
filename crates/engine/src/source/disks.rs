//! Has the guest's disks copied before its memory.

use std::sync::Arc;

use hikkoshi_link::LinkError;
use hikkoshi_linux::CancelFlag;

use crate::disks::{DiskFailure, DiskRelay, DiskWatch, RelayStart};
use crate::guest::{NoDisks, SourceGuest};
use crate::guest_error::GuestError;
use crate::source::context::MigrationContext;
use crate::source::error::SourceFailure;
use crate::source::session::{CommitState, SourceSession, SourceSessionEvent};

/// The name of a disk's link, for events.
const LINK: &str = "the link of a disk";

const DOING: &str = "copying the guest's disks";

/// Copies the disks of the session, if it has any. Returns when all of them have the same content
/// at both sides; from then on each write of the guest reaches both.
pub(crate) fn copy(
    shared: &MigrationContext,
    guest: &mut dyn SourceGuest,
    session: &mut SourceSession,
) -> Result<(), SourceFailure> {
    let links = std::mem::take(&mut session.disk_links);
    if links.is_empty() {
        return Ok(());
    }
    shared.control.copy_disks();
    let copies = guest.disks();
    let copies = copies.ok_or_else(|| GuestError::new(NoDisks))?;
    let number_of_disks = links.len();
    // The destination's server closes a connection that is not set up within seconds (QEMU: 10 s),
    // and the line is busy as soon as a disk is copied.
    for (number, (stream, ends)) in links.into_iter().enumerate() {
        shared.check()?;
        let connection = copies.connect(number)?;
        let watch = DiskWatch {
            stall_timeout: shared.options.stall_timeout,
            cancel: shared.cancel.clone(),
            failed: Box::new(session.fail_soon()),
        };
        let relay = DiskRelay::start(RelayStart {
            name: format!("src-disk-{number}"),
            connection,
            stream,
            ends,
            priority: shared.options.priority,
            stop: session.stop.clone(),
            counters: Arc::clone(&shared.counters),
            watch: Some(watch),
        });
        session.disks.push(relay.map_err(SourceFailure::Thread)?);
        copies.open(number, &shared.cancel)?;
    }
    for number in 0..number_of_disks {
        shared.check()?;
        copies.limit(shared.control.limits().bandwidth);
        copies.copy(number, &shared.cancel)?;
    }
    loop {
        shared.check()?;
        copies.limit(shared.control.limits().bandwidth);
        let disks = copies.progress()?;
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
    let Some(copies) = guest.disks() else {
        return Ok(());
    };
    let disks = copies.progress()?;
    if !disks.is_empty() {
        shared.live.set_disks(disks);
    }
    Ok(())
}

/// The guest is paused: completes the copies. From here on nothing of the disks is left to do.
pub(crate) fn complete(
    shared: &MigrationContext,
    guest: &mut dyn SourceGuest,
    session: &SourceSession,
    give_up: &CancelFlag,
) -> Result<(), SourceFailure> {
    if session.disks.is_empty() {
        return Ok(());
    }
    let copies = guest.disks();
    let copies = copies.ok_or_else(|| GuestError::new(NoDisks))?;
    copies.complete(give_up)?;
    session.disks.iter().for_each(DiskRelay::complete);
    shared.steps.done("disks complete");
    check(shared, guest)
}

impl SourceSession {
    /// What a failed connection of a disk calls: whatever the engine waits for, that ends soon.
    fn fail_soon(&self) -> impl Fn() + Send + Sync + use<> {
        let (events, background) = (self.events(), Arc::clone(&self.background));
        move || {
            // A full queue has an event to wait for, and the background links end, too.
            let ended = SourceSessionEvent::LinkEnded(LINK, LinkError::Closed);
            let _ = events.try_send(ended);
            background.iter().for_each(|stream| stream.shutdown());
        }
    }

    /// The copy of a disk may be the reason of `failure`, if its connection has failed.
    pub(crate) fn explain_disks(
        &self,
        shared: &MigrationContext,
        failure: SourceFailure,
    ) -> SourceFailure {
        // A cancellation has ended what the machine waited for.
        let is_cancelled = shared.cancel.is_cancelled() && !self.disks.is_empty();
        if is_cancelled && matches!(failure, SourceFailure::Guest(_)) {
            return SourceFailure::Cancelled;
        }
        // Other links end then, and the machine reports an error.
        let may_be_the_reason = matches!(
            failure,
            SourceFailure::Guest(_)
                | SourceFailure::PausedTooLong { .. }
                | SourceFailure::Link { .. }
        );
        if !may_be_the_reason {
            return failure;
        }
        // When time is up, or another link fails first, the links of the disks are ended with it.
        let has_other_reason = match &failure {
            SourceFailure::PausedTooLong { .. } => true,
            SourceFailure::Link { cause, .. } => !matches!(cause, LinkError::Closed),
            _ => false,
        };
        match self.disks.iter().find_map(DiskRelay::take_failure) {
            Some(DiskFailure::Stalled { disk, after }) => {
                SourceFailure::DiskStalled { disk, after }
            }
            Some(DiskFailure::Link(cause)) if !has_other_reason => SourceFailure::Link {
                doing: DOING,
                cause,
            },
            _ => failure,
        }
    }
}
