//! Pushes background pages: a thread for each background link.
//!
//! Pieces are short, so that an urgent page waits for one of them at most, on a
//! processor and on the network. `push_policy/` decides what is sent next; the link
//! decides how much may be in flight.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use hikkoshi_pages::{PAGE_SIZE, PageRange};
use hikkoshi_wire::HEADER_LEN;

use crate::panic_notifier::PanicNotifier;
use crate::report::{Cell, Counters, MemoryMap, Tracker};
use crate::source::context::MigrationContext;
use crate::source::error::SourceFailure;
use crate::source::postcopy::push_policy::{Next, NextPages, PushPolicy};
use crate::source::repeat_counter::{RepeatCounter, SentAs};
use crate::source::session::{SourceSession, SourceSessionEvent};
use crate::source::unsent::UnsentPages;
use hikkoshi_link::{BackgroundSender, LinkError, TICK};
use hikkoshi_linux::CancelFlag;
use hikkoshi_linux::PriorityClass;
use hikkoshi_linux::sandbox_thread;
use hikkoshi_memory::GuestRam;
use hikkoshi_memory::{PageReader, PageRun};

/// The most pages in one read, 128 KiB. The link's limit is lower, most of all while the guest
/// waits for pages.
const PAGES_PER_READ: usize = 32;

/// All pushing threads of a migration.
#[derive(Debug)]
pub(crate) struct Pushers {
    threads: Vec<JoinHandle<()>>,
    policy: Arc<PushPolicy>,
}

impl Pushers {
    /// Starts to push on each of `links`. The guest runs at the destination.
    pub(crate) fn start(
        shared: &MigrationContext,
        session: &SourceSession,
        links: Vec<BackgroundSender>,
        unsent: &Arc<UnsentPages>,
        policy: &Arc<PushPolicy>,
    ) -> Result<Self, SourceFailure> {
        let options = &shared.options;
        let background_from = Instant::now() + options.background_delay;
        let number_of_links = links.len();
        let mut pushers = Self {
            threads: Vec::with_capacity(number_of_links),
            policy: Arc::clone(policy),
        };
        for (number, mut link) in links.into_iter().enumerate() {
            if options.limit_in_flight {
                link.yield_to_urgent(shared.urgency.clone(), number_of_links as u64);
            }
            // The migration cannot be cancelled any more.
            link.set_stop(&session.stop);
            let mut pusher = Pusher {
                number,
                link,
                next_pages: NextPages::new(
                    (number, number_of_links),
                    policy,
                    unsent,
                    &session.destination,
                ),
                background_from,
                policy: Arc::clone(policy),
                ram: Arc::clone(&shared.ram),
                counters: Arc::clone(&shared.counters),
                tracker: Arc::clone(&shared.progress),
                map: Arc::clone(&shared.map),
                sent: Arc::clone(&shared.sent),
                reader: PageReader::new(PAGES_PER_READ),
                stop: session.stop.clone(),
            };
            let (events, priority) = (session.events(), options.priority);
            let thread = thread::Builder::new()
                .name(format!("src-push-{number}"))
                .spawn(move || {
                    let _notifier = PanicNotifier::new(&events, SourceSessionEvent::ThreadDied);
                    priority.apply(PriorityClass::Background);
                    sandbox_thread();
                    let event = match pusher.run() {
                        Ok(()) | Err(Failure::Link(LinkError::Stopped)) => return,
                        Err(Failure::Link(error)) => {
                            SourceSessionEvent::LinkEnded("a background link", error)
                        }
                        Err(Failure::Ram(error)) => SourceSessionEvent::RamFailed(error),
                    };
                    let _ = events.send(event);
                })
                .map_err(SourceFailure::Thread)?;
            pushers.threads.push(thread);
        }
        Ok(pushers)
    }

    /// Joins the threads. Their links must have been closed.
    pub(crate) fn join(self) {
        self.policy.wake_all();
        for thread in self.threads {
            // `PanicNotifier` has reported a panic.
            let _ = thread.join();
        }
    }
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
    number: usize,
    link: BackgroundSender,
    next_pages: NextPages,
    /// Until then only pages that are read ahead are pushed.
    background_from: Instant,
    policy: Arc<PushPolicy>,
    ram: Arc<GuestRam>,
    counters: Arc<Counters>,
    tracker: Arc<Tracker>,
    map: Arc<MemoryMap>,
    sent: Arc<RepeatCounter>,
    reader: PageReader,
    stop: CancelFlag,
}

impl Pusher {
    /// Pushes until every page has been sent.
    fn run(&mut self) -> Result<(), Failure> {
        loop {
            // Space in the window first, then the claim: if a claimed page waited for
            // space, the guest might wait for the page.
            let pages = self.link.piece_pages().min(PAGES_PER_READ as u64);
            self.link
                .make_room(pages * (PAGE_SIZE + HEADER_LEN) as u64, &self.stop)
                .map_err(Failure::Link)?;
            // The guest may have begun to wait for pages meanwhile.
            let pages = pages.min(self.link.piece_pages());
            let held_back = self
                .background_from
                .saturating_duration_since(Instant::now());
            match self.next_pages.next(pages, held_back.is_zero()) {
                Next::Send(run) => self.push(run)?,
                Next::Nothing => {
                    self.policy.sleep(self.number, held_back.min(TICK));
                    self.link.idle();
                }
                Next::Done => return self.link.drain(&self.stop).map_err(Failure::Link),
            }
        }
    }

    fn push(&mut self, run: PageRange) -> Result<(), Failure> {
        let before = self.link.sent();
        let (link, stop) = (&mut self.link, &self.stop);
        let (counters, sent) = (&*self.counters, &*self.sent);
        self.reader.runs(&self.ram, run, |run| {
            match run {
                PageRun::Data(range, content) => {
                    Counters::add(&counters.background, range.len());
                    sent.in_postcopy(counters, range, SentAs::Content);
                    link.pages(range, content, stop)
                }
                PageRun::Zeros(range) => {
                    Counters::add(&counters.zero, range.len());
                    sent.in_postcopy(counters, range, SentAs::Mark);
                    link.zeros(range, stop)
                }
            }
            .map_err(Failure::Link)
        })?;
        // The whole run at once: pacing waits after it, never between pages that were
        // claimed together.
        self.link.flush(&self.stop).map_err(Failure::Link)?;
        self.tracker.done(run.len());
        self.map.add(Cell::Background, run);
        Counters::add(&self.counters.background_bytes, self.link.sent() - before);
        Ok(())
    }
}
