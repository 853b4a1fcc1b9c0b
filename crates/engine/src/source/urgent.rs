//! Page requests: whoever reads one sends the pages, itself, at once.
//!
//! There is no request queue and no other thread to wait for. The thread owns
//! both ends of the urgent link; all it shares is the claim bitmap.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use hikkoshi_pages::PageRange;
use hikkoshi_wire::Frame;

use super::Move;
use super::error::SourceFailure;
use super::owed::Owed;
use super::pieces::{Piece, PieceReader};
use super::session::{Event, Session};
use crate::link::{LinkError, LinkReader, LinkWriter};
use crate::ram::RamFiles;
use crate::stats::{Counters, Tracker};

/// The most pages in one frame: a request for a huge page is answered in
/// pieces of 64 KiB.
const PIECE: usize = 16;

/// The thread that answers page requests.
#[derive(Debug)]
pub(super) struct UrgentThread(JoinHandle<()>);

impl UrgentThread {
    /// Begins to answer requests on the urgent link.
    pub(super) fn start(
        shared: &Move,
        session: &Session,
        (reader, writer): (LinkReader, LinkWriter),
        owed: &Arc<Owed>,
    ) -> Result<Self, SourceFailure> {
        let events = session.events();
        let mut urgent = Urgent {
            reader,
            writer,
            owed: Arc::clone(owed),
            ram: Arc::clone(&shared.ram),
            counters: Arc::clone(&shared.counters),
            tracker: Arc::clone(&shared.progress),
            pieces: PieceReader::new(PIECE),
        };
        thread::Builder::new()
            .name("src-urgent".into())
            .spawn(move || {
                // Nobody listens any more once the migration is over.
                let _ = events.send(urgent.run());
            })
            .map(Self)
            .map_err(SourceFailure::Thread)
    }

    /// Waits for the thread, whose link must have been closed.
    pub(super) fn join(self) {
        // A panic was reported by the panic hook; there is nothing to add.
        let _ = self.0.join();
    }
}

#[derive(Debug)]
struct Urgent {
    reader: LinkReader,
    writer: LinkWriter,
    owed: Arc<Owed>,
    ram: Arc<RamFiles>,
    counters: Arc<Counters>,
    tracker: Arc<Tracker>,
    pieces: PieceReader,
}

/// Why the thread ends.
enum Stop {
    Link(LinkError),
    Ram(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Ram(error)
    }
}

impl From<LinkError> for Stop {
    fn from(error: LinkError) -> Self {
        Self::Link(error)
    }
}

impl Urgent {
    fn run(&mut self) -> Event {
        loop {
            let answered = match self.reader.frame() {
                Ok(Frame::Request { range }) => self.answer(range),
                Ok(other) => Err(Stop::Link(LinkError::Protocol(format!(
                    "{other:?} on the urgent link"
                )))),
                Err(error) => Err(Stop::Link(error)),
            };
            match answered {
                Ok(()) => {}
                Err(Stop::Link(error)) => return Event::Ended("the urgent link", error),
                Err(Stop::Ram(error)) => return Event::RamFailed(error),
            }
        }
    }

    /// Sends what is still owed of `range`. What is not has been sent already,
    /// or is being sent by the background thread.
    fn answer(&mut self, range: PageRange) -> Result<(), Stop> {
        let before = self.writer.sent();
        while let Some(run) = self.owed.claim(range, PIECE as u64) {
            let (writer, counters) = (&mut self.writer, &self.counters);
            self.pieces
                .pieces(&self.ram, run, |piece| -> Result<(), Stop> {
                    match piece {
                        Piece::Data(range, content) => {
                            Counters::add(&counters.urgent, range.len());
                            writer.pages(range, content)?;
                        }
                        Piece::Zeros(range) => {
                            Counters::add(&counters.zero, range.len());
                            writer.frame(Frame::Zeros { range })?;
                        }
                    }
                    Ok(())
                })?;
            self.tracker.done(run.len());
            self.owed.asked_upto(run.end());
        }
        Counters::add(&self.counters.urgent_bytes, self.writer.sent() - before);
        Ok(())
    }
}
