//! The source's side of a migration.
//!
//! One thread leads ([`migrate`]): it connects (`session.rs`), leads the
//! pre-copy rounds (`precopy.rs`), which a thread for each background link does
//! (`workers.rs`; `drained.rs` where devices have to be drained), the switchover (`switchover.rs`) and what comes after it
//! (`handover.rs`), which the machine in `custody` decides (`keeper.rs`). In
//! post-copy every link has a thread that sends pages: `urgent.rs` answers
//! requests, `pusher.rs` pushes the rest. Who sends a page is settled by claiming it in one bitmap
//! (`owed.rs`); what goes first, by hints that nobody waits for (`order/`).

pub(crate) mod deadline;
mod error;
pub(crate) mod handover;
mod kept_notice;
mod options;
pub(crate) mod postcopy;
pub(crate) mod precopy;
pub(crate) mod session;
pub(crate) mod switchover;
pub(crate) mod unsent;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Instant;

pub use error::{MigrateError, SourceFailure};
pub use handover::SOURCE_ENDED;
pub use options::{ReadAhead, SourceOptions, WhenStalled};

use hikkoshi_wire::{MigrationId, Mode};

use crate::guest::SourceGuest;
use crate::report::{Account, Counters, GuestState, Observer, Phase, Requests, Tracker};
use crate::retry_budget::RetryBudget;
use crate::source::precopy::workers::PrecopyWorkers;
use crate::source::unsent::UnsentPages;
use handover::{ActiveLinks, HandoverDriver, HandoverResult};
use hikkoshi_handover::RecordedSource;
use hikkoshi_handover::{Journal, Outcome, SourceAction, SourceEvent, SourceRecord, SourceStage};
use hikkoshi_link::{BackgroundSender, HandshakeError, Remote, UrgentActivity};
use hikkoshi_linux::Cancel;
use hikkoshi_memory::RamFiles;
use precopy::{Precopy, Verdict};
use session::Session;
use switchover::{LastPages, ReadySwitchover};

/// Who watches over a migration from outside.
#[derive(Clone)]
pub struct Watch {
    /// Asks it to stop.
    pub cancel: Cancel,
    /// Is told how it goes.
    pub observer: Arc<dyn Observer>,
    /// Where it is written down how far it is. *Commit* is sent when
    /// [`SourceStage::Committed`] is recorded: from then on nobody may resume
    /// the guest at the source but by the rules of `docs/protocol.md`. When that
    /// cannot be recorded, nothing is committed.
    pub journal: Arc<dyn Journal<SourceRecord>>,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

/// What all parts of one migration share.
#[derive(Debug, Clone)]
pub(crate) struct MigrationContext {
    ram: Arc<RamFiles>,
    counters: Arc<Counters>,
    progress: Arc<Tracker>,
    observer: Arc<dyn Observer>,
    cancel: Cancel,
    options: SourceOptions,
    /// Told by the thread that answers requests, heeded by the background links.
    urgency: UrgentActivity,
}

impl MigrationContext {
    /// Fails once somebody has cancelled.
    fn check(&self) -> Result<(), SourceFailure> {
        if self.cancel.is_cancelled() {
            Err(SourceFailure::Cancelled)
        } else {
            Ok(())
        }
    }
}

/// Moves `guest` to the destination that `remote` names.
///
/// Returns when the guest runs there and every page is there.
///
/// # Errors
/// [`MigrateError`] says what went wrong and where the guest is now. With
/// [`Outcome::AtSource`] everything taken from the guest's process was given
/// back. With the others the migration can be taken up again, see
/// [`resume_migrate`], if it was recorded.
pub fn migrate(
    guest: &mut dyn SourceGuest,
    remote: &Remote,
    options: &SourceOptions,
    watch: &Watch,
) -> Result<Account, MigrateError> {
    let id = random().map_err(|error| {
        let cause = HandshakeError::Io(error);
        let address = remote.address.to_string();
        MigrateError::new(SourceFailure::Connect { address, cause }, Outcome::AtSource)
    });
    let record = id.map(|id| SourceRecord {
        id: MigrationId::from_bytes(id),
        stage: SourceStage::Owned,
        mode: options.mode,
    });
    record.and_then(|record| {
        let machine = RecordedSource::new(record, Arc::clone(&watch.journal));
        with_context(guest, options, watch, machine, |shared, guest, machine| {
            run(shared, guest, remote, machine)
        })
    })
}

/// Goes on with a migration that another engine has begun and recorded, to the
/// destination that is at `remote` now.
///
/// A guest that was not handed over yet is made to run here: that is the error
/// [`SourceFailure::Interrupted`]. In post-copy the pages come from `guest`'s
/// RAM files, and nothing else of it is needed.
///
/// # Errors
/// As [`migrate`].
pub fn resume_migrate(
    guest: &mut dyn SourceGuest,
    record: SourceRecord,
    remote: &Remote,
    options: &SourceOptions,
    watch: &Watch,
) -> Result<Account, MigrateError> {
    let options = SourceOptions {
        mode: record.mode,
        ..options.clone()
    };
    let machine = RecordedSource::new(record, Arc::clone(&watch.journal));
    with_context(guest, &options, watch, machine, |shared, guest, machine| {
        let outcome = match machine.stage() {
            SourceStage::Committed => Some(Outcome::Paused),
            SourceStage::HandedOver => Some(Outcome::AtDestination),
            SourceStage::Owned | SourceStage::Done => None,
        };
        if let Some(outcome) = outcome {
            guest
                .stands_still()
                .map_err(|error| MigrateError::new(error.into(), outcome))?;
        }
        let handover = HandoverDriver {
            shared,
            guest,
            machine,
            remote,
            unsent: Arc::new(UnsentPages::empty(shared.ram.layout().pages(), false)),
            active: None,
            retry_budget: RetryBudget::new(
                shared.options.retry_for.of(shared.options.may_postcopy()),
                Instant::now(),
            ),
            paused: None,
        };
        let handover = handover.run(SourceEvent::Restarted)?;
        Ok(MigrationResult {
            handover,
            rounds: 0,
            postcopy: shared.options.mode != Mode::Precopy,
        })
    })
}

/// Gives a migration up that another engine has begun and recorded: the guest
/// runs on here, as it was when it was stopped.
///
/// Nobody is asked. Whoever calls this answers for it that the destination has
/// never run the guest and never will, or that its guest has ended: otherwise
/// there are two. If the destination ever ran it, what it did there is lost.
///
/// # Errors
/// As [`migrate`]; with [`Outcome::Stopped`] the guest does not run, and this can
/// be tried again.
pub fn give_up_migrate(
    guest: &mut dyn SourceGuest,
    record: SourceRecord,
    watch: &Watch,
) -> Result<(), MigrateError> {
    let mut machine = RecordedSource::new(record, Arc::clone(&watch.journal));
    let outcome = match machine.stage() {
        SourceStage::Owned => Outcome::Stopped,
        SourceStage::Committed => Outcome::Paused,
        SourceStage::HandedOver | SourceStage::Done => Outcome::AtDestination,
    };
    let actions = machine
        .on(SourceEvent::GivenUp)
        .map_err(|error| MigrateError::new(SourceFailure::Journal(error), outcome))?;
    if actions.contains(&SourceAction::ResumeGuest)
        && let Err(error) = guest.resume()
    {
        return Err(MigrateError::new(error.into(), Outcome::Stopped));
    }
    let released = guest.release();
    machine.close();
    if let Err(error) = released {
        watch
            .observer
            .notice(&format!("the migration is given up, but: {error}"));
    }
    Ok(())
}

/// Makes up what all of a migration shares, and the account in the end.
fn with_context(
    guest: &mut dyn SourceGuest,
    options: &SourceOptions,
    watch: &Watch,
    mut machine: RecordedSource,
    body: impl FnOnce(
        &MigrationContext,
        &mut dyn SourceGuest,
        &mut RecordedSource,
    ) -> Result<MigrationResult, MigrateError>,
) -> Result<Account, MigrateError> {
    let observer = &watch.observer;
    let shared = MigrationContext {
        ram: guest.ram(),
        counters: Arc::default(),
        progress: Arc::default(),
        observer: Arc::clone(observer),
        cancel: watch.cancel.clone(),
        options: options.clone(),
        urgency: UrgentActivity::new(),
    };
    let begun = Instant::now();
    let result = body(&shared, guest, &mut machine);
    let outcome = result.as_ref().err().map(|error| error.outcome);
    let keep_attached = match outcome {
        Some(Outcome::Stopped) => true,
        None | Some(Outcome::Lost) => false,
        Some(_) => matches!(
            machine.stage(),
            SourceStage::Committed | SourceStage::HandedOver
        ),
    };
    let released = if keep_attached {
        // It may come back yet, or its pages are needed: its process is to go on
        // doing nothing that would change them.
        guest.leave();
        Ok(())
    } else {
        guest.release()
    };
    // What the machine calls `Close`, or a guest that is nowhere any more. One that
    // is the source's, but does not run, may still be brought back by what is
    // written there; so may what was changed in its process.
    let over = match outcome {
        None | Some(Outcome::Lost) => true,
        Some(Outcome::AtSource) => released.is_ok() || guest.has_ended(),
        Some(_) => false,
    };
    if over {
        machine.close();
    }
    match result {
        Ok(MigrationResult {
            handover,
            rounds,
            postcopy,
        }) => {
            if let Err(error) = released {
                observer.notice(&format!("the guest has moved, but: {error}"));
            }
            Ok(Account {
                mode: options.mode,
                guest_state: GuestState::new(guest.describe().running, handover.shut_down),
                total_ms: begun.elapsed().as_secs_f64() * 1e3,
                downtime_ms: handover.downtime.as_secs_f64() * 1e3,
                rounds,
                postcopy,
                pages: shared.counters.pages(shared.ram.layout().pages()),
                bytes: shared.counters.bytes(),
                drains: shared.counters.drains(),
                requests: Requests {
                    requests_under_way: postcopy.then(|| shared.counters.requests_under_way()),
                    ..handover.requests
                },
                collapse: None,
            })
        }
        Err(mut error) => {
            error.aftermath.extend(released.err());
            Err(error)
        }
    }
}

/// A migration that succeeded.
struct MigrationResult {
    handover: HandoverResult,
    rounds: u32,
    postcopy: bool,
}

fn run(
    shared: &MigrationContext,
    guest: &mut dyn SourceGuest,
    remote: &Remote,
    machine: &mut RecordedSource,
) -> Result<MigrationResult, MigrateError> {
    let at_source = |cause| MigrateError::new(cause, Outcome::AtSource);
    machine
        .write()
        .map_err(|error| at_source(SourceFailure::Journal(error)))?;
    shared.progress.begin(Phase::Connecting, 0, 0);
    let (mut session, links) = Session::open(
        shared,
        remote,
        machine.record().id,
        guest.describe(),
        guest.processors(),
        guest.machine(),
    )
    .map_err(at_source)?;
    let options = &shared.options;
    let write_counts =
        options.hot_first && options.mode != Mode::Postcopy && options.may_postcopy();
    let unsent = Arc::new(UnsentPages::empty(
        shared.ram.layout().pages(),
        write_counts,
    ));
    let mut rounds = 0;
    let switched = before_pause(shared, guest, &mut session, links, &unsent, &mut rounds)
        .and_then(|rest| switchover::switch(shared, guest, &mut session, rest, &unsent));
    let ReadySwitchover { paused, postcopy } = match switched {
        Ok(switched) => switched,
        Err(cause) => {
            let may_be_ready = session.may_be_ready;
            let notify = may_be_ready && kept_notice::may_be_undelivered(&cause);
            let error = cancel(guest, &mut session, cause);
            if notify {
                kept_notice::send(remote, machine.record().id, &*shared.observer);
            }
            return Err(error);
        }
    };
    let had_postcopy = postcopy.is_some();
    let handover = HandoverDriver {
        shared,
        guest,
        machine,
        remote,
        unsent,
        active: Some(ActiveLinks::new(session, postcopy)),
        retry_budget: RetryBudget::new(shared.options.retry_for.of(had_postcopy), Instant::now()),
        paused: Some(paused),
    };
    let handover = handover.run(SourceEvent::Ready)?;
    Ok(MigrationResult {
        handover,
        rounds,
        postcopy: had_postcopy,
    })
}

/// Everything before the guest is stopped.
fn before_pause(
    shared: &MigrationContext,
    guest: &mut dyn SourceGuest,
    session: &mut Session,
    links: Vec<BackgroundSender>,
    unsent: &Arc<UnsentPages>,
    rounds: &mut u32,
) -> Result<LastPages, SourceFailure> {
    let options = &shared.options;
    let rest = if options.mode == Mode::Postcopy {
        LastPages::Postcopy(links)
    } else {
        let log = guest.start_dirty_log()?;
        let workers = PrecopyWorkers::start(shared, links, &session.background, unsent)?;
        let mut precopy = Precopy::new(shared, Arc::clone(&log), workers, unsent);
        let verdict = precopy.run(guest, options);
        *rounds = precopy.rounds();
        match verdict? {
            Verdict::Converged => {
                *rounds += 1;
                LastPages::Precopy(Box::new(precopy))
            }
            Verdict::SwitchNow => LastPages::Hybrid(log, precopy.into_links()?),
        }
    };
    switchover::discard_stale_pages(shared, session, &rest, unsent)?;
    Ok(rest)
}

/// Ends a migration that has not come to *ready*: the guest first, then the
/// destination.
fn cancel(
    guest: &mut dyn SourceGuest,
    session: &mut Session,
    cause: SourceFailure,
) -> MigrateError {
    let resumed = guest.resume();
    let cause = session.explain(cause);
    session.cancel(handover::cancel_reason(&cause, guest.has_ended()));
    handover::resumed_at_source(cause, resumed, guest.has_ended())
}

fn random() -> io::Result<[u8; 16]> {
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(io::Error::other)?;
    Ok(id)
}
