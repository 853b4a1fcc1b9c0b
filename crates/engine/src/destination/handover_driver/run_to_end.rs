//! Drives the handover to its end, and sums up the migration.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use crate::destination::error::ReceiveError;
use crate::destination::handover_driver::HandoverDriver;
use crate::destination::postcopy::huge::collapse;
use crate::guest::DestinationGuest;
use crate::report::{Account, GuestState, millis, total_ms};
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
    let engine_ms = total_ms(begun, None);
    let collapse = options
        .collapse
        .filter(|_| result.shut_down == Some(false))
        .map(|rate| collapse::run(guest, rate, options.priority, watch));
    let (repeats, round_accounts, outages) = context.live.history();
    let disk_bytes = context.counters.disk_bytes.load(Relaxed);
    Ok(Account {
        mode,
        guest_state: GuestState::new(running, result.shut_down),
        resumed,
        total_ms: total,
        engine_ms,
        downtime_ms: result.downtime.map(millis),
        likely_downtime_ms: None,
        switchover: context.steps.all(),
        rounds: 0,
        postcopy,
        pages: context.counters.pages(pages),
        bytes: context.counters.bytes(),
        repeats,
        round_accounts,
        outages,
        stale_pages: None,
        disks: Vec::new(),
        disk_bytes,
        drains: None,
        frames: result.frames,
        requests: result.requests,
        collapse,
        source_private_bytes: None,
        asynchronous_faults: None,
        left_to_do: result.left_to_do,
    })
}
