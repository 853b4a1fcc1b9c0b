//! A guest that nobody goes on with.

use std::sync::Arc;

use crate::destination::ReceiveWatch;
use crate::destination::error::{DestinationFailure, ReceiveError};
use crate::guest::DestinationGuest;
use hikkoshi_handover::Outcome;
use hikkoshi_handover::RecordedDestination;
use hikkoshi_handover::{DestinationAction, DestinationEvent, DestinationRecord, DestinationStage};

/// Gives a migration up that another engine has begun and recorded.
///
/// A guest that was never run here is declined: never will it run here, and the
/// record stays, so that a source that is not lost after all can be told so
/// ([`resume_receive`](crate::destination::resume_receive)); given up once more, it is forgotten. A
/// guest that runs here and lacks pages is ended with its process: whoever calls
/// this answers for it that they cannot be had any more. One that is wholly here
/// runs on, and its source is not told so.
///
/// # Errors
/// When the decision cannot be recorded, or the process not be ended: it can be
/// tried again.
pub fn give_up_receive(
    guest: &mut dyn DestinationGuest,
    record: DestinationRecord,
    watch: &ReceiveWatch,
) -> Result<(), ReceiveError> {
    let outcome = match record.stage {
        DestinationStage::Ready => Outcome::Paused,
        DestinationStage::Running | DestinationStage::Complete => Outcome::AtDestination,
        DestinationStage::Receiving | DestinationStage::Declined => Outcome::Declined,
    };
    let fail = |cause| ReceiveError { cause, outcome };
    let mut machine = RecordedDestination::new(record, Arc::clone(&watch.journal));
    let mut events = vec![DestinationEvent::GivenUp];
    if machine.stage() == DestinationStage::Ready {
        // Nobody is there to hear it.
        events.push(DestinationEvent::LinkLost);
    }
    let mut closes = false;
    for event in events {
        let actions = machine.on(event);
        for action in actions.map_err(|error| fail(DestinationFailure::Journal(error)))? {
            match action {
                DestinationAction::KillGuest => guest.kill().map_err(|error| fail(error.into()))?,
                DestinationAction::Close => closes = true,
                // Dropped, or all of it is here: there is nothing more to hold.
                DestinationAction::DiscardGuest | DestinationAction::End => {
                    if let Err(error) = guest.release() {
                        watch.observer.notice(&error.to_string());
                    }
                }
                _ => {}
            }
        }
    }
    if closes {
        machine.close();
    }
    Ok(())
}
