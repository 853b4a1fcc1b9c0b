//! The destination's end of a migration's connections.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use hikkoshi_wire::{Limits, Role, ToDestination, ToSource};

use super::error::DestinationFailure;
use crate::cancel::Cancel;
use crate::link::{Incoming, LinkReader, LinkWriter, Stream, TICK, split};

/// Messages and failures waiting for the main thread: few, so that a peer
/// that floods the control link blocks itself.
const EVENTS: usize = 16;

/// How long an accepted source may take to open its other links.
const LINKS_TIMEOUT: Duration = Duration::from_secs(30);

/// What the main thread waits for.
#[derive(Debug)]
pub(super) enum Event {
    /// The source said something.
    Said(ToDestination),
    /// A thread ended, or the control link did.
    Failed(DestinationFailure),
    /// No page is missing any more.
    AllReceived,
}

/// All links to one source.
#[derive(Debug)]
pub(super) struct Session {
    control: LinkWriter,
    events: Receiver<Event>,
    sender: SyncSender<Event>,
    streams: Vec<Arc<Stream>>,
    limits: Limits,
    /// Ends every thread that works on a link.
    stop: Cancel,
}

impl Session {
    /// Takes over an accepted control link; `reader` is its other end.
    pub(super) fn start(
        stream: Arc<Stream>,
        mut reader: LinkReader,
        control: LinkWriter,
        limits: Limits,
        stop: Cancel,
    ) -> Result<Self, DestinationFailure> {
        let (sender, events) = sync_channel(EVENTS);
        let to_main = sender.clone();
        thread::Builder::new()
            .name("dst-control".into())
            .spawn(move || {
                loop {
                    let (event, last) = match reader.control() {
                        Ok(message) => (Event::Said(message), false),
                        Err(cause) => {
                            let doing = "listening to the source";
                            (
                                Event::Failed(DestinationFailure::Link { doing, cause }),
                                true,
                            )
                        }
                    };
                    if to_main.send(event).is_err() || last {
                        return;
                    }
                }
            })
            .map_err(DestinationFailure::Thread)?;
        Ok(Self {
            control,
            events,
            sender,
            streams: vec![stream],
            limits,
            stop,
        })
    }

    /// Waits for the source's other links: one for background pages, and one
    /// for urgent pages if `urgent`.
    pub(super) fn await_links(
        &mut self,
        incoming: &Receiver<Incoming>,
        urgent: bool,
        cancel: &Cancel,
    ) -> Result<Links, DestinationFailure> {
        let doing = "waiting for the source's links";
        let deadline = Instant::now() + LINKS_TIMEOUT;
        let (mut background, mut urgent_link) = (None, None);
        while background.is_none() || (urgent && urgent_link.is_none()) {
            if cancel.is_cancelled() {
                return Err(DestinationFailure::Cancelled);
            }
            if Instant::now() > deadline {
                return Err(DestinationFailure::unexpected(doing, &"none within 30 s"));
            }
            // The control link may end meanwhile.
            if let Ok(event) = self.events.try_recv() {
                return Err(match event {
                    Event::Failed(failure) => failure,
                    Event::Said(ToDestination::Cancel { reason }) => {
                        DestinationFailure::CalledOff(reason)
                    }
                    other => DestinationFailure::unexpected(doing, &other),
                });
            }
            let Ok(link) = incoming.recv_timeout(TICK) else {
                continue;
            };
            let slot = match link.role {
                Role::Background { index: 0 } => &mut background,
                Role::Urgent if urgent => &mut urgent_link,
                role => {
                    tracing::warn!(%role, peer = link.peer, "turned away: no such link here");
                    continue;
                }
            };
            if slot.is_some() {
                tracing::warn!(role = %link.role, peer = link.peer, "turned away: a second one");
                continue;
            }
            let stream = Arc::new(link.stream);
            let ends = split(&stream, self.limits, &self.stop)
                .map_err(|e| DestinationFailure::link(doing)(e.into()))?;
            self.streams.push(stream);
            *slot = Some(ends);
        }
        background
            .map(|background| Links {
                background,
                urgent: urgent_link,
            })
            .ok_or_else(|| DestinationFailure::unexpected(doing, &"no background link"))
    }

    /// Where the links' threads report to.
    pub(super) fn events(&self) -> SyncSender<Event> {
        self.sender.clone()
    }

    /// Sends a control message.
    pub(super) fn say(
        &mut self,
        message: &ToSource,
        doing: &'static str,
    ) -> Result<(), DestinationFailure> {
        self.control
            .control(message)
            .map_err(DestinationFailure::link(doing))
    }

    /// Which pages there are.
    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    /// The next event; `None` after a tick without one.
    pub(super) fn next(&self) -> Option<Event> {
        self.next_within(TICK)
    }

    /// The next event; `None` after `wait` without one.
    pub(super) fn next_within(&self, wait: Duration) -> Option<Event> {
        // The session holds a sender itself: it never disconnects.
        self.events.recv_timeout(wait).ok()
    }

    /// Ends all links.
    pub(super) fn close(&self) {
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

/// The links beside the control link.
#[derive(Debug)]
pub(super) struct Links {
    pub(super) background: (LinkReader, LinkWriter),
    pub(super) urgent: Option<(LinkReader, LinkWriter)>,
}
