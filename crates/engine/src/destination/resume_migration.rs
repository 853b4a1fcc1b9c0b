//! Resumes a migration that another engine began and recorded.

use std::sync::Arc;
use std::time::Instant;

use crate::destination::context::{DestinationRun, ReceiveContext};
use crate::destination::error::ReceiveError;
use crate::destination::handover_driver::links::LinkState;
use crate::destination::handover_driver::run_to_end::finish_handover;
use crate::destination::handover_driver::{HandoverDriver, HandoverStart};
use crate::destination::session::Channel;
use crate::guest::DestinationGuest;
use crate::report::{Account, Live, LiveStart, Stage, last_sign_before};
use hikkoshi_handover::{
    DestinationEvent, DestinationRecord, DestinationStage, Outcome, RecordedDestination,
};

/// Where the guest is, as the other engine has recorded it, if it cannot be resumed now.
pub(crate) fn recorded_outcome(stage: DestinationStage) -> Outcome {
    match stage {
        DestinationStage::Ready => Outcome::Paused,
        DestinationStage::Running | DestinationStage::Complete => Outcome::AtDestination,
        // It may not have been told that the guest will not run here.
        DestinationStage::Declined => Outcome::Declined,
        DestinationStage::Receiving => Outcome::AtSource,
    }
}

/// Resumes a migration that another engine began.
pub(crate) fn resume(
    guest: &mut dyn DestinationGuest,
    record: DestinationRecord,
    run: DestinationRun<'_>,
) -> Result<Account, ReceiveError> {
    let begun = Instant::now();
    let stage = record.stage;
    let fail = |cause| ReceiveError {
        cause,
        outcome: recorded_outcome(stage),
    };
    let ram = guest.ram();
    let postcopy = record.postcopy;
    let live = Arc::new(Live::new(LiveStart {
        id: record.id,
        stage: Stage::Destination(record.stage),
        resumed: true,
        mode: record.mode,
        // It connects later.
        peer: String::new(),
        layout: ram.layout(),
    }));
    run.control.observer.begin(&live);
    let last_sign = last_sign_before(&live, &*run.control.observer);
    live.outages.begin(last_sign, None);
    let start = HandoverStart {
        handover: RecordedDestination::new(record, live.stages_from(&run.control.journal)),
        ram,
        context: ReceiveContext::new(None, live),
        postcopy: None,
        links: LinkState::Down(Channel::new()),
        source_paused: None,
        frames: None,
    };
    let mut driver = HandoverDriver::new(start, run);
    let lives = matches!(stage, DestinationStage::Ready | DestinationStage::Running);
    if lives && guest.has_ended() {
        return finish_handover(driver, guest, begun, DestinationEvent::GuestFailed);
    }
    if lives && postcopy {
        driver.adopt_userfault(guest, last_sign).map_err(fail)?;
    }
    if stage == DestinationStage::Complete {
        // No fault needs an answer any more: pages that are absent hold zeros. The source may
        // connect much later, or never.
        driver.release_guest(guest);
    }
    finish_handover(driver, guest, begun, DestinationEvent::Restarted)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A guest that may run here must not be reported to be at the source.
    #[test]
    fn a_migration_that_is_not_resumed_is_where_its_record_says() {
        use DestinationStage::{Complete, Declined, Ready, Receiving, Running};
        let expected = [
            (Receiving, Outcome::AtSource),
            (Ready, Outcome::Paused),
            (Running, Outcome::AtDestination),
            (Complete, Outcome::AtDestination),
            (Declined, Outcome::Declined),
        ];
        for (stage, outcome) in expected {
            assert_eq!(recorded_outcome(stage), outcome);
        }
    }
}
