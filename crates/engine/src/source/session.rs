//! The source's end of a migration's connections.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use hikkoshi_pages::RamLayout;
use hikkoshi_wire::{GuestDescription, Limits, MigrationId, Role, ToDestination, ToSource};

use super::Move;
use super::error::SourceFailure;
use crate::cancel::Cancel;
use crate::link::{
    Address, BackgroundSender, HandshakeError, LinkError, LinkReader, LinkWriter, Pace, Stream,
    TICK, hello, open, split,
};

/// Messages and failures waiting for the main thread: few, so that a peer
/// that floods the control link blocks itself.
const EVENTS: usize = 16;

/// The name of the control link, for events.
const CONTROL: &str = "the control link";

/// How long the destination may take to accept the guest: it empties its RAM
/// files for it, at about 10 GiB/s.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(120);

/// How long the destination may take to get ready while the guest stands
/// still.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// How long to listen for the reason when a link has failed: what the
/// destination said last is still on the control link.
const REASON_TIMEOUT: Duration = Duration::from_secs(2);

/// What the main thread waits for.
#[derive(Debug)]
pub(super) enum Event {
    /// The destination said something.
    Said(ToSource),
    /// A link's thread ended.
    Ended(&'static str, LinkError),
    /// Guest memory could not be read.
    RamFailed(io::Error),
    /// A thread that sends pages panicked.
    ThreadDied,
}

/// Whether a migration can still be called off.
#[derive(Debug, Clone, Copy)]
pub(super) enum Stage<'a> {
    /// By either side; here, by this flag. The guest runs meanwhile.
    Running(&'a Cancel),
    /// By either side; here, by this flag. The guest stands still meanwhile,
    /// so the destination's time is limited.
    Stopped(&'a Cancel),
    /// By nobody.
    AfterCommit,
}

/// All links to one destination.
#[derive(Debug)]
pub(super) struct Session {
    control: LinkWriter,
    events: Receiver<Event>,
    sender: SyncSender<Event>,
    streams: Vec<Arc<Stream>>,
    /// Ends every thread that works on a link.
    pub(super) stop: Cancel,
    /// Nothing more will be heard on the control link.
    silent: bool,
    /// *Commit* may be on its way.
    committed: bool,
    /// A link whose end has not been dealt with yet.
    broken: Option<LinkError>,
    /// The background links: to end them all when one has failed.
    pub(super) background: Arc<[Arc<Stream>]>,
    /// The urgent link's two ends, where post-copy is possible.
    pub(super) urgent: Option<(LinkReader, LinkWriter)>,
    /// The guest's layout with the destination's host page sizes.
    pub(super) destination: RamLayout,
}

impl Session {
    /// Connects to `address`, offers the guest, and opens the other links once
    /// the destination has accepted it. Gives the background links by
    /// themselves: they change hands.
    pub(super) fn open(
        shared: &Move,
        address: &Address,
        description: &GuestDescription,
    ) -> Result<(Self, Vec<BackgroundSender>), SourceFailure> {
        let options = &shared.options;
        let connect = |cause| SourceFailure::Connect {
            address: address.to_string(),
            cause,
        };
        let id = MigrationId::from_bytes(random().map_err(|e| connect(HandshakeError::Io(e)))?);
        let limits = Limits {
            pages: shared.ram.layout().pages(),
        };
        let stop = Cancel::new();
        let links = options.links.max(1);
        let dial = |role| open(address, &hello(role, id)).map_err(connect);

        let stream = Arc::new(dial(Role::Control)?);
        let doing = "offering the guest to the destination";
        let (mut reader, mut control) =
            split(&stream, limits, &shared.cancel).map_err(|e| connect(HandshakeError::Io(e)))?;
        control
            .control(&ToDestination::Begin {
                description: description.clone(),
                mode: options.mode.into(),
                may_postcopy: options.may_postcopy(),
                background_links: links,
            })
            .map_err(SourceFailure::link(doing))?;
        reader.set_deadline(Some(Instant::now() + ACCEPT_TIMEOUT));
        let host_pages = match reader.control().map_err(SourceFailure::link(doing))? {
            ToSource::Accept { host_pages } => host_pages,
            ToSource::Refuse { reason } => return Err(SourceFailure::Refused(reason)),
            other => return Err(unexpected(doing, &other)),
        };
        let destination = with_host_pages(shared.ram.layout(), &host_pages)
            .ok_or_else(|| unexpected(doing, &host_pages))?;

        let background = (0..links)
            .map(|index| dial(Role::Background { index }).map(Arc::new))
            .collect::<Result<Vec<_>, _>>()?;
        let urgent = options
            .may_postcopy()
            .then(|| dial(Role::Urgent).map(Arc::new))
            .transpose()?;

        let split = |stream: &Arc<Stream>, stop: &Cancel| {
            split(stream, limits, stop).map_err(|e| connect(HandshakeError::Io(e)))
        };
        // Until the commit, cancelling ends whatever is blocked on a link.
        let ends = background
            .iter()
            .map(|stream| split(stream, &shared.cancel))
            .collect::<Result<Vec<_>, _>>()?;
        let mut streams = vec![Arc::clone(&stream)];
        streams.extend(background.iter().cloned());
        streams.extend(urgent.clone());
        let urgent = urgent.as_ref().map(|u| split(u, &stop)).transpose()?;

        let (sender, events) = sync_channel(EVENTS);
        let mut session = Self {
            control,
            events,
            sender,
            streams,
            stop,
            silent: false,
            committed: false,
            broken: None,
            background: background.into(),
            urgent,
            destination,
        };
        session.listen(reader)?;
        let ceiling = options.bandwidth;
        let pace = ceiling.map(|all| Arc::new(Pace::new(all, Instant::now())));
        let background = ends
            .into_iter()
            .map(|(acks, pages)| BackgroundSender::new(acks, pages, pace.clone()))
            .collect();
        Ok((session, background))
    }

    /// Starts the thread that turns control messages into events.
    fn listen(&mut self, mut reader: LinkReader) -> Result<(), SourceFailure> {
        let events = self.sender.clone();
        reader.set_stop(self.stop.clone());
        reader.set_deadline(None);
        thread::Builder::new()
            .name("src-control".into())
            .spawn(move || {
                loop {
                    let (event, last) = match reader.control() {
                        Ok(message) => (Event::Said(message), false),
                        Err(error) => (Event::Ended(CONTROL, error), true),
                    };
                    if events.send(event).is_err() || last {
                        return;
                    }
                }
            })
            .map(drop)
            .map_err(SourceFailure::Thread)
    }

    /// Where the links' threads report to.
    pub(super) fn events(&self) -> SyncSender<Event> {
        self.sender.clone()
    }

    /// Sends a control message.
    pub(super) fn say(
        &mut self,
        message: &ToDestination,
        doing: &'static str,
    ) -> Result<(), SourceFailure> {
        self.control
            .control(message)
            .map_err(SourceFailure::link(doing))
    }

    /// Tells the destination to run the guest. From the call on this side can
    /// call nothing off: not even a cancellation interrupts the sending.
    pub(super) fn commit(&mut self, doing: &'static str) -> Result<(), SourceFailure> {
        self.committed = true;
        self.control.set_stop(self.stop.clone());
        self.say(&ToDestination::Commit, doing)
    }

    /// Waits for the next message; `None` after a tick without one.
    pub(super) fn hear(
        &mut self,
        doing: &'static str,
        stage: Stage<'_>,
    ) -> Result<Option<ToSource>, SourceFailure> {
        match self.events.recv_timeout(TICK) {
            Ok(Event::Said(ToSource::Failed { reason })) => Err(SourceFailure::Destination(reason)),
            Ok(Event::Said(ToSource::Cancel { reason })) => match stage {
                Stage::Running(_) | Stage::Stopped(_) => Err(SourceFailure::CancelledThere(reason)),
                // It crossed the commit, which the destination will obey.
                Stage::AfterCommit => Ok(None),
            },
            Ok(Event::Said(message)) => Ok(Some(message)),
            Ok(Event::Ended(link, cause)) => {
                tracing::debug!(link, %cause, "a link ended");
                self.silent |= link == CONTROL;
                Err(SourceFailure::Link { doing, cause })
            }
            Ok(Event::RamFailed(cause)) => Err(SourceFailure::Ram(cause)),
            Ok(Event::ThreadDied) => Err(SourceFailure::ThreadDied),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(SourceFailure::Link {
                doing,
                cause: LinkError::Closed,
            }),
        }
    }

    /// Waits for a message that `wanted` accepts; any other breaks the
    /// protocol.
    pub(super) fn expect(
        &mut self,
        doing: &'static str,
        stage: Stage<'_>,
        wanted: impl Fn(&ToSource) -> bool,
    ) -> Result<(), SourceFailure> {
        let begun = Instant::now();
        loop {
            if let Stage::Running(cancel) | Stage::Stopped(cancel) = stage
                && cancel.is_cancelled()
            {
                return Err(SourceFailure::Cancelled);
            }
            if matches!(stage, Stage::Stopped(_)) && begun.elapsed() > READY_TIMEOUT {
                let cause = LinkError::TooSlow;
                return Err(SourceFailure::Link { doing, cause });
            }
            match self.hear(doing, stage) {
                Ok(Some(message)) if wanted(&message) => return Ok(()),
                Ok(Some(other)) => return Err(unexpected(doing, &other)),
                Ok(None) => {}
                // Another link's end may be seen before what was said last on
                // the control link, and after the commit that decides.
                Err(SourceFailure::Link { cause, .. })
                    if matches!(stage, Stage::AfterCommit) && !self.silent && cause.is_end() =>
                {
                    self.broken.get_or_insert(cause);
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    /// As [`hear`](Self::hear), after the commit; a link that ended while
    /// something else was waited for comes first.
    pub(super) fn hear_all(
        &mut self,
        doing: &'static str,
    ) -> Result<Option<ToSource>, SourceFailure> {
        match self.broken.take() {
            Some(cause) => Err(SourceFailure::Link { doing, cause }),
            None => self.hear(doing, Stage::AfterCommit),
        }
    }

    /// Looks for what is behind a link's end: a destination that gives up says
    /// why and closes its links, and a link's end may be seen first.
    pub(super) fn explain(&mut self, failure: SourceFailure) -> SourceFailure {
        match self.last_word(&failure) {
            Some(ToSource::Failed { reason }) => SourceFailure::Destination(reason),
            Some(ToSource::Cancel { reason }) => SourceFailure::CancelledThere(reason),
            _ => failure,
        }
    }

    /// What the destination had to say last, if `failure` is another link's
    /// end than the control link's.
    pub(super) fn last_word(&mut self, failure: &SourceFailure) -> Option<ToSource> {
        if self.silent || !matches!(failure, SourceFailure::Link { cause, .. } if cause.is_end()) {
            return None;
        }
        let deadline = Instant::now() + REASON_TIMEOUT;
        while let Some(left) = deadline.checked_duration_since(Instant::now()) {
            match self.events.recv_timeout(left) {
                Ok(Event::Said(ToSource::Cancel { .. })) if self.committed => {}
                Ok(Event::Said(
                    last @ (ToSource::Failed { .. }
                    | ToSource::Cancel { .. }
                    | ToSource::Complete { .. }),
                )) => return Some(last),
                Ok(Event::Ended(CONTROL, _)) | Err(_) => break,
                Ok(_) => {}
            }
        }
        None
    }

    /// Tells the destination that nothing comes of it, and ends all links.
    pub(super) fn call_off(&mut self, reason: String) {
        // The links' end tells the destination as much, only less clearly: not
        // worth waiting for a peer that does not read.
        self.control.set_stop(Cancel::at_once());
        if let Err(error) = self.say(&ToDestination::Cancel { reason }, "calling off") {
            tracing::debug!(%error, "the destination does not hear the cancellation");
        }
        self.close();
    }

    /// Ends all links. The threads that work on them can be joined then:
    /// nothing that they report waits for somebody to hear it.
    pub(super) fn close(&mut self) {
        self.events = sync_channel(0).1;
        self.stop.cancel();
        for stream in &self.streams {
            stream.shutdown();
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.close();
    }
}

pub(super) fn unexpected(doing: &'static str, message: &impl std::fmt::Debug) -> SourceFailure {
    let text: String = format!("{message:?}").chars().take(200).collect();
    SourceFailure::Link {
        doing,
        cause: LinkError::Protocol(format!("unexpected answer {text}")),
    }
}

fn random() -> io::Result<[u8; 16]> {
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(io::Error::other)?;
    Ok(id)
}

/// `layout` with other host page sizes; `None` if they do not fit it.
fn with_host_pages(layout: &RamLayout, host_pages: &[u64]) -> Option<RamLayout> {
    if layout.blocks().len() != host_pages.len() {
        return None;
    }
    let blocks = layout.blocks().zip(host_pages).map(|((block, _), &size)| {
        let mut block = block.clone();
        block.host_page = size;
        block
    });
    RamLayout::new(blocks.collect()).ok()
}
