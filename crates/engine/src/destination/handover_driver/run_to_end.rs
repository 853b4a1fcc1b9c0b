//! Drives the handover to its end, and sums up the migration.

use std::sync::Arc;
use std::time::Instant;

use crate::destination::error::ReceiveError;
use crate::destination::handover_driver::HandoverDriver;
use crate::destination::postcopy::huge::collapse;
use crate::guest::DestinationGuest;
use crate::report::{Account, guest_state, millis, total_ms};
use hikkoshi_handover::DestinationEvent;

/// From *ready* on, or from where another engine was.
pub(crate) fn finish_handover(
    driver: HandoverDriver<'_>,
    guest: &mut dyn DestinationGuest,
    begun: Instant,
    first: DestinationEvent,
) -> Result<Account, ReceiveError> {
    let (control, options, context) = (driver.control, driver.options, Arc::clone(&driver.context));
    let postcopy = driver.handover.record().postcopy;
    let running = driver.handover.record().running;
    let resumed = context.live.is_resumed();
    let history = driver.handover.record().history;
    let result = driver.run(guest, first)?;
    let account = Account {
        total_ms: total_ms(begun, resumed.then_some(&history)),
        engine_ms: resumed.then(|| total_ms(begun, None)),
        downtime_ms: result.downtime.map(millis),
        frames: result.frames,
        requests: result.requests,
        left_to_do: result.left_to_do,
        ..context
            .live
            .account(guest_state(running, result.shut_down), postcopy)
    };
    let collapse = options
        .collapse
        .filter(|_| result.shut_down == Some(false))
        .map(|rate| collapse::run(guest, rate, options.priority, control));
    Ok(Account {
        collapse,
        ..account
    })
}
