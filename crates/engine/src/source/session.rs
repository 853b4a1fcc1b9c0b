//! The source's end of a migration's connections.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use hikkoshi_pages::{PageBitmap, PageRange, RamLayout};
use hikkoshi_wire::{
    Agreed, Capabilities, GuestDescription, Limits, Machine, MigrationId, PageRanges, Processors,
    Role, ToDestination, ToSource, Versions,
};

use crate::control_link::{QUEUED_EVENTS, start_reader};
use crate::source::MigrationContext;
use crate::source::error::SourceFailure;
use crate::source::unsent::UnsentPages;
use hikkoshi_handover::{DestinationStage, SourceStage};
use hikkoshi_link::{
    BackgroundSender, HandshakeError, LinkError, LinkReader, LinkWriter, Pace, Remote, Stream,
    TICK, hello, open, split,
};
use hikkoshi_linux::Cancel;

/// The name of the control link, for events.
const CONTROL: &str = "the control link";

/// How long the destination may take to accept the guest, or to drop what is
/// stale: it empties its RAM files, at about 10 GiB/s.
pub(crate) const DISCARD_TIMEOUT: Duration = Duration::from_secs(120);

/// How long to listen for the reason when a link has failed: what the
/// destination said last is still on the control link.
const REASON_TIMEOUT: Duration = Duration::from_secs(2);

/// What the main thread waits for.
#[derive(Debug)]
pub(crate) enum Event {
    /// The destination said something.
    Message(ToSource),
    /// A link's thread ended.
    LinkEnded(&'static str, LinkError),
    /// Guest memory could not be read.
    RamFailed(io::Error),
    /// A thread that sends pages panicked.
    ThreadDied,
}

/// Whether a migration can still be called off.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CommitState<'a> {
    /// By either side; here, by this flag.
    BeforeCommit(&'a Cancel),
    /// By nobody.
    AfterCommit,
}

/// All links to one destination.
#[derive(Debug)]
pub(crate) struct Session {
    control: LinkWriter,
    events: Receiver<Event>,
    sender: SyncSender<Event>,
    pub(crate) streams: Vec<Arc<Stream>>,
    /// Ends every thread that works on a link.
    pub(crate) stop: Cancel,
    /// Nothing more will be heard on the control link.
    control_ended: bool,
    /// *Commit* may be on its way.
    committed: bool,
    /// The destination was told to switch over, and may have said *ready*.
    pub(crate) may_be_ready: bool,
    /// A link whose end has not been dealt with yet.
    deferred_error: Option<LinkError>,
    /// The background links: to end them all when one has failed.
    pub(crate) background: Arc<[Arc<Stream>]>,
    /// The urgent link's two ends, where post-copy is possible.
    pub(crate) urgent: Option<(LinkReader, LinkWriter)>,
    /// The guest's layout with the destination's host page sizes.
    pub(crate) destination: RamLayout,
}

impl Session {
    /// Connects to `remote`, offers the guest, and opens the other links once
    /// the destination has accepted it. Gives the background links by
    /// themselves: they change hands.
    pub(crate) fn open(
        shared: &MigrationContext,
        remote: &Remote,
        id: MigrationId,
        description: &GuestDescription,
        processors: Processors,
        machine: Machine,
    ) -> Result<(Self, Vec<BackgroundSender>), SourceFailure> {
        let options = &shared.options;
        let connector = Connector { shared, remote, id };
        let links = options.links.max(1);
        let doing = "offering the guest to the destination";
        let ((stream, mut reader, mut control), agreed) = connector.control()?;
        if agreed.version < Versions::TO_BEGIN {
            return Err(SourceFailure::OlderDestination);
        }
        control.set_patience(Some(options.patience));
        let of_machine = (agreed.capabilities.contains(Capabilities::MACHINE)
            && machine != Machine::default())
        .then_some(ToDestination::Machine { machine });
        let offer = [
            ToDestination::Processors {
                processors,
                allow_mismatch: options.allow_cpu_mismatch,
            },
            ToDestination::Begin {
                description: description.clone(),
                mode: options.mode,
                may_postcopy: options.may_postcopy(),
                background_links: links,
            },
        ];
        for message in of_machine.iter().chain(&offer) {
            control
                .control(message)
                .map_err(SourceFailure::link(doing))?;
        }
        reader.set_deadline(Some(Instant::now() + DISCARD_TIMEOUT));
        let mut answer = reader.control().map_err(SourceFailure::link(doing))?;
        if let ToSource::Differs { what } = &answer
            && options.allow_cpu_mismatch
        {
            shared.observer.notice(&format!(
                "the guest will find other processors at the destination: {what}"
            ));
            answer = reader.control().map_err(SourceFailure::link(doing))?;
        }
        let host_pages = match answer {
            ToSource::Accept { host_pages } => host_pages,
            ToSource::Refuse { reason } => return Err(SourceFailure::Refused(reason)),
            other => return Err(unexpected_message(doing, &other)),
        };
        let destination = with_host_pages(shared.ram.layout(), &host_pages)
            .ok_or_else(|| unexpected_message(doing, &host_pages))?;

        let more = connector.others(links, options.may_postcopy())?;
        Self::start((stream, reader, control), more, shared, destination)
    }

    /// Connects again to the destination of the migration `id`, which is at
    /// `remote` now. Says how far the source is, and gives how far the
    /// destination is. `owed` is what it lacks afterwards, where it is in a
    /// stage in which it may lack anything; nobody may be at work on it.
    pub(crate) fn again(
        shared: &MigrationContext,
        remote: &Remote,
        id: MigrationId,
        stage: SourceStage,
        unsent: &UnsentPages,
    ) -> Result<(Self, Vec<BackgroundSender>, DestinationStage), SourceFailure> {
        let doing = "taking the migration up again";
        let connector = Connector { shared, remote, id };
        let ((stream, mut reader, mut control), _) = connector.control()?;
        let here = ToDestination::ResumeRequest {
            stage: stage.into(),
        };
        control.set_patience(Some(shared.options.patience));
        control.control(&here).map_err(SourceFailure::link(doing))?;
        reader.set_deadline(Some(Instant::now() + DISCARD_TIMEOUT));
        let (there, host_pages, most_links) =
            match reader.control().map_err(SourceFailure::link(doing))? {
                ToSource::ResumeReply {
                    stage,
                    host_pages,
                    background_links,
                } => (DestinationStage::from(stage), host_pages, background_links),
                ToSource::Refuse { reason } => return Err(SourceFailure::Refused(reason)),
                other => return Err(unexpected_message(doing, &other)),
            };
        let destination = with_host_pages(shared.ram.layout(), &host_pages)
            .ok_or_else(|| unexpected_message(doing, &host_pages))?;
        let mut links = 0;
        if there == DestinationStage::Complete {
            check_all_sent(doing, unsent.count())?;
        }
        if matches!(there, DestinationStage::Ready | DestinationStage::Running) {
            take_missing(shared, &mut reader, &destination, unsent)?;
            for ranges in PageRanges::batches(unsent.runs()) {
                let message = ToDestination::Owed { ranges };
                control
                    .control(&message)
                    .map_err(SourceFailure::link(doing))?;
            }
            let pages = unsent.count();
            if pages > 0 {
                links = shared.options.links.min(most_links).max(1);
            }
            let end = ToDestination::OwedEnd {
                pages,
                background_links: links,
            };
            control.control(&end).map_err(SourceFailure::link(doing))?;
        }
        let more = connector.others(links, links > 0)?;
        let (mut session, background) =
            Self::start((stream, reader, control), more, shared, destination)?;
        session.committed = true;
        session.control.set_stop(session.stop.clone());
        session.control.set_patience(None);
        Ok((session, background, there))
    }

    /// Puts the links together.
    fn start(
        (stream, reader, control): Control,
        more: PageLinks,
        shared: &MigrationContext,
        destination: RamLayout,
    ) -> Result<(Self, Vec<BackgroundSender>), SourceFailure> {
        let stop = Cancel::new();
        let mut streams = vec![stream];
        streams.extend(more.background.iter().map(|(stream, _)| Arc::clone(stream)));
        let urgent = match more.urgent {
            None => None,
            Some((stream, (mut reader, mut writer))) => {
                reader.set_stop(stop.clone());
                writer.set_stop(stop.clone());
                streams.push(stream);
                Some((reader, writer))
            }
        };
        let ceiling = shared.options.bandwidth;
        let pace = ceiling.map(|all| Arc::new(Pace::new(all, Instant::now())));
        let (background, ends): (Vec<_>, Vec<_>) = more.background.into_iter().unzip();
        let ends = ends
            .into_iter()
            .map(|(acks, pages)| {
                let mut sender = BackgroundSender::new(acks, pages, pace.clone());
                sender.set_patience(Some(shared.options.patience));
                sender
            })
            .collect();
        let (sender, events) = sync_channel(QUEUED_EVENTS);
        let mut session = Self {
            control,
            events,
            sender,
            streams,
            stop,
            control_ended: false,
            committed: false,
            may_be_ready: false,
            deferred_error: None,
            background: background.into(),
            urgent,
            destination,
        };
        session.listen(reader)?;
        Ok((session, ends))
    }

    /// Starts the thread that turns control messages into events.
    fn listen(&mut self, mut reader: LinkReader) -> Result<(), SourceFailure> {
        let events = self.sender.clone();
        reader.set_stop(self.stop.clone());
        reader.set_deadline(None);
        start_reader("src-control", reader, events, |message| match message {
            Ok(message) => Event::Message(message),
            Err(error) => Event::LinkEnded(CONTROL, error),
        })
        .map(drop)
        .map_err(SourceFailure::Thread)
    }

    /// Where the links' threads report to.
    pub(crate) fn events(&self) -> SyncSender<Event> {
        self.sender.clone()
    }

    /// Sends a control message.
    pub(crate) fn send(
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
    pub(crate) fn commit(&mut self, doing: &'static str) -> Result<(), SourceFailure> {
        self.committed = true;
        self.control.set_stop(self.stop.clone());
        self.control.set_patience(None);
        self.send(&ToDestination::Commit, doing)
    }

    /// Waits for the next message; `None` after a tick without one.
    pub(crate) fn receive(
        &mut self,
        doing: &'static str,
        stage: CommitState<'_>,
    ) -> Result<Option<ToSource>, SourceFailure> {
        match self.events.recv_timeout(TICK) {
            Ok(Event::Message(ToSource::Failed { reason })) => {
                Err(SourceFailure::Destination(reason))
            }
            Ok(Event::Message(ToSource::Declined { reason }))
                if !matches!(stage, CommitState::AfterCommit) =>
            {
                Err(SourceFailure::Destination(reason))
            }
            Ok(Event::Message(ToSource::Cancel { reason })) => match stage {
                CommitState::BeforeCommit(_) => Err(SourceFailure::CancelledThere(reason)),
                // It crossed the commit, which the destination will obey.
                CommitState::AfterCommit => Ok(None),
            },
            Ok(Event::Message(message)) => Ok(Some(message)),
            Ok(Event::LinkEnded(link, cause)) => {
                tracing::debug!(link, %cause, "a link ended");
                self.control_ended |= link == CONTROL;
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

    /// Waits for a message that `wanted` accepts, no longer than `patience`; any
    /// other breaks the protocol.
    pub(crate) fn expect(
        &mut self,
        doing: &'static str,
        stage: CommitState<'_>,
        patience: Duration,
        wanted: impl Fn(&ToSource) -> bool,
    ) -> Result<(), SourceFailure> {
        let begun = Instant::now();
        loop {
            if begun.elapsed() > patience {
                let cause = LinkError::TooSlow;
                return Err(SourceFailure::Link { doing, cause });
            }
            if let CommitState::BeforeCommit(cancel) = stage
                && cancel.is_cancelled()
            {
                return Err(SourceFailure::Cancelled);
            }
            match self.receive(doing, stage) {
                Ok(Some(message)) if wanted(&message) => return Ok(()),
                Ok(Some(other)) => return Err(unexpected_message(doing, &other)),
                Ok(None) => {}
                Err(failure) => return Err(failure),
            }
        }
    }

    /// A link's end that is to be told once more.
    pub(crate) fn defer(&mut self, failure: SourceFailure) {
        if let SourceFailure::Link { cause, .. } = failure {
            self.deferred_error.get_or_insert(cause);
        }
    }

    /// As [`hear`](Self::hear), after the commit; a link's end that was put
    /// aside comes first.
    pub(crate) fn receive_after_commit(
        &mut self,
        doing: &'static str,
    ) -> Result<Option<ToSource>, SourceFailure> {
        match self.deferred_error.take() {
            Some(cause) => Err(SourceFailure::Link { doing, cause }),
            None => self.receive(doing, CommitState::AfterCommit),
        }
    }

    /// Looks for what is behind a link's end: a destination that gives up says
    /// why and closes its links, and a link's end may be seen first.
    pub(crate) fn explain(&mut self, failure: SourceFailure) -> SourceFailure {
        match self.final_message(&failure) {
            Some(ToSource::Failed { reason } | ToSource::Declined { reason }) => {
                SourceFailure::Destination(reason)
            }
            Some(ToSource::Cancel { reason }) => SourceFailure::CancelledThere(reason),
            _ => failure,
        }
    }

    /// What the destination had to say last, if `failure` is another link's
    /// end than the control link's.
    pub(crate) fn final_message(&mut self, failure: &SourceFailure) -> Option<ToSource> {
        if self.control_ended
            || !matches!(failure, SourceFailure::Link { cause, .. } if cause.is_end())
        {
            return None;
        }
        let deadline = Instant::now() + REASON_TIMEOUT;
        while let Some(remaining) = deadline.checked_duration_since(Instant::now()) {
            match self.events.recv_timeout(remaining) {
                Ok(Event::Message(ToSource::Cancel { .. })) if self.committed => {}
                Ok(Event::Message(
                    last @ (ToSource::Failed { .. }
                    | ToSource::Declined { .. }
                    | ToSource::GuestLost { .. }
                    | ToSource::ShutDown
                    | ToSource::Cancel { .. }
                    | ToSource::GuestResumed
                    | ToSource::Measured { .. }
                    | ToSource::Complete { .. }),
                )) => return Some(last),
                Ok(Event::LinkEnded(CONTROL, _)) | Err(_) => break,
                Ok(_) => {}
            }
        }
        None
    }

    /// Tells the destination that nothing comes of it, and ends all links.
    pub(crate) fn cancel(&mut self, reason: String) {
        // The links' end tells the destination as much, only less clearly: not
        // worth waiting for a peer that does not read.
        self.control.set_stop(Cancel::at_once());
        if let Err(error) = self.send(&ToDestination::Cancel { reason }, "calling off") {
            tracing::debug!(%error, "the destination does not hear the cancellation");
        }
        self.close();
    }

    /// Ends all links. The threads that work on them can be joined then:
    /// nothing that they report waits for somebody to hear it.
    pub(crate) fn close(&mut self) {
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

/// The way to one destination.
struct Connector<'a> {
    shared: &'a MigrationContext,
    remote: &'a Remote,
    id: MigrationId,
}

/// The control link and its two ends.
type Control = (Arc<Stream>, LinkReader, LinkWriter);

/// A link and its two ends.
type Ends = (Arc<Stream>, (LinkReader, LinkWriter));

/// The links beside the control link.
struct PageLinks {
    background: Vec<Ends>,
    urgent: Option<Ends>,
}

impl Connector<'_> {
    /// The one place that makes connections.
    fn open_link(&self, role: Role) -> Result<(Ends, Agreed), SourceFailure> {
        self.shared.check()?;
        let connect = |cause| SourceFailure::Connect {
            address: self.remote.address.to_string(),
            cause,
        };
        let options = &self.shared.options;
        let hello = hello(role, self.id);
        let opened = open(self.remote, &hello, &self.shared.cancel);
        let (stream, agreed) = opened.or_else(|cause| {
            self.shared.check()?;
            Err(connect(cause))
        })?;
        let limits = Limits {
            pages: self.shared.ram.layout().pages(),
        };
        let split = |stream: Stream| {
            stream.set_stall_timeout(options.stall_timeout)?;
            let stream = Arc::new(stream);
            // Until the commit, cancelling ends whatever is blocked on a link.
            let ends = split(&stream, limits, &self.shared.cancel)?;
            Ok((stream, ends))
        };
        let ends = split(stream).map_err(|error| connect(HandshakeError::Io(error)))?;
        Ok((ends, agreed))
    }

    fn control(&self) -> Result<(Control, Agreed), SourceFailure> {
        let ((stream, (reader, writer)), agreed) = self.open_link(Role::Control)?;
        Ok(((stream, reader, writer), agreed))
    }

    fn others(&self, links: u16, urgent: bool) -> Result<PageLinks, SourceFailure> {
        let open_link = |role| self.open_link(role).map(|(ends, _)| ends);
        Ok(PageLinks {
            background: (0..links)
                .map(|index| open_link(Role::Background { index }))
                .collect::<Result<_, _>>()?,
            urgent: urgent.then(|| open_link(Role::Urgent)).transpose()?,
        })
    }
}

/// Hears what the destination lacks: what of it is data is owed.
fn take_missing(
    shared: &MigrationContext,
    reader: &mut LinkReader,
    destination: &RamLayout,
    unsent: &UnsentPages,
) -> Result<(), SourceFailure> {
    let earlier = unsent.take();
    let taken = receive_missing(shared, reader, destination, unsent, &earlier)
        .and_then(|()| check_all_sent(MISSING, earlier.count()));
    if taken.is_err() {
        unsent.put_back(&earlier);
    }
    taken
}

const MISSING: &str = "hearing what the destination lacks";

/// Hears what is missing and adds it to what is owed; takes it out of `unsent`.
fn receive_missing(
    shared: &MigrationContext,
    reader: &mut LinkReader,
    destination: &RamLayout,
    unsent: &UnsentPages,
    earlier: &PageBitmap,
) -> Result<(), SourceFailure> {
    let limits = Limits {
        pages: destination.pages(),
    };
    let mut known = PageRange::EMPTY;
    let mut missing = 0u64;
    loop {
        match reader.control().map_err(SourceFailure::link(MISSING))? {
            ToSource::Missing { ranges } => {
                let ranges = ranges
                    .within(&limits)
                    .map_err(|error| unexpected_message(MISSING, &error.to_string()))?;
                for &range in ranges {
                    if destination.round_out(range) != range {
                        return Err(unexpected_message(MISSING, &range));
                    }
                    missing = missing.saturating_add(range.len());
                    earlier.clear_range(range);
                    unsent.add_missing(&shared.ram, destination, range, &mut known)?;
                }
            }
            ToSource::MissingEnd { pages } if pages == missing => return Ok(()),
            other => return Err(unexpected_message(MISSING, &other)),
        }
    }
}

/// Pages that have not left cannot have arrived. (An engine that took the
/// migration up does not know of any.)
pub(crate) fn check_all_sent(doing: &'static str, pages: u64) -> Result<(), SourceFailure> {
    if pages == 0 {
        return Ok(());
    }
    let text = format!("it says that it has everything, but {pages} pages have not been sent");
    Err(SourceFailure::Link {
        doing,
        cause: LinkError::Protocol(text),
    })
}

pub(crate) fn unexpected_message(
    doing: &'static str,
    message: &impl std::fmt::Debug,
) -> SourceFailure {
    let text: String = format!("{message:?}").chars().take(200).collect();
    SourceFailure::Link {
        doing,
        cause: LinkError::Protocol(format!("unexpected answer {text}")),
    }
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
