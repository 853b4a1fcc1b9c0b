//! The source's end of a migration's connections.

mod connector;
mod control_messages;
mod event;
mod notify_memory_lost;
mod offer;
mod reconnect;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Instant;

use error_reporter::Report;
use hikkoshi_handover::{DestinationStage, SourceStage};
use hikkoshi_link::{
    BackgroundSender, Compression, LinkError, LinkReader, LinkWriter, Remote, Stream,
};
use hikkoshi_linux::CancelFlag;
use hikkoshi_pages::RamLayout;
use hikkoshi_wire::{Features, MigrationId, OfferedGuest, ToDestination};

use crate::control_link::{QUEUED_EVENTS, start_reader};
use crate::disks::DiskRelay;
use crate::network_frames::FrameCapture;
use crate::source::context::MigrationContext;
use crate::source::error::SourceFailure;
use crate::source::network_frames::FrameForwarder;
use crate::source::unsent::UnsentPages;
pub(crate) use connector::DISCARD_TIMEOUT;
use connector::{Connected, Connector, Ends};
use event::CONTROL;
pub(crate) use event::{CommitState, SourceSessionEvent};

/// All links to one destination.
#[derive(Debug)]
pub(crate) struct SourceSession {
    control: LinkWriter,
    events: Receiver<SourceSessionEvent>,
    sender: SyncSender<SourceSessionEvent>,
    pub(crate) streams: Vec<Arc<Stream>>,
    /// Ends every thread that works on a link.
    pub(crate) stop: CancelFlag,
    /// The control link has ended.
    control_ended: bool,
    /// *Commit* may have been sent.
    committed: bool,
    /// *Switch* may have been sent, so the destination may have sent *Ready*.
    pub(crate) may_be_ready: bool,
    /// The error of an ended link that has not been reported yet.
    deferred_error: Option<LinkError>,
    /// The background links, to end all of them when one has failed.
    pub(crate) background: Arc<[Arc<Stream>]>,
    /// The urgent link's two ends, where post-copy is possible.
    pub(crate) urgent: Option<(LinkReader, LinkWriter)>,
    /// The guest's layout with the destination's host page sizes.
    pub(crate) destination: RamLayout,
    /// Frames that arrive for the guest, if they are kept.
    pub(crate) frames: Option<FrameForwarder>,
    /// The links for disks whose copies have not begun.
    pub(crate) disk_links: Vec<Ends>,
    /// What carries the bytes of the disks' copies.
    pub(crate) disks: Vec<DiskRelay>,
    /// What the destination of a resumed migration has not done.
    pub(crate) left_to_do: Option<String>,
}

impl SourceSession {
    /// The guest is to be paused soon: see [`FrameCapture::prepare`].
    pub(crate) fn prepare_frames(&mut self) {
        if let Some(frames) = &mut self.frames {
            frames.prepare();
        }
    }

    /// Connects to `remote`, offers the guest, and opens the other links once
    /// the destination has accepted it. Returns the background links apart: the
    /// threads of each phase own them in turn.
    pub(crate) fn open(
        shared: &MigrationContext,
        remote: &Remote,
        id: MigrationId,
        guest: OfferedGuest,
        capture: Option<Box<dyn FrameCapture>>,
    ) -> Result<(Self, Vec<BackgroundSender>), SourceFailure> {
        let connector = Connector { shared, remote, id };
        let keeps_frames = capture.is_some();
        let mut connected = offer::offer(&connector, guest, keeps_frames)?;
        let frames = connected.links.frames.take();
        let disks = std::mem::take(&mut connected.links.disks);
        let (mut session, background) = Self::start(connected, shared)?;
        if let Some((capture, (stream, (mut reader, mut writer)))) = capture.zip(frames) {
            reader.set_stop(session.stop.clone());
            writer.set_stop(session.stop.clone());
            session.streams.push(Arc::clone(&stream));
            session.frames = Some(FrameForwarder::new(capture, stream, (reader, writer)));
        }
        let streams = disks.iter().map(|(stream, _)| Arc::clone(stream));
        session.streams.extend(streams);
        session.disk_links = disks;
        Ok((session, background))
    }

    /// Connects again to the destination of the migration `id`, which is at
    /// `remote` now. Sends the source's stage and returns the destination's.
    ///
    /// Afterwards `unsent` holds the pages with data that are missing there, if
    /// the destination is in a stage in which pages may be missing. No other
    /// thread may use it meanwhile.
    pub(crate) fn resume(
        shared: &MigrationContext,
        remote: &Remote,
        id: MigrationId,
        stage: SourceStage,
        unsent: &UnsentPages,
    ) -> Result<(Self, Vec<BackgroundSender>, DestinationStage), SourceFailure> {
        let connector = Connector { shared, remote, id };
        let resumed = reconnect::resume(&connector, stage, unsent)?;
        let (mut session, background) = Self::start(resumed.connected, shared)?;
        session.left_to_do = resumed.left_to_do;
        session.committed = true;
        session.control.set_stop(session.stop.clone());
        session.control.set_progress_timeout(None);
        Ok((session, background, resumed.there))
    }

    /// Starts the session's reader on connected links.
    fn start(
        connected: Connected,
        shared: &MigrationContext,
    ) -> Result<(Self, Vec<BackgroundSender>), SourceFailure> {
        let Connected {
            control: (stream, reader, control),
            links: more,
            destination,
        } = connected;
        let stop = CancelFlag::new();
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
        let compression = if more.features.has(Features::COMPRESSED_PAGES) {
            shared.options.compression
        } else {
            if matches!(shared.options.compression, Compression::Always(_)) {
                tracing::warn!(
                    "the destination's version cannot decompress pages: they are sent as they are"
                );
            }
            Compression::Off
        };
        let (background, ends): (Vec<_>, Vec<_>) = more.background.into_iter().unzip();
        let ends = ends
            .into_iter()
            .map(|(acks, pages)| {
                let mut sender = BackgroundSender::new(acks, pages, shared.control.bandwidth());
                sender.set_progress_timeout(Some(shared.options.peer_timeout));
                sender.set_compression(compression, &shared.counters.compression);
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
            frames: None,
            disk_links: Vec::new(),
            disks: Vec::new(),
            left_to_do: None,
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
            Ok(message) => SourceSessionEvent::Message(message),
            Err(error) => SourceSessionEvent::LinkEnded(CONTROL, error),
        })
        .map(drop)
        .map_err(SourceFailure::Thread)
    }

    /// Where the links' threads report to.
    pub(crate) fn events(&self) -> SyncSender<SourceSessionEvent> {
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

    /// Sends *Commit*. From the call on, this side cannot cancel; a cancellation
    /// does not interrupt the sending either.
    pub(crate) fn commit(&mut self, doing: &'static str) -> Result<(), SourceFailure> {
        self.committed = true;
        self.control.set_stop(self.stop.clone());
        self.control.set_progress_timeout(None);
        self.send(&ToDestination::Commit, doing)
    }

    /// Sends *Cancel*, and ends all links.
    pub(crate) fn cancel(&mut self, reason: String) {
        // Does not wait for a peer that does not read: the end of the links has the
        // same effect at the destination, without the reason.
        self.control.set_stop(CancelFlag::cancelled());
        if let Err(error) = self.send(&ToDestination::Cancel { reason }, "cancelling") {
            tracing::debug!(error = %Report::new(&error), "the cancellation was not sent");
        }
        self.close();
    }

    /// When anything of the destination arrived last. It may have nothing to request
    /// for long, but its kernel acknowledges the pages. `None`: not known, the links
    /// are unix sockets.
    pub(crate) fn last_sign(&self) -> Option<Instant> {
        let streams = self.streams.iter();
        streams.filter_map(|stream| stream.last_sign()).max()
    }

    /// Ends all links. The threads that work on them can be joined then: the event
    /// queue is closed, so that none of them blocks on it.
    pub(crate) fn close(&mut self) {
        self.events = sync_channel(0).1;
        self.stop.cancel();
        for stream in &self.streams {
            stream.shutdown();
        }
    }
}

impl Drop for SourceSession {
    fn drop(&mut self) {
        self.close();
    }
}
