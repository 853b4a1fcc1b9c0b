//! The switchover: from the running source to the running destination. At no
//! instant can two guests run.
//!
//! ```text
//! source                                   destination
//!   Discard (dirty so far)  ───────────▶     drops stale pages,
//!                           ◀───────────   registers userfaultfd: Discarded
//!   pauses the guest
//!   completes the copies of disks
//!   saves device state      ── chunks ──▶    collects it
//!   meanwhile reads the log:
//!   last pages, or Discard  ───────────▶     drops stale pages
//!   reads the log once more ───────────▶     the same
//!   Switch                  ───────────▶     loads device state
//!   pages that would be lost
//!   with QEMU, if others
//!   would not               ───────────▶     installs them
//!   checks what was saved   ◀───────────   Ready
//!   records that            ───────────
//!   Commit                  ───────────▶     records that, resumes the guest
//!                           ◀───────────   GuestResumed
//! ```
//!
//! A failure before `Commit` is sent resumes the source's guest. From *Ready* on `handover_driver/`
//! leads, by the rules of `docs/protocol.md`.

mod deadline;
mod device_state;
mod last_pages;
mod send_private_pages;
mod stale_pages;

use std::sync::Arc;
use std::time::{Duration, Instant};

use hikkoshi_link::LinkError;
use hikkoshi_linux::CancelFlag;
use hikkoshi_wire::{ToDestination, ToSource};

use crate::disks::DiskRelay;
use crate::guest::SourceGuest;
use crate::report::{Counters, Phase};
use crate::source::context::MigrationContext;
use crate::source::disks;
use crate::source::error::SourceFailure;
use crate::source::postcopy::PreparedPostcopy;
use crate::source::session::{CommitState, SourceSession};
use crate::source::unsent::UnsentPages;
pub(crate) use deadline::Deadline;
use device_state::send_device_state;
pub(crate) use last_pages::LastPages;
use send_private_pages::PrivatePages;
pub(crate) use stale_pages::discard_stale_pages;
use stale_pages::{PausedPass, discard_newly_dirty};

/// A switchover up to *Ready*.
#[derive(Debug)]
pub(crate) struct ReadySwitchover {
    /// When the guest was paused.
    pub(crate) paused: Instant,
    /// Post-copy, if the mode needs it.
    pub(crate) postcopy: Option<PreparedPostcopy>,
}

/// Pauses the guest, and returns when the destination is ready to run it.
///
/// On an error the caller resumes the guest.
pub(crate) fn switch(
    shared: &MigrationContext,
    guest: &mut dyn SourceGuest,
    session: &mut SourceSession,
    rest: LastPages,
    unsent: &Arc<UnsentPages>,
) -> Result<ReadySwitchover, SourceFailure> {
    shared.progress.begin(Phase::Switchover, 0, 0);
    let limit = shared.control.max_downtime() + shared.options.peer_timeout;
    let give_up = shared.cancel.child();
    let deadline = Deadline::start(&session.streams, give_up.clone(), limit);
    let deadline = deadline.map_err(SourceFailure::Thread)?;
    let prepared = prepare(shared, guest, session, rest, unsent, &give_up);
    if !deadline.met() {
        // The deadline caused the failure, if there was one.
        return Err(match prepared {
            Err(SourceFailure::Guest(why)) => SourceFailure::PausedTooLong { limit, why },
            _ => SourceFailure::Link {
                doing: "handing the guest over",
                cause: LinkError::TooSlow,
            },
        });
    }
    let switched = match prepared {
        Err(SourceFailure::Guest(_)) if shared.cancel.is_cancelled() => {
            return Err(SourceFailure::Cancelled);
        }
        prepared => prepared?,
    };
    // The last chance to cancel.
    shared.control.hand_over()?;
    Ok(switched)
}

/// From the pause to the destination's *Ready*.
fn prepare(
    shared: &MigrationContext,
    guest: &mut dyn SourceGuest,
    session: &mut SourceSession,
    rest: LastPages,
    unsent: &Arc<UnsentPages>,
    give_up: &CancelFlag,
) -> Result<ReadySwitchover, SourceFailure> {
    shared.check()?;
    let postcopy = rest.is_postcopy();
    if let Some(frames) = &mut session.frames {
        frames.start();
    }
    if !session.disks.is_empty() {
        // Better than after the pause.
        disks::check(shared, guest)?;
    }
    session.disks.iter().for_each(DiskRelay::guest_pauses);
    let paused = guest.pause()?;
    let steps = &shared.steps;
    if guest.describe().running {
        steps.begin(paused);
    }
    steps.done("paused");
    // The last pages are sent, or dropped if post-copy follows, while the copies of disks end and
    // the device state is saved. Those that the save dirties are sent or dropped after it.
    let digest = match &rest {
        LastPages::Precopy(precopy) => {
            let round = precopy.begin_round()?;
            let saved = disks::complete(shared, guest, session, give_up)
                .and_then(|()| send_device_state(guest, session, give_up));
            // Also after a failure: the workers send until then.
            let sent = precopy.finish_round(round);
            let digest = saved?;
            sent?;
            digest
        }
        _ => {
            disks::complete(shared, guest, session, give_up)?;
            discard_newly_dirty(shared, session, &rest, unsent, PausedPass::Paused)?;
            steps.done("stale pages known");
            send_device_state(guest, session, give_up)?
        }
    };
    steps.done("device state sent");
    shared.check()?;
    Counters::add(&shared.counters.device_state_bytes, digest.bytes());
    if let LastPages::Precopy(precopy) = &rest {
        precopy.last_round()?;
    } else {
        discard_newly_dirty(shared, session, &rest, unsent, PausedPass::Saved)?;
    }
    steps.done("dirty log taken");
    let private_pages = PrivatePages::find(&shared.ram, unsent, &guest.read_at_resume());
    let doing = "switching over";
    session.may_be_ready = true;
    session.send(
        &ToDestination::Switch {
            device_bytes: digest.bytes(),
            device_crc32c: digest.crc32c(),
            owed_pages: unsent.count(),
            postcopy,
            running: guest.describe().running,
        },
        doing,
    )?;
    // The rest while the destination loads the state, which touches memory.
    let mut answering = match (rest, session.urgent.take()) {
        (LastPages::Hybrid(_, links, _) | LastPages::Postcopy(links), Some(ends)) => Some(
            PreparedPostcopy::start(shared, session, ends, links, unsent)?,
        ),
        _ => None,
    };
    let sent = answering
        .as_mut()
        .and_then(|postcopy: &mut PreparedPostcopy| postcopy.links.first_mut())
        .map(|link| private_pages.send(shared, unsent, link));
    guest.check_device_state()?;
    session.expect(
        "waiting for the destination to get ready",
        CommitState::BeforeCommit(&shared.cancel),
        // `Deadline` limits the whole switchover.
        Duration::MAX,
        |m| matches!(m, ToSource::Ready),
    )?;
    steps.done("destination ready");
    // A destination that fails sends the reason on the control link, and closes the other ones.
    if let Some(sent) = sent {
        sent?.wait_until_installed(shared)?;
        steps.done("pages of firmware and devices sent");
    }
    Ok(ReadySwitchover {
        paused,
        postcopy: answering,
    })
}
