//! Receives one guest, from its accepted offer until every page is here: memory and device state
//! (`incoming/`), the switchover (`switchover/`), and from *ready* on what the handover's state
//! machine decides (`handover_driver/`).
//!
//! The sequence of messages is drawn in `source/switchover/`. If anything fails before *ready*, the
//! source resumes its guest (`incoming/abort.rs`).

use std::sync::Arc;
use std::time::Instant;

use error_reporter::Report;
use hikkoshi_handover::{
    DestinationEvent, DestinationRecord, DestinationStage, History, RecordedDestination,
};

use crate::destination::context::DestinationRun;
use crate::destination::error::{DestinationFailure, ReceiveError};
use crate::destination::handover_driver::links::{ActiveLinks, LinkState};
use crate::destination::handover_driver::run_to_end::finish_handover;
use crate::destination::handover_driver::{HandoverDriver, HandoverStart};
use crate::destination::incoming::incoming_migration::IncomingMigration;
use crate::destination::incoming::offer::AcceptedOffer;
use crate::guest::DestinationGuest;
use crate::report::{Account, Live, LiveStart, Stage};

/// Receives the guest that was offered by the source at `peer`.
pub(crate) fn receive_guest(
    guest: &mut dyn DestinationGuest,
    offer: AcceptedOffer,
    peer: String,
    run: DestinationRun<'_>,
) -> Result<Account, ReceiveError> {
    let begun = Instant::now();
    let ram = guest.ram();
    let mut record = DestinationRecord {
        id: offer.links.id,
        stage: DestinationStage::Receiving,
        mode: offer.mode,
        postcopy: false,
        running: true,
        started: false,
        given_up: false,
        links: offer.links.background,
        history: History::begin(),
    };
    let live = Arc::new(Live::new(LiveStart {
        id: record.id,
        stage: Stage::Destination(record.stage),
        resumed: false,
        mode: record.mode,
        peer,
        layout: ram.layout(),
    }));
    run.control.observer.begin(&live);
    let mut migration = match IncomingMigration::open(guest, offer, live, run) {
        Ok(migration) => migration,
        Err(cause) => return Err(give_back(guest, cause)),
    };
    let received = migration.receive_until_switch(guest);
    let prepared = received.and_then(|(switch, state)| {
        migration.prepare_switchover(guest, &switch, state)?;
        Ok(switch)
    });
    let switch = match prepared {
        Ok(switch) => switch,
        Err(cause) => {
            let cause = migration.explain(cause);
            return Err(migration.withdraw(guest, cause));
        }
    };
    record.postcopy = switch.postcopy;
    record.running = switch.running;
    let stages = migration.context.live.stages_from(&run.control.journal);
    let start = HandoverStart {
        handover: RecordedDestination::new(record, stages),
        ram,
        context: migration.context,
        postcopy: migration.postcopy.into_active(),
        links: LinkState::Up(Box::new(ActiveLinks::new(
            migration.session,
            migration.receivers,
        ))),
        source_paused: Some(switch.at),
        frames: migration.frames,
    };
    let driver = HandoverDriver::new(start, run);
    finish_handover(driver, guest, begun, DestinationEvent::DeviceStateLoaded)
}

/// Ends a migration that could not begin.
fn give_back(guest: &mut dyn DestinationGuest, cause: DestinationFailure) -> ReceiveError {
    if let Err(error) = guest.release() {
        tracing::warn!(error = %Report::new(&error), "giving the machine back");
    }
    ReceiveError::at_source(cause)
}
