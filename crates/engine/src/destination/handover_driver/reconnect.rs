//! A source that has reconnected: both sides report their stage, and which pages are missing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hikkoshi_pages::PageBitmap;
use hikkoshi_wire::{MAX_LINKS, PageRanges, ToDestination, ToSource};

use crate::destination::error::DestinationFailure;
use crate::destination::handover_driver::HandoverDriver;
use crate::destination::handover_driver::links::{ActiveLinks, LinkState};
use crate::destination::page_receiver;
use crate::destination::postcopy::installer::Installer;
use crate::destination::session::{ControlLink, DestinationSession, ExpectedLinks};
use hikkoshi_handover::{DestinationStage, SourceStage};
use hikkoshi_link::{AcceptedLink, LinkError, LinkReader, LinkWriter, Stream, split};
use hikkoshi_linux::CancelFlag;

/// How long the source may take to report its stage.
const HERE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long it may take to report which missing pages have data: it searches its RAM files for
/// data.
const OWED_TIMEOUT: Duration = Duration::from_secs(120);

const DOING: &str = "resuming the migration";

/// A control link on which the source has reported its stage.
#[derive(Debug)]
pub(crate) struct ReconnectedSource {
    stream: Arc<Stream>,
    reader: LinkReader,
    writer: LinkWriter,
}

impl HandoverDriver<'_> {
    /// Receives the source's stage.
    pub(crate) fn receive_resume_request(
        &self,
        link: AcceptedLink,
    ) -> Result<(ReconnectedSource, SourceStage), DestinationFailure> {
        let io = |error: std::io::Error| DestinationFailure::link(DOING)(error.into());
        link.stream
            .set_stall_timeout(self.options.stall_timeout)
            .map_err(io)?;
        let stream = Arc::new(link.stream);
        let (mut reader, mut writer) =
            split(&stream, self.limits(), &self.control.cancel).map_err(io)?;
        writer.set_progress_timeout(Some(self.options.stall_timeout));
        reader.set_deadline(Some(Instant::now() + HERE_TIMEOUT));
        let said = reader.control().map_err(DestinationFailure::link(DOING))?;
        let ToDestination::ResumeRequest { stage } = said else {
            return Err(DestinationFailure::unexpected(DOING, &said));
        };
        let source = ReconnectedSource {
            stream,
            reader,
            writer,
        };
        Ok((source, stage.into()))
    }

    /// Sends `stage` and which pages are missing; accepts the source's other links, if any page is.
    pub(crate) fn answer_reconnected(
        &mut self,
        stage: DestinationStage,
    ) -> Result<(), DestinationFailure> {
        // It has disconnected, and will connect again.
        let Some(mut source) = self.connection.reconnected.take() else {
            return Ok(());
        };
        let huge = self.ram.layout().blocks().any(|(b, _)| b.host_page > 4096);
        // Buffers for huge pages were allocated for this number of links.
        let most = if huge {
            self.handover.record().links.clamp(1, MAX_LINKS)
        } else {
            MAX_LINKS
        };
        if stage == DestinationStage::Complete
            && let Some(message) = self.left_to_do()
        {
            source.send(&message)?;
        }
        let host_pages = self.ram.layout().blocks().map(|(block, _)| block.host_page);
        source.send(&ToSource::ResumeReply {
            stage: stage.into(),
            host_pages: host_pages.collect(),
            background_links: most,
        })?;
        let mut links = 0;
        if matches!(stage, DestinationStage::Ready | DestinationStage::Running) {
            links = self.agree_on_missing(&mut source)?;
            if links > most {
                return Err(DestinationFailure::unexpected(DOING, &links));
            }
            if let Some(postcopy) = &self.postcopy {
                // What is missing now, as the source counts it.
                let missing = postcopy.installer().missing.count();
                self.context.tracker.resume_postcopy(missing, None);
                let installer = Arc::<Installer>::downgrade(postcopy.installer());
                self.context.live.note_missing(installer);
            }
        }
        let stop = CancelFlag::new();
        source.reader.set_deadline(None);
        source.reader.set_stop(stop.clone());
        source.writer.set_progress_timeout(None);
        source.writer.set_stop(stop.clone());
        // From now on, only the end of the migration interrupts these calls.
        let LinkState::Down(channel) = &mut self.links else {
            return Err(DestinationFailure::link(DOING)(LinkError::Closed));
        };
        let control = ControlLink {
            stream: source.stream,
            reader: source.reader,
            writer: source.writer,
            limits: self.ram.layout().into(),
            stop,
        };
        let mut session = DestinationSession::start(control, channel)?;
        let expected = ExpectedLinks {
            id: self.handover.record().id,
            background: links,
            urgent: links > 0,
            frames: false,
            disks: 0,
        };
        let arrived = session.await_links(
            self.incoming,
            &expected,
            self.options.stall_timeout,
            &self.control.cancel,
        );
        let mut line = ActiveLinks::new(session, Vec::new());
        let begun = arrived.and_then(|arrived| {
            let events = line.session.events();
            for (number, ends) in arrived.background.into_iter().enumerate() {
                let context = Arc::clone(&self.context);
                line.receivers.push(page_receiver::start_background(
                    number,
                    context,
                    ends,
                    events.clone(),
                    self.options.priority,
                )?);
            }
            if let (Some((reader, writer)), Some(postcopy)) = (arrived.urgent, &self.postcopy) {
                let context = Arc::clone(&self.context);
                line.receivers.push(page_receiver::start_urgent(
                    context,
                    reader,
                    events,
                    &self.options,
                )?);
                postcopy.set_request_link(Some(writer));
            }
            if let Some(postcopy) = &self.postcopy {
                postcopy.installer().request_again()?;
            }
            Ok(())
        });
        // Also after a failure: its threads have to be joined.
        self.set_links(line);
        self.context.live.outages.end();
        begun
    }

    /// Sends what is missing, and receives what of it is owed; returns the number of background
    /// links to expect.
    fn agree_on_missing(
        &mut self,
        source: &mut ReconnectedSource,
    ) -> Result<u16, DestinationFailure> {
        let limits = self.limits();
        let installer = self.postcopy.as_ref().map(|p| Arc::clone(p.installer()));
        let mut pages = 0;
        if let Some(installer) = &installer {
            installer.requests.huge().drop_pieces();
            for ranges in PageRanges::batches(installer.missing.ranges()) {
                pages += ranges.pages();
                source.send(&ToSource::Missing { ranges })?;
            }
        }
        source.send(&ToSource::MissingEnd { pages })?;
        source
            .reader
            .set_deadline(Some(Instant::now() + OWED_TIMEOUT));
        let owed = PageBitmap::empty(limits.pages);
        loop {
            match source.receive()? {
                ToDestination::Owed { ranges } => {
                    let ranges = ranges
                        .within(&limits)
                        .map_err(|e| DestinationFailure::unexpected(DOING, &e.to_string()))?;
                    for &range in ranges {
                        owed.set_range(range);
                    }
                }
                ToDestination::OwedEnd {
                    pages,
                    background_links,
                } if pages == owed.count() && (pages > 0) == (background_links > 0) => {
                    if let Some(installer) = &installer {
                        installer
                            .missing
                            .retain(&owed)
                            .map_err(|page| DestinationFailure::unexpected(DOING, &page))?;
                    } else if pages > 0 {
                        return Err(DestinationFailure::unexpected(DOING, &pages));
                    }
                    return Ok(background_links);
                }
                ToDestination::MemoryLost { reason } => {
                    return Err(DestinationFailure::SourceMemoryLost(reason));
                }
                other => return Err(DestinationFailure::unexpected(DOING, &other)),
            }
        }
    }
}

impl ReconnectedSource {
    fn send(&mut self, message: &ToSource) -> Result<(), DestinationFailure> {
        self.writer
            .control(message)
            .map_err(DestinationFailure::link(DOING))
    }

    fn receive(&mut self) -> Result<ToDestination, DestinationFailure> {
        self.reader
            .control()
            .map_err(DestinationFailure::link(DOING))
    }
}
