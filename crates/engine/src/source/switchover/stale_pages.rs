//! Tells the destination which of its pages are stale, before and during the pause.

use hikkoshi_pages::PageRange;
use hikkoshi_wire::{PageRanges, ToDestination, ToSource};

use crate::source::context::MigrationContext;
use crate::source::error::SourceFailure;
use crate::source::session::{CommitState, DISCARD_TIMEOUT, Session};
use crate::source::switchover::last_pages::LastPages;
use crate::source::unsent::UnsentPages;

/// How often the log is taken before the pause, at most: each pass drops what
/// the guest has dirtied while the one before was dropped, so that little is
/// left to drop while it is stopped.
const DISCARD_PASSES: u32 = 4;

/// Few enough to be dropped while the guest is stopped: about 2 ms of hole
/// punching at the destination (2.4–3.5 µs each, measured on tmpfs).
const FEW_DISCARDS: usize = 1000;

/// Everything before the pause that makes the pause shorter: in post-copy the
/// destination hears what is owed, as far as it is known, and drops what it
/// holds of it.
pub(crate) fn discard_stale_pages(
    shared: &MigrationContext,
    session: &mut Session,
    rest: &LastPages,
    unsent: &UnsentPages,
) -> Result<(), SourceFailure> {
    let destination = session.destination.clone();
    match rest {
        LastPages::Precopy(_) => return Ok(()),
        LastPages::Postcopy(_) => {
            let new = unsent.add_data(&shared.ram, &destination, destination.all())?;
            discard(session, &new)?;
        }
        LastPages::Hybrid(log, _) => {
            // The links are empty: a page still on its way would be written
            // after the hole was punched, and be taken for its content.
            for _ in 0..DISCARD_PASSES {
                shared.check()?;
                let new = unsent.add_dirty(&**log, &destination)?;
                discard(session, &new)?;
                wait_for_discards(shared, session)?;
                if new.len() < FEW_DISCARDS {
                    break;
                }
            }
            return Ok(());
        }
    }
    wait_for_discards(shared, session)
}

/// Waits until the destination has dropped what it was told to.
fn wait_for_discards(
    shared: &MigrationContext,
    session: &mut Session,
) -> Result<(), SourceFailure> {
    let doing = "waiting for the destination to drop stale pages";
    session.send(&ToDestination::DiscardEnd, doing)?;
    let stage = CommitState::BeforeCommit(&shared.cancel);
    // Both sides are at work here, and nobody else waits.
    let limit = DISCARD_TIMEOUT.min(2 * shared.options.patience);
    session.expect(doing, stage, limit, |m| matches!(m, ToSource::Discarded))
}

/// Tells the destination what has come to be owed since it was last told.
pub(crate) fn discard_newly_dirty(
    shared: &MigrationContext,
    session: &mut Session,
    rest: &LastPages,
    unsent: &UnsentPages,
) -> Result<(), SourceFailure> {
    let new = match rest {
        LastPages::Precopy(_) => return Ok(()),
        LastPages::Hybrid(log, _) => unsent.add_dirty(&**log, &session.destination)?,
        LastPages::Postcopy(_) => unsent.add_data_in_gaps(&shared.ram, &session.destination)?,
    };
    discard(session, &new)
}

/// Tells the destination to drop what it holds of `ranges`, and that it will
/// get them in post-copy.
fn discard(session: &mut Session, ranges: &[PageRange]) -> Result<(), SourceFailure> {
    for ranges in PageRanges::batches(ranges.iter().copied()) {
        session.send(
            &ToDestination::Discard { ranges },
            "sending the list of stale pages",
        )?;
    }
    Ok(())
}
