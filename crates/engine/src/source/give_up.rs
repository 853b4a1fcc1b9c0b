//! Ends a migration that another engine has begun and recorded, without its destination.

use std::sync::Arc;

use hikkoshi_handover::{
    Outcome, RecordedSource, SourceAction, SourceEvent, SourceRecord, SourceStage,
};

use crate::guest::SourceGuest;
use crate::source::context::Watch;
use crate::source::error::{MigrateError, SourceFailure};

/// Gives a migration up that another engine has begun and recorded: the guest
/// runs on here, as it was when it was stopped.
///
/// Nobody is asked. Whoever calls this answers for it that the destination has
/// never run the guest and never will, or that its guest has ended: otherwise
/// there are two. If the destination ever ran it, what it did there is lost.
///
/// # Errors
/// As [`migrate`]; with [`Outcome::Stopped`] the guest does not run, and this can
/// be tried again.
pub fn give_up_migrate(
    guest: &mut dyn SourceGuest,
    record: SourceRecord,
    watch: &Watch,
) -> Result<(), MigrateError> {
    let mut machine = RecordedSource::new(record, Arc::clone(&watch.journal));
    let outcome = match machine.stage() {
        SourceStage::Owned => Outcome::Stopped,
        SourceStage::Committed => Outcome::Paused,
        SourceStage::HandedOver | SourceStage::Done => Outcome::AtDestination,
    };
    let actions = machine
        .on(SourceEvent::GivenUp)
        .map_err(|error| MigrateError::new(SourceFailure::Journal(error), outcome))?;
    if actions.contains(&SourceAction::ResumeGuest)
        && let Err(error) = guest.resume()
    {
        return Err(MigrateError::new(error.into(), Outcome::Stopped));
    }
    let released = guest.release();
    machine.close();
    if let Err(error) = released {
        watch
            .observer
            .notice(&format!("the migration was given up, but: {error}"));
    }
    Ok(())
}
