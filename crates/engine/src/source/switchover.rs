//! The switchover: from the running source to the running destination, with
//! at no instant two guests that can run.
//!
//! ```text
//! source                                   destination
//!   Discard (dirty so far)  ───────────▶     drops stale pages
//!                           ◀───────────   Discarded
//!   pauses the guest
//!   saves device state      ── chunks ──▶    collects it
//!   last take of the log
//!   last pages, or Discard  ───────────▶     drops stale pages
//!   Switch                  ───────────▶     registers userfaultfd,
//!                                            loads device state
//!                           ◀───────────   Ready
//!   records that            ───────────
//!   Commit                  ───────────▶     records that, resumes the guest
//!                           ◀───────────   Resumed
//! ```
//!
//! Whatever fails before `Commit` is sent resumes the source's guest. From
//! *ready* on `handover.rs` leads, by the rules of `docs/protocol.md`.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hikkoshi_dirty::DirtyLog;
use hikkoshi_pages::PageRange;
use hikkoshi_wire::{DeviceStateDigest, MAX_DEVICE_CHUNK, PageRanges, ToDestination, ToSource};

use crate::guest::SourceGuest;
use crate::report::{Counters, Phase};
use crate::source::MigrationContext;
use crate::source::deadline::Deadline;
use crate::source::error::SourceFailure;
use crate::source::postcopy::push_policy::PushPolicy;
use crate::source::postcopy::urgent::UrgentThread;
use crate::source::precopy::Precopy;
use crate::source::session::{CommitState, DISCARD_TIMEOUT, Session};
use crate::source::unsent::UnsentPages;
use hikkoshi_link::{BackgroundSender, LinkError};
use hikkoshi_linux::Cancel;

/// How often the log is taken before the pause, at most: each pass drops what
/// the guest has dirtied while the one before was dropped, so that little is
/// left to drop while it is stopped.
const DISCARD_PASSES: u32 = 4;

/// Few enough to be dropped while the guest is stopped: about 2 ms of hole
/// punching at the destination (2.4–3.5 µs each, measured on tmpfs).
const FEW_DISCARDS: usize = 1000;

/// How the last pages get to the destination.
#[derive(Debug)]
pub(crate) enum LastPages {
    /// With the guest stopped.
    Precopy(Box<Precopy>),
    /// After the switch; what the log holds is owed. The links are empty.
    Hybrid(Arc<dyn DirtyLog>, Vec<BackgroundSender>),
    /// After the switch; everything is owed.
    Postcopy(Vec<BackgroundSender>),
}

impl LastPages {
    fn is_postcopy(&self) -> bool {
        !matches!(self, Self::Precopy(_))
    }
}

/// A switchover up to *ready*.
#[derive(Debug)]
pub(crate) struct ReadySwitchover {
    /// When the guest was stopped.
    pub(crate) paused: Instant,
    /// How far post-copy has got, if there is one.
    pub(crate) postcopy: Option<PreparedPostcopy>,
}

/// Post-copy as far as it goes before the guest runs.
#[derive(Debug)]
pub(crate) struct PreparedPostcopy {
    /// Answers page requests.
    pub(crate) urgent: UrgentThread,
    /// What the rest is pushed on.
    pub(crate) links: Vec<BackgroundSender>,
    /// In which order.
    pub(crate) policy: Arc<PushPolicy>,
}

/// Everything before the pause that makes the pause shorter: in post-copy the
/// destination hears what is owed, as far as it is known, and drops what it
/// holds of it.
pub(crate) fn discard_stale_pages(
    shared: &MigrationContext,
    session: &mut Session,
    rest: &LastPages,
    unsent: &UnsentPages,
) -> Result<(), SourceFailure> {
    let destination = session.destination.clone();
    match rest {
        LastPages::Precopy(_) => return Ok(()),
        LastPages::Postcopy(_) => {
            let new = unsent.add_data(&shared.ram, &destination, destination.all())?;
            discard(session, &new)?;
        }
        LastPages::Hybrid(log, _) => {
            // The links are empty: a page still on its way would be written
            // after the hole was punched, and be taken for its content.
            for _ in 0..DISCARD_PASSES {
                shared.check()?;
                let new = unsent.add_dirty(&**log, &destination)?;
                discard(session, &new)?;
                wait_for_discards(shared, session)?;
                if new.len() < FEW_DISCARDS {
                    break;
                }
            }
            return Ok(());
        }
    }
    wait_for_discards(shared, session)
}

/// Waits until the destination has dropped what it was told to.
fn wait_for_discards(
    shared: &MigrationContext,
    session: &mut Session,
) -> Result<(), SourceFailure> {
    let doing = "waiting for the destination to drop stale pages";
    session.send(&ToDestination::DiscardEnd, doing)?;
    let stage = CommitState::BeforeCommit(&shared.cancel);
    // Both sides are at work here, and nobody else waits.
    let limit = DISCARD_TIMEOUT.min(2 * shared.options.patience);
    session.expect(doing, stage, limit, |m| matches!(m, ToSource::Discarded))
}

/// Stops the guest, and hears that it could run at the destination.
///
/// On an error the caller resumes the guest.
pub(crate) fn switch(
    shared: &MigrationContext,
    guest: &mut dyn SourceGuest,
    session: &mut Session,
    rest: LastPages,
    unsent: &Arc<UnsentPages>,
) -> Result<ReadySwitchover, SourceFailure> {
    shared.progress.begin(Phase::Switchover, 0, 0);
    let limit = shared.options.max_downtime + shared.options.patience;
    let give_up = shared.cancel.child();
    let deadline = Deadline::start(&session.streams, give_up.clone(), limit);
    let deadline = deadline.map_err(SourceFailure::Thread)?;
    let prepared = prepare(shared, guest, session, rest, unsent, &give_up);
    if !deadline.met() {
        // What failed then failed for this.
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
    // The last moment to call it off.
    shared.check()?;
    Ok(switched)
}

/// From the pause to the destination's *ready*.
fn prepare(
    shared: &MigrationContext,
    guest: &mut dyn SourceGuest,
    session: &mut Session,
    rest: LastPages,
    unsent: &Arc<UnsentPages>,
    give_up: &Cancel,
) -> Result<ReadySwitchover, SourceFailure> {
    shared.check()?;
    let postcopy = rest.is_postcopy();
    let paused = guest.pause()?;
    let since_pause = |step| tracing::debug!(step, at = ?paused.elapsed(), "switchover");
    since_pause("paused");
    // Stale pages are dropped while the device state is saved; what saving it
    // dirties comes after it.
    discard_newly_dirty(shared, session, &rest, unsent)?;
    let digest = send_device_state(guest, session, give_up)?;
    since_pause("device state sent");
    shared.check()?;
    Counters::add(&shared.counters.device_state_bytes, digest.bytes());
    if let LastPages::Precopy(precopy) = &rest {
        precopy.last_round()?;
    } else {
        discard_newly_dirty(shared, session, &rest, unsent)?;
    }
    since_pause("dirty log taken");
    // Loading the device state touches memory: requests are answered from
    // before it begins.
    let answering = match (rest, session.urgent.take()) {
        (LastPages::Hybrid(_, links) | LastPages::Postcopy(links), Some(ends)) => {
            let policy = Arc::new(PushPolicy::new(links.len()));
            Some(PreparedPostcopy {
                urgent: UrgentThread::start(shared, session, ends, unsent, &policy)?,
                links,
                policy,
            })
        }
        _ => None,
    };
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
    session.expect(
        "waiting for the destination to get ready",
        CommitState::BeforeCommit(&shared.cancel),
        // The deadline is over all of it.
        Duration::MAX,
        |m| matches!(m, ToSource::Ready),
    )?;
    since_pause("destination ready");
    Ok(ReadySwitchover {
        paused,
        postcopy: answering,
    })
}

/// Tells the destination what has come to be owed since it was last told.
fn discard_newly_dirty(
    shared: &MigrationContext,
    session: &mut Session,
    rest: &LastPages,
    unsent: &UnsentPages,
) -> Result<(), SourceFailure> {
    let new = match rest {
        LastPages::Precopy(_) => return Ok(()),
        LastPages::Hybrid(log, _) => unsent.add_dirty(&**log, &session.destination)?,
        LastPages::Postcopy(_) => unsent.add_data_in_gaps(&shared.ram, &session.destination)?,
    };
    discard(session, &new)
}

/// Sends the device state as the guest's adapter produces it.
fn send_device_state(
    guest: &mut dyn SourceGuest,
    session: &mut Session,
    give_up: &Cancel,
) -> Result<DeviceStateDigest, SourceFailure> {
    let mut sink = StateSink {
        session,
        digest: DeviceStateDigest::new(),
        chunk: Vec::with_capacity(MAX_DEVICE_CHUNK),
        failure: None,
    };
    let saved = guest.save_device_state(&mut sink, give_up);
    let saved = saved.map_err(SourceFailure::Guest);
    // Of a state that is not whole the rest is of no use.
    let sent = saved.and_then(|()| sink.flush().map_err(SourceFailure::Ram));
    if let Some(failure) = sink.failure {
        return Err(failure);
    }
    sent?;
    Ok(sink.digest)
}

/// Cuts device state into messages.
struct StateSink<'a> {
    session: &'a mut Session,
    digest: DeviceStateDigest,
    chunk: Vec<u8>,
    /// The link's own failure, which an [`io::Error`] cannot carry whole.
    failure: Option<SourceFailure>,
}

impl Write for StateSink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = MAX_DEVICE_CHUNK - self.chunk.len();
        let taken = bytes.len().min(room);
        self.chunk.extend_from_slice(&bytes[..taken]);
        if self.chunk.len() == MAX_DEVICE_CHUNK {
            self.flush()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        self.digest.update(&self.chunk).map_err(io::Error::other)?;
        let bytes = std::mem::take(&mut self.chunk);
        self.session
            .send(
                &ToDestination::DeviceStateChunk { bytes },
                "sending the device state",
            )
            .map_err(|failure| {
                let text = io::Error::other(failure.to_string());
                self.failure = Some(failure);
                text
            })
    }
}

/// Tells the destination to drop what it holds of `ranges`, and that it will
/// get them in post-copy.
fn discard(session: &mut Session, ranges: &[PageRange]) -> Result<(), SourceFailure> {
    for ranges in PageRanges::batches(ranges.iter().copied()) {
        session.send(
            &ToDestination::Discard { ranges },
            "telling the destination which pages are stale",
        )?;
    }
    Ok(())
}
