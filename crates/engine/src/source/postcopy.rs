//! Post-copy: the guest runs at the destination, the rest follows.
//!
//! The urgent thread answers requests (`urgent.rs`); this thread pushes what
//! nobody has asked for, in small pieces, onwards from the last urgent page.

use std::io;
use std::sync::Arc;
use std::thread;

use hikkoshi_pages::{PAGE_SIZE, Page, PageRange, RamLayout};
use hikkoshi_wire::{HEADER_LEN, ToDestination, ToSource};

use super::Move;
use super::error::SourceFailure;
use super::owed::Owed;
use super::pieces::{Piece, PieceReader};
use super::session::{Event, Session};
use crate::cancel::Cancel;
use crate::link::{BackgroundSender, LinkError};
use crate::ram::RamFiles;
use crate::stats::{Counters, Phase, Requests, Tracker};

/// Pages in one piece, 32 KiB: an urgent page never waits for more than that
/// on a processor, and at 1 Gbit/s 0.26 ms on the wire.
const PIECE: usize = 8;

const DOING: &str = "sending pages to the running guest";

/// Sends all that is owed; gives the request latencies that the destination
/// measured.
///
/// # Errors
/// Any: the guest runs at the destination and lacks pages.
pub(super) fn run(
    shared: &Move,
    session: &mut Session,
    links: Vec<BackgroundSender>,
    owed: &Arc<Owed>,
) -> Result<Requests, SourceFailure> {
    shared.progress.begin(Phase::Postcopy, 0, owed.count());
    let pushers = (0..)
        .zip(links)
        .map(|(number, link)| start_pushing(shared, session, number, link, owed))
        .collect::<Result<Vec<_>, _>>()?;
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
    for pusher in pushers {
        // A panic was reported by the panic hook.
        let _ = pusher.join();
    }
    let mut requests = Requests {
        request_latency_us: requests.into(),
        ..Requests::default()
    };
    if let Some(measured) = measured {
        requests.add_measures(measured);
    }
    Ok(requests)
}

fn start_pushing(
    shared: &Move,
    session: &Session,
    number: usize,
    mut background: BackgroundSender,
    owed: &Arc<Owed>,
) -> Result<thread::JoinHandle<()>, SourceFailure> {
    background.yield_to_urgent();
    // Nobody can cancel any more.
    background.set_stop(&session.stop);
    let mut pusher = Pusher {
        link: background,
        owed: Arc::clone(owed),
        ram: Arc::clone(&shared.ram),
        destination: session.destination.clone(),
        counters: Arc::clone(&shared.counters),
        tracker: Arc::clone(&shared.progress),
        pieces: PieceReader::new(PIECE),
        stop: session.stop.clone(),
    };
    let events = session.events();
    thread::Builder::new()
        .name(format!("src-push-{number}"))
        .spawn(move || {
            let event = match pusher.run() {
                Ok(()) => return,
                Err(Failure::Link(LinkError::Stopped)) => return,
                Err(Failure::Link(error)) => Event::Ended("the background link", error),
                Err(Failure::Ram(error)) => Event::RamFailed(error),
            };
            let _ = events.send(event);
        })
        .map_err(SourceFailure::Thread)
}

enum Failure {
    Link(LinkError),
    Ram(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Ram(error)
    }
}

#[derive(Debug)]
struct Pusher {
    link: BackgroundSender,
    owed: Arc<Owed>,
    ram: Arc<RamFiles>,
    /// The layout with the destination's host page sizes.
    destination: RamLayout,
    counters: Arc<Counters>,
    tracker: Arc<Tracker>,
    pieces: PieceReader,
    stop: Cancel,
}

impl Pusher {
    /// Pushes until nothing is owed.
    fn run(&mut self) -> Result<(), Failure> {
        let all = self.ram.layout().all();
        let mut cursor = all.start();
        loop {
            // Room first, then the claim: a claimed page that waits for room
            // would keep the guest waiting too.
            self.link
                .make_room((PIECE * (PAGE_SIZE + HEADER_LEN)) as u64, &self.stop)
                .map_err(Failure::Link)?;
            // A huge page is finished before the next one is begun: the
            // destination holds those that are incomplete in memory.
            let boundary = self.destination.host_page_range(cursor).start() == cursor;
            if boundary && let Some(page) = self.owed.take_hint() {
                cursor = self.destination.host_page_range(page).start();
            }
            let run = self.next(cursor, all);
            let Some(run) = run else {
                return self.link.drain(&self.stop).map_err(Failure::Link);
            };
            self.push(run)?;
            cursor = run.end();
        }
    }

    /// Claims the next piece from `cursor` on, around the end if need be.
    fn next(&self, cursor: Page, all: PageRange) -> Option<PageRange> {
        let (before, after) = all.split_at(cursor);
        let max = PIECE as u64;
        self.owed
            .claim(after, max)
            .or_else(|| self.owed.claim(before, max))
    }

    fn push(&mut self, run: PageRange) -> Result<(), Failure> {
        let before = self.link.sent();
        let (link, counters, stop) = (&mut self.link, &self.counters, &self.stop);
        self.pieces.pieces(&self.ram, run, |piece| {
            match piece {
                Piece::Data(range, content) => {
                    Counters::add(&counters.background, range.len());
                    link.pages(range, content, stop)
                }
                Piece::Zeros(range) => {
                    Counters::add(&counters.zero, range.len());
                    link.zeros(range, stop)
                }
            }
            .map_err(Failure::Link)
        })?;
        // All of the run at once: the pace is kept after it, never between
        // pages that were claimed together.
        self.link.flush(&self.stop).map_err(Failure::Link)?;
        self.tracker.done(run.len());
        Counters::add(&self.counters.background_bytes, self.link.sent() - before);
        Ok(())
    }
}
