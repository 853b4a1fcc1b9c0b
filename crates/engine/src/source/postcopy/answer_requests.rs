//! Answers page requests: the thread that reads a request sends the pages itself,
//! at once.
//!
//! It waits for no other thread. The thread owns both ends of the urgent link. It
//! shares only the bitmap of unsent pages, and the hints that it publishes after a
//! page was sent (`push_policy/`). Requests are pipelined: any number may be in
//! flight on the link. Large ones are answered in pieces in turn
//! (`request_queue.rs`), so that a request for one page waits for one piece at
//! most. Nothing is allocated here after the thread has started
//! (`tests/allocations.rs`).

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use hikkoshi_pages::{PageRange, RamLayout};
use hikkoshi_wire::{Frame, message_name};

use crate::panic_notifier::PanicNotifier;
use crate::report::{Cell, Counters, MemoryMap, Tracker};
use crate::source::context::MigrationContext;
use crate::source::error::SourceFailure;
use crate::source::postcopy::push_policy::{AccessStreams, PushPolicy, RequestPosition};
use crate::source::postcopy::request_queue::{OpenRequest, RequestQueue};
use crate::source::repeat_counter::{RepeatCounter, SentAs};
use crate::source::session::{SourceSession, SourceSessionEvent};
use crate::source::unsent::UnsentPages;
use hikkoshi_link::{LinkError, LinkReader, LinkWriter, UrgentActivity};
use hikkoshi_linux::PriorityClass;
use hikkoshi_linux::{monotonic_ns, sandbox_thread};
use hikkoshi_memory::GuestRam;
use hikkoshi_memory::{PageReader, PageRun};
use tracing::Level;

/// The most pages in one frame: a request for a huge page is answered in
/// pieces of 32 KiB.
const PAGES_PER_READ: usize = 8;

/// How many bytes of a huge page may wait in the socket. The answer to another
/// request is sent after them.
const UNSENT: u32 = 64 << 10;

/// The thread that answers page requests.
#[derive(Debug)]
pub(crate) struct RequestAnswerer(JoinHandle<()>);

impl RequestAnswerer {
    /// Starts to answer requests on the urgent link.
    pub(crate) fn start(
        shared: &MigrationContext,
        session: &SourceSession,
        (mut reader, writer): (LinkReader, LinkWriter),
        unsent: &Arc<UnsentPages>,
        policy: &Arc<PushPolicy>,
    ) -> Result<Self, SourceFailure> {
        let options = &shared.options;
        reader.set_poll(options.poll);
        writer.stream().bound_unsent(UNSENT);
        let (events, priority) = (session.events(), options.priority);
        let mut urgent = Urgent {
            reader,
            answer: Answer {
                writer,
                urgency: shared.urgency.clone(),
                unsent: Arc::clone(unsent),
                policy: Arc::clone(policy),
                ram: Arc::clone(&shared.ram),
                destination: session.destination.clone(),
                streams: AccessStreams::new(options.read_ahead),
                counters: Arc::clone(&shared.counters),
                tracker: Arc::clone(&shared.progress),
                map: Arc::clone(&shared.map),
                sent: Arc::clone(&shared.sent),
                reader: PageReader::new(PAGES_PER_READ),
            },
            requests: RequestQueue::empty(),
        };
        thread::Builder::new()
            .name("src-urgent".into())
            .spawn(move || {
                let _notifier = PanicNotifier::new(&events, SourceSessionEvent::ThreadDied);
                priority.apply(PriorityClass::Urgent);
                sandbox_thread();
                // The queue is closed after the migration has ended.
                let _ = events.send(urgent.run());
            })
            .map(Self)
            .map_err(SourceFailure::Thread)
    }

    /// Joins the thread. Its link must have been closed.
    pub(crate) fn join(self) {
        // `PanicNotifier` has reported a panic.
        let _ = self.0.join();
    }
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

#[derive(Debug)]
struct Urgent {
    reader: LinkReader,
    requests: RequestQueue,
    answer: Answer,
}

impl Urgent {
    fn run(&mut self) -> SourceSessionEvent {
        loop {
            match self.step() {
                Ok(()) => {}
                Err(Stop::Link(error)) => {
                    return SourceSessionEvent::LinkEnded("the urgent link", error);
                }
                Err(Stop::Ram(error)) => return SourceSessionEvent::RamFailed(error),
            }
        }
    }

    /// Answers a small request when it arrives, then a piece of a large one.
    fn step(&mut self) -> Result<(), Stop> {
        let idle = self.requests.is_empty();
        if idle || (!self.requests.is_full() && self.reader.is_ready(Duration::ZERO)?) {
            let requested = match self.reader.frame()? {
                Frame::Request { range } => range,
                other => {
                    let text = format!("{} on the urgent link", message_name(&other));
                    return Err(LinkError::Protocol(text).into());
                }
            };
            if requested.len() > PAGES_PER_READ as u64 {
                self.requests.add(requested);
            } else {
                // Read only if it is logged.
                let arrived = tracing::enabled!(Level::TRACE).then(monotonic_ns);
                let mut request = OpenRequest::new(requested);
                while !request.rest.is_empty() {
                    self.answer.piece(&mut request)?;
                }
                if let Some(arrived) = arrived {
                    let (page, sent) = (requested.start().index(), monotonic_ns());
                    tracing::trace!(page, arrived, sent, "request answered");
                }
                self.answer.advise_read_ahead(requested);
            }
        }
        let answer = &mut self.answer;
        let done = self.requests.next(|request| answer.piece(request))?;
        if let Some(done) = done {
            self.answer.advise_read_ahead(done.requested);
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Answer {
    writer: LinkWriter,
    /// Makes background links yield.
    urgency: UrgentActivity,
    unsent: Arc<UnsentPages>,
    policy: Arc<PushPolicy>,
    ram: Arc<GuestRam>,
    /// The layout with the destination's host page sizes.
    destination: RamLayout,
    streams: AccessStreams,
    counters: Arc<Counters>,
    tracker: Arc<Tracker>,
    map: Arc<MemoryMap>,
    sent: Arc<RepeatCounter>,
    reader: PageReader,
}

impl Answer {
    /// Sends the first unsent piece of the rest of a request. The other pages have
    /// been sent, or a background link is sending them.
    fn piece(&mut self, request: &mut OpenRequest) -> Result<(), Stop> {
        let _answering = self.urgency.begin();
        let Some(run) = self.unsent.claim(request.rest, PAGES_PER_READ as u64) else {
            if request.is_untouched() {
                Counters::add(&self.counters.requests_under_way, 1);
            }
            request.rest = PageRange::EMPTY;
            return Ok(());
        };
        let before = self.writer.sent();
        let (writer, counters, sent) = (&mut self.writer, &*self.counters, &*self.sent);
        self.reader
            .runs(&self.ram, run, |run| -> Result<(), Stop> {
                match run {
                    PageRun::Data(range, content) => {
                        Counters::add(&counters.urgent, range.len());
                        sent.in_postcopy(counters, range, SentAs::Content);
                        writer.pages(range, content)?;
                    }
                    PageRun::Zeros(range) => {
                        Counters::add(&counters.zero, range.len());
                        sent.in_postcopy(counters, range, SentAs::Mark);
                        writer.frame(Frame::Zeros { range })?;
                    }
                }
                Ok(())
            })?;
        Counters::add(&self.counters.urgent_bytes, self.writer.sent() - before);
        self.tracker.done(run.len());
        self.map.add(Cell::Urgent, run);
        request.rest = PageRange::new(run.end(), request.rest.end());
        Ok(())
    }

    /// Uses an answered request to predict the next ones. A request for pages that
    /// were already in flight also shows where the guest is.
    fn advise_read_ahead(&mut self, requested: PageRange) {
        let host = self.destination.host_page_range(requested.start());
        let position = self.destination.locate(requested.start());
        let Some((_, block)) = position.and_then(|(block, _)| self.destination.block(block)) else {
            return;
        };
        let position = RequestPosition {
            unit: host.len(),
            block,
        };
        let whole = self.destination.round_out(requested).intersect(block);
        if let Some(advice) = self.streams.requested(whole, position) {
            self.policy.read_ahead(&advice);
        }
    }
}
