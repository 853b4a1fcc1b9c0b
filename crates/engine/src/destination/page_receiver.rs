//! The threads that receive pages, one for each link.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use error_reporter::Report;
use hikkoshi_pages::PAGE_SIZE;
use hikkoshi_wire::{Frame, MAX_PAGES_PER_FRAME};

use crate::destination::context::ReceiveContext;
use crate::destination::error::DestinationFailure;
use crate::destination::options::DestinationOptions;
use crate::destination::postcopy::installer::Installer;
use crate::destination::session::{DestinationSessionEvent, Ends};
use crate::panic_notifier::PanicNotifier;
use crate::report::{Cell, Counters};
use hikkoshi_link::{Decompressor, LinkError, LinkReader, LinkWriter};
use hikkoshi_linux::sandbox_thread;
use hikkoshi_linux::{Priority, PriorityClass};

/// The source receives an acknowledgement at least this often, so that a window of twice as many
/// bytes keeps the link busy.
pub(crate) const ACK_EVERY: u64 = 32 << 10;

/// In post-copy, after *commit*, over TCP: the source knows from its kernel what has arrived, and
/// needs an acknowledgement only of what has been installed. So it receives one for this many
/// bytes, or when nothing has arrived for [`IDLE_IN_POSTCOPY`]. It is more than a piece, and each
/// one costs both sides as much as a small piece.
const ACK_EVERY_IN_POSTCOPY: u64 = 256 << 10;

/// See [`ACK_EVERY_IN_POSTCOPY`]. Longer than the interval of two pieces on a slow line.
const IDLE_IN_POSTCOPY: Duration = Duration::from_millis(2);

/// The largest frame's content. A small constant: no truncation.
#[allow(clippy::cast_possible_truncation)]
const FRAME_BYTES: usize = MAX_PAGES_PER_FRAME as usize * PAGE_SIZE;

/// Which link a receiver serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Urgent,
    Background,
}

/// Receives the pages of background link `number` and acknowledges them.
pub(crate) fn start_background(
    number: usize,
    context: Arc<ReceiveContext>,
    (reader, acks): Ends,
    events: SyncSender<DestinationSessionEvent>,
    priority: Priority,
) -> Result<JoinHandle<()>, DestinationFailure> {
    let name = format!("dst-back-{number}");
    let receiver = PageReceiver::new(Kind::Background, context, reader, Some(acks), events);
    start(receiver, name, priority)
}

/// Receives the pages that were requested.
pub(crate) fn start_urgent(
    context: Arc<ReceiveContext>,
    mut reader: LinkReader,
    events: SyncSender<DestinationSessionEvent>,
    options: &DestinationOptions,
) -> Result<JoinHandle<()>, DestinationFailure> {
    reader.set_poll(options.poll);
    let receiver = PageReceiver::new(Kind::Urgent, context, reader, None, events);
    start(receiver, "dst-urgent".to_owned(), options.priority)
}

fn start(
    mut receiver: PageReceiver,
    name: String,
    priority: Priority,
) -> Result<JoinHandle<()>, DestinationFailure> {
    let class = match receiver.kind {
        Kind::Urgent => PriorityClass::Urgent,
        Kind::Background => PriorityClass::Background,
    };
    thread::Builder::new()
        .name(name)
        .spawn(move || {
            let died = DestinationSessionEvent::Failed(DestinationFailure::ThreadDied);
            let _notifier = PanicNotifier::new(&receiver.events, died);
            priority.apply(class);
            sandbox_thread();
            let failure = receiver.run();
            // After the end of the migration nothing receives events any more.
            let _ = receiver
                .events
                .send(DestinationSessionEvent::Failed(failure));
        })
        .map_err(DestinationFailure::Thread)
}

/// A frame whose content was read; for pages that were compressed, the one that would have carried
/// them uncompressed.
enum Payload {
    /// The content, if it has any, is in the receiver's buffer.
    Buffered(Frame),
    /// The content is in the guest's memory.
    Placed(Frame),
}

impl Payload {
    fn frame(&self) -> &Frame {
        match self {
            Self::Buffered(frame) | Self::Placed(frame) => frame,
        }
    }
}

#[derive(Debug)]
struct PageReceiver {
    kind: Kind,
    context: Arc<ReceiveContext>,
    reader: LinkReader,
    acks: Option<LinkWriter>,
    acked: u64,
    /// The source's kernel tells it what has arrived.
    has_tcp_info: bool,
    buffer: Vec<u8>,
    /// On background links: for pages that are compressed.
    compressed: Vec<u8>,
    decompressor: Decompressor,
    events: SyncSender<DestinationSessionEvent>,
}

impl PageReceiver {
    fn new(
        kind: Kind,
        context: Arc<ReceiveContext>,
        reader: LinkReader,
        acks: Option<LinkWriter>,
        events: SyncSender<DestinationSessionEvent>,
    ) -> Self {
        Self {
            kind,
            context,
            has_tcp_info: reader.has_tcp_info(),
            reader,
            acks,
            acked: 0,
            buffer: vec![0; FRAME_BYTES],
            compressed: Vec::new(),
            decompressor: Decompressor::new(),
            events,
        }
    }

    /// Receives until an error occurs, such as the end of the link.
    fn run(&mut self) -> DestinationFailure {
        let doing = match self.kind {
            Kind::Urgent => "receiving urgent pages",
            Kind::Background => "receiving background pages",
        };
        loop {
            let before = self.reader.received();
            let frame = match self.reader.frame() {
                Ok(frame) => frame,
                Err(cause) => return DestinationFailure::Link { doing, cause },
            };
            let result = self
                .payload(frame, doing)
                .and_then(|payload| {
                    let installer = self.context.installer();
                    // Counted before it is applied: after the last page the main thread writes the
                    // account.
                    self.count(payload.frame(), self.reader.received() - before);
                    match payload {
                        Payload::Buffered(frame) => self.apply(&frame, installer, doing),
                        Payload::Placed(_) => Ok(false),
                    }
                })
                .and_then(|last| {
                    if last {
                        let _ = self.events.send(DestinationSessionEvent::AllReceived);
                    }
                    self.acknowledge()
                });
            if let Err(failure) = result {
                return failure;
            }
        }
    }

    /// Reads a frame's content: in pre-copy to where it belongs, if that is mapped here, and into
    /// the buffer otherwise.
    fn payload(
        &mut self,
        frame: Frame,
        doing: &'static str,
    ) -> Result<Payload, DestinationFailure> {
        let unexpected = || DestinationFailure::unexpected(doing, &frame);
        match frame {
            Frame::Pages { range } => {
                let memory = self.context.memory.as_ref();
                if let Some(place) = memory.and_then(|memory| memory.mapped(range)) {
                    self.reader
                        .payload_into(&place)
                        .map_err(DestinationFailure::link(doing))?;
                    return Ok(Payload::Placed(frame));
                }
                // The decoder limits a frame to the size of the buffer.
                let content = self.buffer.get_mut(..frame.payload_len());
                self.reader
                    .payload(content.ok_or_else(unexpected)?)
                    .map_err(DestinationFailure::link(doing))?;
                Ok(Payload::Buffered(frame))
            }
            Frame::Compressed { range, method, len } if self.kind == Kind::Background => {
                // Urgent links need no buffer for it, and most background links neither.
                self.compressed.resize(FRAME_BYTES, 0);
                let compressed = self.compressed.get_mut(..frame.payload_len());
                let compressed = compressed.ok_or_else(unexpected)?;
                self.reader
                    .payload(compressed)
                    .map_err(DestinationFailure::link(doing))?;
                let content = usize::try_from(range.bytes()).ok();
                let content = content.and_then(|bytes| self.buffer.get_mut(..bytes));
                self.decompressor
                    .decompress(method, compressed, content.ok_or_else(unexpected)?)
                    .map_err(|error| {
                        let cause = LinkError::Protocol(Report::new(&error).to_string());
                        DestinationFailure::Link { doing, cause }
                    })?;
                let counters = &self.context.counters.compression;
                counters.add(method, range.bytes(), u64::from(len));
                Ok(Payload::Buffered(Frame::Pages { range }))
            }
            other => Ok(Payload::Buffered(other)),
        }
    }

    /// Writes or installs a frame's pages; `true` when no page is missing any more.
    fn apply(
        &self,
        frame: &Frame,
        installer: Option<&Installer>,
        doing: &'static str,
    ) -> Result<bool, DestinationFailure> {
        let memory = || {
            let memory = self.context.memory.as_ref();
            memory.ok_or_else(|| DestinationFailure::unexpected(doing, frame))
        };
        match *frame {
            Frame::Pages { range } => {
                let content = self.buffer.get(..frame.payload_len()).unwrap_or_default();
                match installer {
                    Some(installer) => {
                        let received = installer.requests.now();
                        Ok(installer.install(range, content, received)?)
                    }
                    None => {
                        memory()?.write(range, content)?;
                        Ok(false)
                    }
                }
            }
            Frame::Zeros { range } => match installer {
                Some(installer) => {
                    let received = installer.requests.now();
                    Ok(installer.install_zeros(range, received)?)
                }
                None => {
                    memory()?.zero(range)?;
                    Ok(false)
                }
            },
            other => Err(DestinationFailure::unexpected(doing, &other)),
        }
    }

    /// Acknowledges applied bytes: every [`ACK_EVERY`] bytes, and when there is nothing more to
    /// read; less often in post-copy.
    fn acknowledge(&mut self) -> Result<(), DestinationFailure> {
        let Some(acks) = &mut self.acks else {
            return Ok(());
        };
        let bytes = self.reader.received();
        let doing = "acknowledging background pages";
        let (every, idle) = match self.has_tcp_info && self.context.is_committed() {
            true => (ACK_EVERY_IN_POSTCOPY, IDLE_IN_POSTCOPY),
            false => (ACK_EVERY, Duration::ZERO),
        };
        let due = bytes - self.acked >= every
            || !self
                .reader
                .is_ready(idle)
                .map_err(DestinationFailure::link(doing))?;
        if due {
            match acks.frame(Frame::Ack { bytes }) {
                // A source that has closed the link has received all the acknowledgements that it
                // waits for.
                Ok(()) | Err(LinkError::Closed | LinkError::Io(_)) => self.acked = bytes,
                Err(cause) => return Err(DestinationFailure::Link { doing, cause }),
            }
        }
        Ok(())
    }

    fn count(&self, frame: &Frame, bytes: u64) {
        let counters = &self.context.counters;
        let (pages, total) = match (self.kind, self.context.installer.get().is_some()) {
            (Kind::Urgent, _) => (&counters.urgent, &counters.urgent_bytes),
            (Kind::Background, true) => (&counters.background, &counters.background_bytes),
            (Kind::Background, false) => (&counters.precopy, &counters.precopy_bytes),
        };
        let range = match *frame {
            Frame::Pages { range } => {
                Counters::add(pages, range.len());
                range
            }
            Frame::Zeros { range } => {
                Counters::add(&counters.zero, range.len());
                range
            }
            _ => return,
        };
        Counters::add(total, bytes);
        self.context.tracker.done(range.len());
        let cell = match (self.kind, self.context.installer.get().is_some()) {
            (Kind::Urgent, _) => Cell::Urgent,
            (Kind::Background, true) => Cell::Background,
            (Kind::Background, false) => Cell::Copied,
        };
        self.context.map.add(cell, range);
    }
}
