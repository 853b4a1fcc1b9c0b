//! Post-copy: the guest runs at the destination, the rest follows.
//!
//! The urgent thread answers requests (`urgent.rs`), a thread for each
//! background link pushes what nobody has asked for (`pusher.rs`). The main
//! thread listens for the end.

use std::sync::Arc;

use hikkoshi_wire::{ToDestination, ToSource};

use super::Move;
use super::error::SourceFailure;
use super::owed::Owed;
use super::pusher::Pushers;
use super::session::Session;
use super::switchover::Answering;
use crate::link::LinkError;
use crate::stats::{Phase, Requests};

const DOING: &str = "sending pages to the running guest";

/// Sends all that is owed; gives the request latencies that the destination
/// measured.
///
/// # Errors
/// Any: the guest runs at the destination and lacks pages.
pub(super) fn run(
    shared: &Move,
    session: &mut Session,
    postcopy: Option<Answering>,
    owed: &Arc<Owed>,
) -> Result<Requests, SourceFailure> {
    shared.progress.begin(Phase::Postcopy, 0, owed.count());
    let working = match postcopy {
        Some(Answering {
            urgent,
            links,
            order,
        }) => Some((
            urgent,
            Pushers::start(shared, session, links, owed, &order)?,
        )),
        None => None,
    };
    let mut told = false;
    let mut measured = None;
    let requests = loop {
        if shared.cancel.is_cancelled() && !told {
            told = true;
            shared.observer.notice(
                "the guest runs at the destination already and needs the pages that are still \
                 here: not stopping before it has them",
            );
        }
        let heard = match session.hear_all(DOING) {
            // The last word may come after the end of another link.
            Err(failure) => match session.last_word(&failure) {
                Some(ToSource::Failed { reason }) => {
                    return Err(SourceFailure::Destination(reason));
                }
                Some(last) => Some(last),
                None => return Err(failure),
            },
            Ok(heard) => heard,
        };
        match heard {
            Some(ToSource::Measured { faults }) if measured.is_none() => {
                measured = Some(faults);
            }
            Some(ToSource::Complete { requests }) => {
                // Pages that have not left can not have arrived.
                match owed.count() {
                    0 => break requests,
                    left => {
                        return Err(SourceFailure::Link {
                            doing: DOING,
                            cause: LinkError::Protocol(format!(
                                "it says that it has everything, but {left} pages have not been \
                                 sent"
                            )),
                        });
                    }
                }
            }
            Some(other) => {
                return Err(super::session::unexpected(DOING, &other));
            }
            None => {}
        }
        let bytes = shared.counters.bytes();
        shared.progress.tell(
            &*shared.observer,
            bytes.precopy + bytes.urgent + bytes.background,
        );
    };
    // Both sides say goodbye before either closes: a closing socket can
    // overtake the last message on it. That the destination has everything is
    // known already, so a failure here costs nothing.
    if let Err(error) = session.say(&ToDestination::Goodbye, "ending the migration") {
        tracing::debug!(%error, "no goodbye");
    }
    session.close();
    let followed = working.is_some();
    if let Some((urgent, pushers)) = working {
        pushers.join();
        urgent.join();
    }
    let mut requests = Requests {
        request_latency_us: requests.into(),
        requests_under_way: followed.then(|| shared.counters.requests_under_way()),
        ..Requests::default()
    };
    if let Some(measured) = measured {
        requests.add_measures(measured);
    }
    Ok(requests)
}
