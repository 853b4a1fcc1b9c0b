//! The start and end of every migration: the shared context; then the guest is
//! released or kept for another engine, and the account is made.

use std::sync::Arc;
use std::time::Instant;

use error_reporter::Report;
use hikkoshi_handover::{Outcome, RecordedSource, SourceRecord, SourceStage};
use hikkoshi_link::{Remote, UrgentActivity};

use crate::guest::SourceGuest;
use crate::report::{
    Account, Live, LiveStart, RequestStatistics, Stage, guest_state, millis, total_ms,
};
use crate::source::context::{MigrateControl, MigrationContext};
use crate::source::error::{MigrateError, SourceFailure};
use crate::source::handover_driver::CompletionReport;
use crate::source::options::SourceOptions;
use crate::source::repeat_counter::RepeatCounter;

/// How a migration starts at the source.
pub(crate) struct SourceStart<'a> {
    pub(crate) record: SourceRecord,
    pub(crate) remote: &'a Remote,
    /// Another engine had begun it.
    pub(crate) resumed: bool,
}

/// Runs `body` with a new context. Then releases the guest, or keeps it as it is
/// for another engine, and returns the account.
pub(crate) fn with_context(
    guest: &mut dyn SourceGuest,
    options: &SourceOptions,
    control: &MigrateControl,
    start: SourceStart<'_>,
    body: impl FnOnce(
        &MigrationContext,
        &mut dyn SourceGuest,
        &mut RecordedSource,
    ) -> Result<MigrationResult, MigrateError>,
) -> Result<Account, MigrateError> {
    let MigrateControl {
        cancel,
        control: source_control,
        observer,
        journal,
    } = control;
    let resumed = start.resumed;
    let ram = guest.ram();
    let live = Arc::new(Live::new(LiveStart {
        id: start.record.id,
        stage: Stage::Source(start.record.stage),
        resumed: start.resumed,
        mode: start.record.mode,
        peer: start.remote.address.to_string(),
        layout: ram.layout(),
    }));
    let mut handover = RecordedSource::new(start.record, live.stages_from(journal));
    source_control.begin(options, handover.stage(), cancel);
    observer.begin(&live);
    let sent = match start.resumed {
        false => RepeatCounter::none(ram.layout().pages(), options),
        true => RepeatCounter::unknown(),
    };
    let shared = MigrationContext {
        ram,
        counters: Arc::clone(&live.counters),
        progress: Arc::clone(&live.tracker),
        map: Arc::clone(&live.map),
        sent: Arc::new(sent),
        steps: Arc::clone(&live.steps),
        live,
        observer: Arc::clone(observer),
        cancel: cancel.clone(),
        control: source_control.clone(),
        options: options.clone(),
        marks_holes: Arc::default(),
        urgency: UrgentActivity::new(),
    };
    let begun = Instant::now();
    let result = body(&shared, guest, &mut handover);
    source_control.end();
    let outcome = result.as_ref().err().map(|error| error.outcome);
    let keep_attached = match outcome {
        Some(Outcome::Stopped) => true,
        None | Some(Outcome::Lost) => false,
        Some(_) => matches!(
            handover.stage(),
            SourceStage::Committed | SourceStage::HandedOver
        ),
    };
    let lost_here = outcome == Some(Outcome::Lost) && guest.has_ended();
    let released = if keep_attached || lost_here {
        // The guest may be resumed here later, or its pages are still needed: its
        // process must not change them.
        guest.leave();
        Ok(())
    } else {
        guest.release()
    };
    // The state machine's `Close`, or a lost guest. A guest that the source owns but that
    // does not run may still be resumed with the record, and changes in its process
    // may still be undone with it.
    let over = match outcome {
        None => true,
        // Another engine has to notify the destination.
        Some(Outcome::Lost) => !matches!(
            &result,
            Err(MigrateError {
                cause: SourceFailure::MemoryLost {
                    notified: false,
                    ..
                },
                ..
            })
        ),
        Some(Outcome::AtSource) => released.is_ok() || guest.has_ended(),
        Some(_) => false,
    };
    if over {
        handover.close();
    }
    match result {
        Ok(MigrationResult {
            handover: completed,
            rounds,
            postcopy,
        }) => {
            if let Err(error) = released {
                observer.notice(&format!(
                    "the guest has moved, but: {}",
                    Report::new(&error)
                ));
            }
            let history = handover.record().history;
            let state = guest_state(guest.describe().running, Some(completed.shut_down));
            Ok(Account {
                total_ms: total_ms(begun, resumed.then_some(&history)),
                engine_ms: resumed.then(|| total_ms(begun, None)),
                downtime_ms: history.downtime.map(millis),
                likely_downtime_ms: history.likely_downtime.map(millis),
                rounds,
                disks: shared.live.disks(),
                drains: shared.counters.drains(),
                requests: RequestStatistics {
                    requests_under_way: postcopy.then(|| shared.counters.requests_under_way()),
                    ..completed.requests
                },
                frames: completed.frames,
                source_private_bytes: shared.private_blocks().map(|private| private.bytes),
                asynchronous_faults: guest.asynchronous_faults(),
                left_to_do: completed.left_to_do,
                ..shared.live.account(state, postcopy)
            })
        }
        Err(mut error) => {
            error.aftermath.extend(released.err());
            Err(error)
        }
    }
}

/// A migration that succeeded.
pub(crate) struct MigrationResult {
    pub(crate) handover: CompletionReport,
    pub(crate) rounds: u32,
    pub(crate) postcopy: bool,
}
