//! The source's side of a migration.
//!
//! One thread leads ([`migrate`]): it connects (`session.rs`), leads the
//! pre-copy rounds (`precopy.rs`), which a thread for each background link does
//! (`crew.rs`), and the switchover (`switchover.rs`). In post-copy every link
//! has a thread that sends pages: `urgent.rs` answers requests, `pusher.rs`
//! pushes the rest. Who sends a page is settled by claiming it in one bitmap
//! (`owed.rs`); what goes first, by hints that nobody waits for (`order/`).

mod chunk;
mod crew;
mod error;
mod options;
mod order;
mod owed;
mod pieces;
mod postcopy;
mod precopy;
mod pusher;
mod requests;
mod session;
mod switchover;
mod urgent;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Instant;

pub use error::{MigrateError, Outcome, SourceFailure};
pub use options::{ReadAhead, SourceOptions, WhenStalled};

use crate::cancel::Cancel;
use crate::guest::{GuestError, SourceGuest};
use crate::link::{Address, BackgroundSender, Urgency};
use crate::ram::RamFiles;
use crate::stats::{Account, Counters, Mode, Observer, Phase, Requests, Tracker};
use crew::Crew;
use owed::Owed;
use precopy::{Precopy, Verdict};
use session::Session;
use switchover::{Rest, SwitchError, Switched};

/// Who watches over a migration from outside.
pub struct Watch<'a> {
    /// Asks it to stop.
    pub cancel: Cancel,
    /// Is told how it goes.
    pub observer: Arc<dyn Observer>,
    /// Called once, right before *commit* is sent: from its return on, nobody
    /// may resume the guest at the source, not even when this process dies.
    /// When it fails, nothing is committed.
    pub point_of_no_return: &'a mut dyn FnMut() -> io::Result<()>,
}

impl fmt::Debug for Watch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

/// What all parts of one migration share.
#[derive(Debug, Clone)]
struct Move {
    ram: Arc<RamFiles>,
    counters: Arc<Counters>,
    progress: Arc<Tracker>,
    observer: Arc<dyn Observer>,
    cancel: Cancel,
    options: SourceOptions,
    /// Told by the thread that answers requests, heeded by the background links.
    urgency: Urgency,
}

impl Move {
    /// Fails once somebody has cancelled.
    fn check(&self) -> Result<(), SourceFailure> {
        if self.cancel.is_cancelled() {
            Err(SourceFailure::Cancelled)
        } else {
            Ok(())
        }
    }
}

/// Moves `guest` to the destination that listens at `address`.
///
/// Returns when the guest runs there and every page is there.
///
/// # Errors
/// [`MigrateError`] says what went wrong and where the guest is now. Whatever
/// it is, everything taken from the guest's process was given back.
pub fn migrate(
    guest: &mut dyn SourceGuest,
    address: &Address,
    options: &SourceOptions,
    watch: &mut Watch<'_>,
) -> Result<Account, MigrateError> {
    let observer = Arc::clone(&watch.observer);
    let shared = Move {
        ram: guest.ram(),
        counters: Arc::default(),
        progress: Arc::default(),
        observer: Arc::clone(&observer),
        cancel: watch.cancel.clone(),
        options: options.clone(),
        urgency: Urgency::new(),
    };
    let begun = Instant::now();
    let result = run(&shared, guest, address, watch);
    let released = guest.release();
    match result {
        Ok(Moved {
            downtime_ms,
            rounds,
            postcopy,
            requests,
        }) => {
            if let Err(error) = released {
                observer.notice(&format!("the guest has moved, but: {error}"));
            }
            Ok(Account {
                mode: options.mode,
                total_ms: begun.elapsed().as_secs_f64() * 1e3,
                downtime_ms,
                rounds,
                postcopy,
                pages: shared.counters.pages(shared.ram.layout().pages()),
                bytes: shared.counters.bytes(),
                requests,
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
struct Moved {
    downtime_ms: f64,
    rounds: u32,
    postcopy: bool,
    requests: Requests,
}

fn run(
    shared: &Move,
    guest: &mut dyn SourceGuest,
    address: &Address,
    watch: &mut Watch<'_>,
) -> Result<Moved, MigrateError> {
    shared.progress.begin(Phase::Connecting, 0, 0);
    let (mut session, links) = Session::open(shared, address, guest.describe())
        .map_err(|cause| at_source(cause, Vec::new()))?;
    let options = &shared.options;
    let heat = options.hot_first && options.mode != Mode::Postcopy && options.may_postcopy();
    let owed = Arc::new(Owed::none(shared.ram.layout().pages(), heat));
    let mut rounds = 0;
    let switched = approach(shared, guest, &mut session, links, &owed, &mut rounds)
        .map_err(SwitchError::BeforeCommit)
        .and_then(|rest| switchover::switch(shared, watch, guest, &mut session, rest, &owed));
    let Switched { downtime, postcopy } = match switched {
        Ok(switched) => switched,
        Err(SwitchError::BeforeCommit(cause)) => {
            return Err(call_off(guest, &mut session, cause));
        }
        Err(SwitchError::AfterCommit(cause)) => {
            return Err(ended(session.explain(cause), Outcome::Paused));
        }
    };
    let had_postcopy = postcopy.is_some();
    let requests = postcopy::run(shared, &mut session, postcopy, &owed)
        .map_err(|cause| ended(cause, Outcome::AtDestination))?;
    Ok(Moved {
        downtime_ms: downtime.as_secs_f64() * 1e3,
        rounds,
        postcopy: had_postcopy,
        requests,
    })
}

/// Everything before the guest is stopped.
fn approach(
    shared: &Move,
    guest: &mut dyn SourceGuest,
    session: &mut Session,
    links: Vec<BackgroundSender>,
    owed: &Arc<Owed>,
    rounds: &mut u32,
) -> Result<Rest, SourceFailure> {
    let options = &shared.options;
    let rest = if options.mode == Mode::Postcopy {
        Rest::Postcopy(links)
    } else {
        let log = guest.start_dirty_log()?;
        let crew = Crew::start(shared, links, &session.background, owed)?;
        let mut precopy = Precopy::new(shared, Arc::clone(&log), crew);
        let verdict = precopy.run(options);
        *rounds = precopy.rounds();
        match verdict? {
            Verdict::Converged => {
                *rounds += 1;
                Rest::Precopy(precopy)
            }
            Verdict::SwitchNow => Rest::Hybrid(log, precopy.disband()?),
        }
    };
    switchover::announce(shared, session, &rest, owed)?;
    Ok(rest)
}

/// Ends a migration that has not been committed: the guest first, then the
/// destination.
fn call_off(
    guest: &mut dyn SourceGuest,
    session: &mut Session,
    cause: SourceFailure,
) -> MigrateError {
    let resumed = guest.resume();
    let cause = session.explain(cause);
    let reason = match &cause {
        SourceFailure::Cancelled => "cancelled at the source".to_owned(),
        cause => format!("the source failed: {cause}"),
    };
    session.call_off(reason);
    match resumed {
        Ok(()) => at_source(cause, Vec::new()),
        Err(error) => MigrateError {
            cause,
            outcome: Outcome::Paused,
            aftermath: vec![error],
        },
    }
}

fn at_source(cause: SourceFailure, aftermath: Vec<GuestError>) -> MigrateError {
    MigrateError {
        cause,
        outcome: Outcome::AtSource,
        aftermath,
    }
}

fn ended(cause: SourceFailure, outcome: Outcome) -> MigrateError {
    MigrateError {
        cause,
        outcome,
        aftermath: Vec::new(),
    }
}
