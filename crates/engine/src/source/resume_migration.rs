//! Resumes a migration that another engine recorded.

use std::sync::Arc;
use std::time::Instant;

use hikkoshi_handover::{Outcome, SourceEvent, SourceRecord, SourceStage};
use hikkoshi_link::Remote;
use hikkoshi_wire::Mode;

use crate::guest::SourceGuest;
use crate::report::Account;
use crate::retry::RetryBudget;
use crate::source::context::MigrateControl;
use crate::source::error::MigrateError;
use crate::source::handover_driver::HandoverDriver;
use crate::source::lifecycle::{MigrationResult, SourceStart, with_context};
use crate::source::options::SourceOptions;
use crate::source::unsent::UnsentPages;

/// Resumes a migration that another engine recorded, to the destination that is
/// at `remote` now.
///
/// A guest that was not handed over yet is resumed here, and the error is
/// [`SourceFailure::Interrupted`](crate::source::SourceFailure::Interrupted). In
/// post-copy the pages are read from `guest`'s RAM files; nothing else of the
/// guest is used.
///
/// # Errors
/// The errors of [`migrate`](crate::migrate).
pub fn resume_migrate(
    guest: &mut dyn SourceGuest,
    record: SourceRecord,
    remote: &Remote,
    options: &SourceOptions,
    control: &MigrateControl,
) -> Result<Account, MigrateError> {
    let options = SourceOptions {
        mode: record.mode,
        ..options.clone()
    };
    let start = SourceStart {
        record,
        remote,
        resumed: true,
    };
    with_context(
        guest,
        &options,
        control,
        start,
        |shared, guest, handover| {
            let outcome = match handover.stage() {
                SourceStage::Committed => Some(Outcome::Paused),
                SourceStage::HandedOver => Some(Outcome::AtDestination),
                SourceStage::Owned | SourceStage::Done => None,
            };
            if let Some(outcome) = outcome {
                guest
                    .check_paused()
                    .map_err(|error| MigrateError::new(error.into(), outcome))?;
                guest.handing_over();
            }
            let handover = HandoverDriver {
                shared,
                guest,
                handover,
                remote,
                unsent: Arc::new(UnsentPages::empty(shared.ram.layout().pages(), false)),
                active: None,
                retry_budget: RetryBudget::new(
                    shared
                        .options
                        .retry_for
                        .within(shared.options.may_postcopy()),
                    Instant::now(),
                ),
                paused: None,
                left_to_do: None,
                committed: None,
            };
            let handover = handover.run(SourceEvent::Restarted)?;
            Ok(MigrationResult {
                handover,
                rounds: 0,
                postcopy: shared.options.mode != Mode::Precopy,
            })
        },
    )
}
