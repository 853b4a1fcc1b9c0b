//! Giving up a guest whose migration is not resumed.

use std::sync::Arc;

use crate::destination::error::{DestinationFailure, ReceiveError};
use crate::destination::receive_control::ReceiveControl;
use crate::guest::DestinationGuest;
use error_reporter::Report;
use hikkoshi_handover::Outcome;
use hikkoshi_handover::RecordedDestination;
use hikkoshi_handover::{DestinationAction, DestinationEvent, DestinationRecord, DestinationStage};

/// Gives a migration up that another engine has begun and recorded.
///
/// A guest that was never run here is declined: it will never run here. The record stays, so that
/// the source can still be notified if it comes back
/// ([`resume_receive`](crate::destination::resume_receive)); giving up once more removes it. A
/// guest that runs here and lacks pages is ended with its process: the caller guarantees that these
/// pages cannot be had any more. A guest of which every page is here keeps running, and its source
/// is not notified.
///
/// # Errors
/// When the decision cannot be recorded, or the process cannot be ended. It can be tried again.
pub fn give_up_receive(
    guest: &mut dyn DestinationGuest,
    mut record: DestinationRecord,
    control: &ReceiveControl,
) -> Result<(), ReceiveError> {
    let outcome = match record.stage {
        DestinationStage::Ready => Outcome::Paused,
        DestinationStage::Running | DestinationStage::Complete => Outcome::AtDestination,
        DestinationStage::Receiving | DestinationStage::Declined => Outcome::Declined,
    };
    let fail = |cause| ReceiveError { cause, outcome };
    record.given_up = true;
    let mut handover = RecordedDestination::new(record, Arc::clone(&control.journal));
    let mut events = vec![DestinationEvent::GivenUp];
    if handover.stage() == DestinationStage::Ready {
        // No source is connected.
        events.push(DestinationEvent::LinkLost);
    }
    let mut closes = false;
    for event in events {
        let actions = handover.on(event);
        for action in actions.map_err(|error| fail(DestinationFailure::Journal(error)))? {
            match action {
                DestinationAction::KillGuest => guest.kill().map_err(|error| fail(error.into()))?,
                DestinationAction::Close => closes = true,
                // The guest was discarded, or every page is here: nothing needs to be held.
                DestinationAction::DiscardGuest | DestinationAction::End => {
                    if handover.stage() == DestinationStage::Complete
                        && let Some(what) = guest.complete()
                    {
                        control.observer.notice(&what);
                    }
                    if let Err(error) = guest.release() {
                        control.observer.notice(&Report::new(&error).to_string());
                    }
                }
                _ => {}
            }
        }
    }
    if closes {
        handover.close();
    }
    Ok(())
}
