//! Gives up a migration that another engine recorded, without its destination.

use std::sync::Arc;

use error_reporter::Report;
use hikkoshi_handover::{
    Outcome, RecordedSource, SourceAction, SourceEvent, SourceRecord, SourceStage,
};

use crate::guest::SourceGuest;
use crate::source::context::MigrateControl;
use crate::source::error::{MigrateError, SourceFailure};

/// Gives up a migration that another engine recorded: resumes the guest here, in
/// the state in which it was paused.
///
/// This does not contact the destination. The caller guarantees that the
/// destination never ran the guest and never will, or that its guest has ended;
/// otherwise two guests run. If the guest ever ran at the destination, everything
/// that it did there is lost.
///
/// # Errors
/// The errors of [`migrate`](crate::migrate). With [`Outcome::Stopped`] the guest does not
/// run, and the call can be repeated.
pub fn give_up_migrate(
    guest: &mut dyn SourceGuest,
    record: SourceRecord,
    control: &MigrateControl,
) -> Result<(), MigrateError> {
    let mut handover = RecordedSource::new(record, Arc::clone(&control.journal));
    let outcome = match handover.stage() {
        SourceStage::Owned => Outcome::Stopped,
        SourceStage::Committed => Outcome::Paused,
        SourceStage::HandedOver | SourceStage::Done => Outcome::AtDestination,
    };
    let actions = handover
        .on(SourceEvent::GivenUp)
        .map_err(|error| MigrateError::new(SourceFailure::Journal(error), outcome))?;
    if actions.contains(&SourceAction::ResumeGuest)
        && let Err(error) = guest.resume()
    {
        return Err(MigrateError::new(error.into(), Outcome::Stopped));
    }
    let released = guest.release();
    handover.close();
    if let Err(error) = released {
        control.observer.notice(&format!(
            "the migration was given up, but: {}",
            Report::new(&error)
        ));
    }
    Ok(())
}
