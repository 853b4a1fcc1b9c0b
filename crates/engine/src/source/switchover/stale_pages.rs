//! Reports to the destination which of its pages are stale, before and during the pause.

use hikkoshi_pages::PageRange;
use hikkoshi_wire::{PageRanges, ToDestination, ToSource};

use crate::source::context::MigrationContext;
use crate::source::error::SourceFailure;
use crate::source::session::{CommitState, DISCARD_TIMEOUT, SourceSession};
use crate::source::switchover::last_pages::LastPages;
use crate::source::unsent::UnsentPages;

/// How often the log is taken before the pause, at most. Each pass drops the pages
/// that were dirtied during the pass before it, so that few pages have to be
/// dropped during the pause.
const DISCARD_PASSES: u32 = 4;

/// So many runs of pages may be dropped during the pause. The destination needs
/// 2.4 to 3.5 µs for each (measured on tmpfs).
const FEW_DISCARDS: usize = 1000;

/// Before the pause, if post-copy follows: sends the destination the known set of
/// stale pages, and waits until it has dropped them.
pub(crate) fn discard_stale_pages(
    shared: &MigrationContext,
    session: &mut SourceSession,
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
        LastPages::Hybrid(log, _, rest) => {
            // Before the log is taken: a page that is a hole now is in the log when it is written.
            let mut new = unsent.add_data(&shared.ram, &destination, rest.unvisited)?;
            new.extend(unsent.add_pages(&rest.pages, &destination));
            // The links are empty: a page still in flight would be written after
            // its hole was punched, and would count as received.
            for _ in 0..DISCARD_PASSES {
                shared.check()?;
                let source = shared.ram.layout();
                new.extend(unsent.add_dirty(&**log, source, &destination, &shared.sent)?);
                discard(session, &new)?;
                wait_for_discards(shared, session)?;
                if new.len() < FEW_DISCARDS {
                    break;
                }
                new.clear();
            }
            return Ok(());
        }
    }
    wait_for_discards(shared, session)
}

/// Waits until the destination has dropped the stale pages.
fn wait_for_discards(
    shared: &MigrationContext,
    session: &mut SourceSession,
) -> Result<(), SourceFailure> {
    let doing = "waiting for the destination to drop stale pages";
    session.send(&ToDestination::DiscardEnd, doing)?;
    let stage = CommitState::BeforeCommit(&shared.cancel);
    // Both sides work on this; the guest still runs.
    let limit = DISCARD_TIMEOUT.min(2 * shared.options.peer_timeout);
    session.expect(doing, stage, limit, |m| matches!(m, ToSource::Discarded))
}

/// When the paused guest's stale pages are looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PausedPass {
    /// Right after the pause, while the device state is saved.
    Paused,
    /// After it was saved, which writes to the guest's memory.
    Saved,
}

/// Sends the destination the pages that have become stale since the last list.
///
/// The log is only read. Its pages are sent after the switchover, whatever is in them then, and if
/// the switchover fails the log is not used again.
pub(crate) fn discard_newly_dirty(
    shared: &MigrationContext,
    session: &mut SourceSession,
    rest: &LastPages,
    unsent: &UnsentPages,
    pass: PausedPass,
) -> Result<(), SourceFailure> {
    let new = match rest {
        LastPages::Precopy(_) => return Ok(()),
        LastPages::Hybrid(log, ..) => unsent.add_dirty_of_paused(
            &**log,
            shared.ram.layout(),
            &session.destination,
            &shared.sent,
            pass == PausedPass::Paused,
        )?,
        LastPages::Postcopy(_) => unsent.add_data_in_gaps(&shared.ram, &session.destination)?,
    };
    discard(session, &new)
}

/// Asks the destination to drop `ranges`, which follow in post-copy.
fn discard(session: &mut SourceSession, ranges: &[PageRange]) -> Result<(), SourceFailure> {
    for ranges in PageRanges::batches(ranges.iter().copied()) {
        session.send(
            &ToDestination::Discard { ranges },
            "sending the list of stale pages",
        )?;
    }
    Ok(())
}
