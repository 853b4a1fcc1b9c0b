//! A migration from its start.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_handover::{History, Outcome, RecordedSource, SourceEvent, SourceRecord, SourceStage};
use hikkoshi_link::{BackgroundSender, HandshakeError, Remote};
use hikkoshi_memory::{Backing, ContentMap};
use hikkoshi_pages::PAGE_BYTES;
use hikkoshi_wire::{MigrationId, Mode, OfferedGuest};

use crate::disks::DiskRelay;
use crate::ends_now::has_ended_after;
use crate::guest::{Hardware, SourceGuest};
use crate::report::{Account, Phase};
use crate::retry::RetryBudget;
use crate::source::context::{MigrateControl, MigrationContext};
use crate::source::convergence::PrecopyResult;
use crate::source::disks;
use crate::source::error::{MigrateError, SourceFailure};
use crate::source::handover_driver::{ActiveLinks, HandoverDriver};
use crate::source::lifecycle::{MigrationResult, SourceStart, with_context};
use crate::source::notify_guest_kept;
use crate::source::options::SourceOptions;
use crate::source::precopy::Precopy;
use crate::source::precopy::workers::PrecopyWorkers;
use crate::source::session::SourceSession;
use crate::source::switchover;
use crate::source::switchover::{LastPages, ReadySwitchover};
use crate::source::unsent::UnsentPages;

/// How long to look at the guest's memory before it is moved, at most.
const LOOK: Duration = Duration::from_millis(50);

/// Moves `guest` to the destination at `remote`.
///
/// Returns when the guest runs there and every page has arrived.
///
/// # Errors
/// [`MigrateError`] contains the cause and where the guest is now. With
/// [`Outcome::AtSource`] the guest's process has been released. With the other
/// outcomes the migration can be resumed if it was recorded, see
/// [`resume_migrate`](crate::resume_migrate).
pub fn migrate(
    guest: &mut dyn SourceGuest,
    remote: &Remote,
    options: &SourceOptions,
    control: &MigrateControl,
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
        history: History::begin(),
    });
    // A migration before this one may have been cancelled after it had sent private blocks.
    for memory in guest.ram().backings().iter().filter_map(Backing::private) {
        memory.clear_sent();
    }
    record.and_then(|record| {
        let start = SourceStart {
            record,
            remote,
            resumed: false,
        };
        with_context(guest, options, control, start, |shared, guest, handover| {
            run(shared, guest, remote, handover)
        })
    })
}

fn run(
    shared: &MigrationContext,
    guest: &mut dyn SourceGuest,
    remote: &Remote,
    handover: &mut RecordedSource,
) -> Result<MigrationResult, MigrateError> {
    let at_source = |cause| MigrateError::new(cause, Outcome::AtSource);
    handover
        .write()
        .map_err(|error| at_source(SourceFailure::Journal(error)))?;
    shared.progress.begin(Phase::Connecting, 0, 0);
    look_at_content(shared, guest).map_err(at_source)?;
    if let Some(private) = shared.private_blocks() {
        shared.observer.notice(&private.to_string());
    }
    let capture = if shared.options.keep_frames {
        guest.capture_frames()
    } else {
        Ok(None)
    };
    let capture = capture.unwrap_or_else(|error| {
        shared.observer.notice(&format!(
            "frames that arrive for the guest while it is paused are lost: {}",
            Report::new(&error)
        ));
        None
    });
    for card in capture.iter().flat_map(|capture| capture.without()) {
        shared.observer.notice(&format!(
            "frames that arrive while the guest is paused are lost for its network card {card}"
        ));
    }
    let opened = SourceSession::open(
        shared,
        remote,
        handover.record().id,
        offer(guest, shared.options.allow_cpu_mismatch),
        capture,
    );
    guest.disks_compared();
    let (mut session, links) = opened.map_err(at_source)?;
    shared
        .sent
        .set_destination(shared.ram.layout(), &session.destination);
    let options = &shared.options;
    let write_counts =
        options.hot_first && options.mode != Mode::Postcopy && options.may_postcopy();
    let unsent = Arc::new(UnsentPages::empty(
        shared.ram.layout().pages(),
        write_counts,
    ));
    let mut rounds = 0;
    let switched = disks::copy(shared, guest, &mut session)
        .and_then(|()| before_pause(shared, guest, &mut session, links, &unsent, &mut rounds))
        .and_then(|rest| switchover::switch(shared, guest, &mut session, rest, &unsent));
    let ReadySwitchover { paused, postcopy } = match switched {
        Ok(switched) => switched,
        Err(cause) => {
            let may_be_ready = session.may_be_ready;
            let (error, may_be_undelivered) = cancel(shared, guest, &mut session, cause);
            shared.steps.end(Instant::now());
            if may_be_ready && may_be_undelivered {
                notify_guest_kept::send(remote, handover.record().id, &*shared.observer);
            }
            return Err(error);
        }
    };
    let had_postcopy = postcopy.is_some();
    let handover = HandoverDriver {
        shared,
        guest,
        handover,
        remote,
        unsent,
        active: Some(ActiveLinks::new(session, postcopy)),
        retry_budget: RetryBudget::new(
            shared.options.retry_for.within(had_postcopy),
            Instant::now(),
        ),
        paused: Some(paused),
        left_to_do: None,
        committed: None,
    };
    let handover = handover.run(SourceEvent::Ready)?;
    Ok(MigrationResult {
        handover,
        rounds,
        postcopy: had_postcopy,
    })
}

/// What the destination is offered.
fn offer(guest: &mut dyn SourceGuest, allow_cpu_mismatch: bool) -> OfferedGuest {
    let Hardware {
        processors,
        machine,
    } = guest.hardware();
    OfferedGuest {
        domain: guest.domain(),
        description: guest.describe().clone(),
        machine,
        processors,
        allow_cpu_mismatch,
        disks: guest.offered_disks(),
    }
}

/// Finds out how much there is to send, about. Fails if the limit of the bandwidth is too low for
/// that.
fn look_at_content(
    shared: &MigrationContext,
    guest: &mut dyn SourceGuest,
) -> Result<(), SourceFailure> {
    let disks = guest.disk_content()?;
    if disks.unknown.is_empty() {
        shared.live.set_disk_content(disks.bytes);
    } else if shared.control.limits().bandwidth.is_some() {
        shared.observer.notice(&format!(
            "how much the images of these disks hold is not known: {}; whether the limit of the \
             bandwidth suffices for them is not checked",
            disks.unknown.join(", ")
        ));
    }
    // A failure shows again when the pages are read to be sent.
    let memory = match ContentMap::sample(&shared.ram, LOOK) {
        Ok(content) => {
            let pages = content.pages_from(0).likely;
            shared.live.set_content(content);
            // Below 2^53, and not negative.
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let bytes = (pages as u64).saturating_mul(PAGE_BYTES);
            bytes
        }
        Err(_) => 0,
    };
    Ok(shared
        .control
        .set_content(disks.bytes.saturating_add(memory))?)
}

/// Everything before the guest is paused.
fn before_pause(
    shared: &MigrationContext,
    guest: &mut dyn SourceGuest,
    session: &mut SourceSession,
    links: Vec<BackgroundSender>,
    unsent: &Arc<UnsentPages>,
    rounds: &mut u32,
) -> Result<LastPages, SourceFailure> {
    let options = &shared.options;
    let rest = if options.mode == Mode::Postcopy {
        shared.control.skip_precopy();
        guest.prepare_pause()?;
        session.prepare_frames();
        LastPages::Postcopy(links)
    } else {
        shared.control.begin_precopy();
        let begun = Instant::now();
        let log = guest.start_dirty_log()?;
        let workers = PrecopyWorkers::start(shared, links, &session.background, unsent)?;
        let mut precopy = Precopy::new(shared, (Arc::clone(&log), begun), workers, unsent);
        let result = until_last_pages(guest, session, &mut precopy, options);
        *rounds = precopy.rounds();
        match result? {
            PrecopyResult::Converged => {
                *rounds += 1;
                LastPages::Precopy(Box::new(precopy))
            }
            PrecopyResult::StartPostcopy => {
                let (links, rest) = precopy.into_links()?;
                LastPages::Hybrid(log, links, rest)
            }
        }
    };
    switchover::discard_stale_pages(shared, session, &rest, unsent)?;
    Ok(rest)
}

/// The rounds of pre-copy, and the preparation of the pause: the guest can be paused now.
fn until_last_pages(
    guest: &mut dyn SourceGuest,
    session: &mut SourceSession,
    precopy: &mut Precopy,
    options: &SourceOptions,
) -> Result<PrecopyResult, SourceFailure> {
    let mut result = precopy.run(guest, options)?;
    // Before the last pages are looked for: the guest writes others meanwhile.
    guest.prepare_pause()?;
    session.prepare_frames();
    while result == PrecopyResult::Converged && !precopy.begin_last_round(guest)? {
        result = match precopy.gives_up(options)? {
            Some(result) => result,
            None => precopy.run(guest, options)?,
        };
        session.prepare_frames();
    }
    Ok(result)
}

/// Cancels a migration before *Commit*: resumes the guest first, then informs
/// the destination. Returns also whether the destination may not receive that. One that has
/// failed itself has ended, also if another link's end was seen before its reason.
fn cancel(
    shared: &MigrationContext,
    guest: &mut dyn SourceGuest,
    session: &mut SourceSession,
    cause: SourceFailure,
) -> (MigrateError, bool) {
    let cause = session.explain_disks(shared, cause);
    // Before anything is done to the machine, which may wait for the destination, and before the
    // guest runs, whose writes would.
    session.disks.iter().for_each(DiskRelay::abort);
    let resumed = guest.resume();
    let cause = session.explain(cause);
    let may_be_undelivered = notify_guest_kept::may_be_undelivered(&cause);
    let has_ended = has_ended_after(guest, &resumed);
    session.cancel(cause.cancel_reason(has_ended));
    let error = MigrateError::after_resume(cause, resumed, has_ended);
    (error, may_be_undelivered)
}

pub(crate) fn random() -> io::Result<[u8; 16]> {
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(io::Error::other)?;
    Ok(id)
}
