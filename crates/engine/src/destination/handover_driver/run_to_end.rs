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
    let (watch, options, context) = (driver.watch, driver.options, Arc::clone(&driver.context));
    let (mode, postcopy) = (
        driver.machine.record().mode,
        driver.machine.record().postcopy,
    );
    let running = driver.machine.record().running;
    let resumed = context.live.is_resumed();
    let history = driver.machine.record().history;
    let pages = driver.ram.layout().pages();
    let result = driver.run(guest, first)?;
    let total = total_ms(begun, resumed.then_some(&history));
    let engine_ms = resumed.then(|| total_ms(begun, None));
    let collapse = options
        .collapse
        .filter(|_| result.shut_down == Some(false))
        .map(|rate| collapse::run(guest, rate, options.priority, watch));
    let (repeats, rounds_detail, outages) = context.live.history();
    Ok(Account {
        total_ms: total,
        engine_ms,
        downtime_ms: result.downtime.map(millis),
        switchover: context.steps.all(),
        postcopy,
        pages: context.counters.pages(pages),
        bytes: context.counters.bytes(),
        repeats,
        rounds_detail,
        outages,
        disk_bytes: context.counters.disk_bytes(),
        frames: result.frames,
        requests: result.requests,
        collapse,
        left_to_do: result.left_to_do,
        ..Account::new(mode, guest_state(running, result.shut_down))
    })
}
