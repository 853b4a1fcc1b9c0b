//! The destination's end of a migration's connections.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_wire::{Limits, MigrationId, Role, ToDestination, ToSource};

use crate::control_link::{QUEUED_EVENTS, start_reader};
use crate::destination::error::DestinationFailure;
use hikkoshi_link::{AcceptedLink, LinkError, LinkReader, LinkWriter, Stream, TICK, split};
use hikkoshi_linux::CancelFlag;

/// What the control link's thread does; identifies its end among the failures.
pub(crate) const LISTENING: &str = "listening to the source";

/// How long an accepted source may take to open its other links.
const LINKS_TIMEOUT: Duration = Duration::from_secs(30);

/// What the main thread waits for.
#[derive(Debug)]
pub(crate) enum DestinationSessionEvent {
    /// The source has sent a message.
    Message(ToDestination),
    /// A thread or the control link has ended.
    Failed(DestinationFailure),
    /// No page is missing any more.
    AllReceived,
    /// A call to the guest has returned, for which the main thread waits.
    GuestCallReturned,
}

impl DestinationSessionEvent {
    /// Whether this is about something other than links.
    fn is_serious(&self) -> bool {
        match self {
            Self::Failed(failure) => !failure.is_about_links(),
            Self::Message(_) | Self::AllReceived | Self::GuestCallReturned => false,
        }
    }
}

/// The queue of events, which outlives the links.
#[derive(Debug)]
pub(crate) struct Channel {
    sender: SyncSender<DestinationSessionEvent>,
    events: Receiver<DestinationSessionEvent>,
}

impl Channel {
    pub(crate) fn new() -> Self {
        let (sender, events) = sync_channel(QUEUED_EVENTS);
        Self { sender, events }
    }

    /// A queue without a receiver: a send to it does not block.
    pub(crate) fn closed() -> Self {
        let (sender, _) = sync_channel(0);
        let events = sync_channel(0).1;
        Self { sender, events }
    }

    /// For the threads that report events.
    pub(crate) fn sender(&self) -> SyncSender<DestinationSessionEvent> {
        self.sender.clone()
    }

    /// Takes the queue, and leaves one without a receiver.
    pub(crate) fn take(&mut self) -> Self {
        std::mem::replace(self, Self::closed())
    }

    /// The next event; `None` after `wait` without one.
    pub(crate) fn next_within(&self, wait: Duration) -> Option<DestinationSessionEvent> {
        self.events.recv_timeout(wait).ok()
    }
}

/// An accepted control link.
#[derive(Debug)]
pub(crate) struct ControlLink {
    pub(crate) stream: Arc<Stream>,
    pub(crate) reader: LinkReader,
    pub(crate) writer: LinkWriter,
    /// Which pages the source may name.
    pub(crate) limits: Limits,
    /// Ends every thread that works on a link of this source.
    pub(crate) stop: CancelFlag,
}

impl ControlLink {
    /// From now on the source may name these pages.
    pub(crate) fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
        self.reader.set_limits(limits);
    }
}

/// The links that a source opens beside the control link.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExpectedLinks {
    /// The migration that they belong to.
    pub(crate) id: MigrationId,
    /// How many for background pages.
    pub(crate) background: u16,
    /// Whether there is one for urgent pages.
    pub(crate) urgent: bool,
    /// Whether there is one for network frames.
    pub(crate) frames: bool,
    /// How many for disks.
    pub(crate) disks: u16,
}

/// All links to one source.
#[derive(Debug)]
pub(crate) struct DestinationSession {
    control: LinkWriter,
    channel: Channel,
    /// The thread that turns control messages into events.
    listener: Option<JoinHandle<()>>,
    streams: Vec<Arc<Stream>>,
    limits: Limits,
    /// What the source sent before all its links were here.
    early: Option<DestinationSessionEvent>,
    /// Ends every thread that works on a link.
    stop: CancelFlag,
}

impl DestinationSession {
    /// Starts with an accepted control link. The queue is taken only on success.
    pub(crate) fn start(
        control: ControlLink,
        channel: &mut Channel,
    ) -> Result<Self, DestinationFailure> {
        let ControlLink {
            stream,
            reader,
            writer,
            limits,
            stop,
        } = control;
        let to_main = channel.sender.clone();
        let listener = start_reader("dst-control", reader, to_main, |message| match message {
            Ok(message) => DestinationSessionEvent::Message(message),
            Err(cause) => {
                let doing = LISTENING;
                DestinationSessionEvent::Failed(DestinationFailure::Link { doing, cause })
            }
        })
        .map_err(DestinationFailure::Thread)?;
        Ok(Self {
            control: writer,
            channel: channel.take(),
            listener: Some(listener),
            streams: vec![stream],
            limits,
            early: None,
            stop,
        })
    }

    /// Waits for the source's other links, which get this stall timeout.
    pub(crate) fn await_links(
        &mut self,
        incoming: &Receiver<AcceptedLink>,
        expected: &ExpectedLinks,
        stall_timeout: Duration,
        cancel: &CancelFlag,
    ) -> Result<Links, DestinationFailure> {
        let &ExpectedLinks {
            id,
            background: background_links,
            urgent,
            frames,
            disks,
        } = expected;
        let doing = "waiting for the source's links";
        let deadline = Instant::now() + LINKS_TIMEOUT;
        let (mut urgent_link, mut frames_link) = (None, None);
        let mut background: Vec<Option<_>> = (0..background_links).map(|_| None).collect();
        let mut disk_links: Vec<Option<_>> = (0..disks).map(|_| None).collect();
        while background.iter().any(Option::is_none)
            || (urgent && urgent_link.is_none())
            || (frames && frames_link.is_none())
            || disk_links.iter().any(Option::is_none)
        {
            if cancel.is_cancelled() {
                return Err(DestinationFailure::Cancelled);
            }
            if Instant::now() > deadline {
                return Err(DestinationFailure::link(doing)(LinkError::TooSlow));
            }
            // The control link may end meanwhile. Or the source has continued: its last link was
            // accepted, but this thread has not received it yet.
            if self.early.is_none() {
                match self.channel.events.try_recv() {
                    Ok(failed) if failed.is_serious() => {
                        // Not the links' end: keep it.
                        self.early = Some(failed);
                        return Err(DestinationFailure::link(doing)(LinkError::Closed));
                    }
                    Ok(DestinationSessionEvent::Failed(failure)) => return Err(failure),
                    Ok(DestinationSessionEvent::Message(ToDestination::Cancel { reason })) => {
                        return Err(DestinationFailure::CancelledBySource(reason));
                    }
                    said => self.early = said.ok(),
                }
            }
            let link = match incoming.recv_timeout(TICK) {
                Ok(link) => link,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(DestinationFailure::listener_failed());
                }
            };
            if link.id != id {
                // It was accepted before this migration began.
                tracing::warn!(
                    peer = link.peer,
                    "connection rejected: another migration is under way"
                );
                continue;
            }
            if link.role == Role::Control {
                // The source closed these links before all of them were here.
                tracing::warn!(peer = link.peer, "the source connects again");
                return Err(DestinationFailure::link(doing)(LinkError::Closed));
            }
            let slot = match link.role {
                Role::Background { index } => background.get_mut(usize::from(index)),
                Role::Urgent if urgent => Some(&mut urgent_link),
                Role::Frames if frames => Some(&mut frames_link),
                Role::Disk { index } => disk_links.get_mut(usize::from(index)),
                _ => None,
            };
            let Some(slot) = slot else {
                tracing::warn!(role = %link.role, peer = link.peer, "connection rejected: this migration has no such link");
                continue;
            };
            if slot.is_some() {
                tracing::warn!(role = %link.role, peer = link.peer, "connection rejected: the migration already has this link");
                continue;
            }
            link.stream
                .set_stall_timeout(stall_timeout)
                .map_err(|e| DestinationFailure::link(doing)(e.into()))?;
            let stream = Arc::new(link.stream);
            let ends = split(&stream, self.limits, &self.stop)
                .map_err(|e| DestinationFailure::link(doing)(e.into()))?;
            self.streams.push(Arc::clone(&stream));
            *slot = Some((stream, ends));
        }
        Ok(Links {
            background: background
                .into_iter()
                .flatten()
                .map(|(_, ends)| ends)
                .collect(),
            urgent: urgent_link.map(|(_, ends)| ends),
            frames: frames_link.map(|(_, ends)| ends),
            disks: disk_links.into_iter().flatten().collect(),
        })
    }

    /// Where the links' threads report events.
    pub(crate) fn events(&self) -> SyncSender<DestinationSessionEvent> {
        self.channel.sender.clone()
    }

    /// Sends a control message.
    pub(crate) fn send(
        &mut self,
        message: &ToSource,
        doing: &'static str,
    ) -> Result<(), DestinationFailure> {
        self.control
            .control(message)
            .map_err(DestinationFailure::link(doing))
    }

    /// From now on a request to cancel does not end the link.
    pub(crate) fn set_committed(&mut self) {
        self.control.set_stop(self.stop.clone());
    }

    /// Sends the last message. Does not wait for a peer that does not read: the end of the links
    /// has the same meaning.
    pub(crate) fn send_last(&mut self, message: &ToSource) {
        self.control.set_stop(CancelFlag::cancelled());
        if let Err(error) = self.send(message, "sending the last message") {
            tracing::debug!(error = %Report::new(&error), ?message, "the source does not receive the reason why this side ends");
        }
    }

    /// When data of the source arrived last. It sends pages all the time, so that its silence is an
    /// outage. `None`: not known, the links are unix sockets.
    pub(crate) fn last_data(&self) -> Option<Instant> {
        let streams = self.streams.iter();
        streams.filter_map(|stream| stream.last_data()).max()
    }

    /// Ends every thread that works on a link.
    pub(crate) fn stop(&self) -> CancelFlag {
        self.stop.clone()
    }

    /// Which pages exist.
    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// The next event; `None` after a tick without one.
    pub(crate) fn next(&mut self) -> Option<DestinationSessionEvent> {
        self.next_within(TICK)
    }

    /// The next event; `None` after `wait` without one.
    pub(crate) fn next_within(&mut self, wait: Duration) -> Option<DestinationSessionEvent> {
        // The session holds a sender itself, so the queue is never disconnected before it is
        // closed.
        self.early.take().or_else(|| self.channel.next_within(wait))
    }

    /// Closes all links. The threads that work on them can be joined then: what they report blocks
    /// none of them.
    pub(crate) fn close(&mut self) {
        self.channel = Channel::closed();
        self.shut_down();
    }

    fn shut_down(&self) {
        self.stop.cancel();
        for stream in &self.streams {
            stream.shutdown();
        }
    }

    /// Closes all links and waits for the threads that work on them, `receivers` and its own.
    /// Returns the queue, and an event that was reported meanwhile and is not about links.
    pub(crate) fn end(
        mut self,
        receivers: Vec<JoinHandle<()>>,
    ) -> (Channel, Option<DestinationSessionEvent>) {
        self.shut_down();
        let mut left = self
            .early
            .take()
            .filter(DestinationSessionEvent::is_serious);
        let threads = receivers.into_iter().chain(self.listener.take());
        for thread in threads {
            // Its last events may wait for room in the queue.
            while !thread.is_finished() {
                let told = self.channel.next_within(Duration::from_millis(2));
                left = left.or(told.filter(DestinationSessionEvent::is_serious));
            }
            // A panic was reported by the panic hook; there is nothing to add.
            let _ = thread.join();
        }
        while let Ok(told) = self.channel.events.try_recv() {
            left = left.or(Some(told).filter(DestinationSessionEvent::is_serious));
        }
        (self.channel.take(), left)
    }
}

impl Drop for DestinationSession {
    fn drop(&mut self) {
        self.close();
    }
}

/// A link's two ends.
pub(crate) type Ends = (LinkReader, LinkWriter);

/// The links beside the control link.
#[derive(Debug)]
pub(crate) struct Links {
    /// By number.
    pub(crate) background: Vec<Ends>,
    /// Pages arrive on it, and requests are sent on it.
    pub(crate) urgent: Option<(LinkReader, LinkWriter)>,
    /// Frames that arrived for the guest at the source.
    pub(crate) frames: Option<Ends>,
    /// For each disk that is copied, with its connection.
    pub(crate) disks: Vec<(Arc<Stream>, Ends)>,
}
