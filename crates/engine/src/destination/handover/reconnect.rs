//! A source that is back: where both sides are, and what is missing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hikkoshi_pages::PageBitmap;
use hikkoshi_wire::{Capabilities, MAX_LINKS, PageRanges, ToDestination, ToSource};

use crate::destination::error::DestinationFailure;
use crate::destination::handover::{ActiveLinks, HandoverDriver, Link};
use crate::destination::receiver;
use crate::destination::session::Session;
use crate::report::Phase;
use hikkoshi_handover::{DestinationStage, SourceStage};
use hikkoshi_link::{Incoming, LinkError, LinkReader, LinkWriter, Stream, split};
use hikkoshi_linux::Cancel;

/// How long the source may take to say where it is.
const HERE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long it may take to say what it owes: it looks for data in its RAM files.
const OWED_TIMEOUT: Duration = Duration::from_secs(120);

const DOING: &str = "taking the migration up again";

/// A control link on which the source has said where it is.
#[derive(Debug)]
pub(crate) struct ReconnectedSource {
    stream: Arc<Stream>,
    reader: LinkReader,
    writer: LinkWriter,
    capabilities: Capabilities,
}

impl HandoverDriver<'_> {
    /// Hears where the source is.
    pub(crate) fn meet(
        &self,
        link: Incoming,
    ) -> Result<(ReconnectedSource, SourceStage), DestinationFailure> {
        let io = |error: std::io::Error| DestinationFailure::link(DOING)(error.into());
        link.stream
            .set_stall_timeout(self.options.stall_timeout)
            .map_err(io)?;
        let stream = Arc::new(link.stream);
        let (mut reader, mut writer) =
            split(&stream, self.limits(), &self.watch.cancel).map_err(io)?;
        writer.set_patience(Some(self.options.stall_timeout));
        reader.set_deadline(Some(Instant::now() + HERE_TIMEOUT));
        let said = reader.control().map_err(DestinationFailure::link(DOING))?;
        let ToDestination::ResumeRequest { stage } = said else {
            return Err(DestinationFailure::unexpected(DOING, &said));
        };
        let met = ReconnectedSource {
            stream,
            reader,
            writer,
            capabilities: link.capabilities,
        };
        Ok((met, stage.into()))
    }

    /// Says that this is the stage, and what is missing; takes the source's
    /// other links in, if anything is.
    pub(crate) fn answer(&mut self, stage: DestinationStage) -> Result<(), DestinationFailure> {
        // It is gone: it will come again.
        let Some(mut met) = self.state.met.take() else {
            return Ok(());
        };
        self.capabilities = met.capabilities;
        let huge = self.ram.layout().blocks().any(|(b, _)| b.host_page > 4096);
        // Memory was set aside for so many where there are huge pages.
        let most = if huge {
            self.machine.record().links.clamp(1, MAX_LINKS)
        } else {
            MAX_LINKS
        };
        let host_pages = self.ram.layout().blocks().map(|(block, _)| block.host_page);
        met.say(&ToSource::ResumeReply {
            stage: stage.into(),
            host_pages: host_pages.collect(),
            background_links: most,
        })?;
        let mut links = 0;
        if matches!(stage, DestinationStage::Ready | DestinationStage::Running) {
            links = self.settle(&mut met)?;
            if links > most {
                return Err(DestinationFailure::unexpected(DOING, &links));
            }
            if let Some(faulting) = &self.faulting {
                // What is missing now, as the source counts it.
                let missing = faulting.installer().missing.count();
                self.sink.tracker.begin(Phase::Postcopy, 0, missing);
            }
        }
        let stop = Cancel::new();
        met.reader.set_deadline(None);
        met.reader.set_stop(stop.clone());
        met.writer.set_patience(None);
        met.writer.set_stop(stop.clone());
        // Only what brings no pages is still of interest.
        let Link::Down(channel) = &mut self.link else {
            return Err(DestinationFailure::link(DOING)(LinkError::Closed));
        };
        let mut session = Session::start(
            met.stream,
            met.reader,
            met.writer,
            self.ram.layout().into(),
            stop,
            channel,
        )?;
        let arrived = session.await_links(
            self.incoming,
            self.machine.record().id,
            links,
            links > 0,
            self.options.stall_timeout,
            &self.watch.cancel,
        );
        let mut line = ActiveLinks::new(session, Vec::new());
        let begun = arrived.and_then(|arrived| {
            let events = line.session.events();
            for (number, ends) in arrived.background.into_iter().enumerate() {
                let sink = Arc::clone(&self.sink);
                line.receivers.push(receiver::start_background(
                    number,
                    sink,
                    ends,
                    events.clone(),
                    self.options.priority,
                )?);
            }
            if let (Some((reader, writer)), Some(faulting)) = (arrived.urgent, &self.faulting) {
                let sink = Arc::clone(&self.sink);
                line.receivers
                    .push(receiver::start_urgent(sink, reader, events, &self.options)?);
                faulting.ask(Some(writer));
            }
            if let Some(faulting) = &self.faulting {
                faulting.installer().request_again()?;
            }
            Ok(())
        });
        // Also on a failure: its threads are to be waited for.
        self.is_up(line);
        begun
    }

    /// Says what is missing, and hears what of it is owed; gives the number of
    /// background links to expect.
    fn settle(&mut self, met: &mut ReconnectedSource) -> Result<u16, DestinationFailure> {
        let limits = self.limits();
        let installer = self.faulting.as_ref().map(|f| Arc::clone(f.installer()));
        let mut pages = 0;
        if let Some(installer) = &installer {
            installer.requests.huge().drop_pieces();
            for ranges in PageRanges::batches(installer.missing.ranges()) {
                pages += ranges.pages();
                met.say(&ToSource::Missing { ranges })?;
            }
        }
        met.say(&ToSource::MissingEnd { pages })?;
        met.reader.set_deadline(Some(Instant::now() + OWED_TIMEOUT));
        let owed = PageBitmap::empty(limits.pages);
        loop {
            match met.hear()? {
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
                other => return Err(DestinationFailure::unexpected(DOING, &other)),
            }
        }
    }
}

impl ReconnectedSource {
    fn say(&mut self, message: &ToSource) -> Result<(), DestinationFailure> {
        self.writer
            .control(message)
            .map_err(DestinationFailure::link(DOING))
    }

    fn hear(&mut self) -> Result<ToDestination, DestinationFailure> {
        self.reader
            .control()
            .map_err(DestinationFailure::link(DOING))
    }
}
