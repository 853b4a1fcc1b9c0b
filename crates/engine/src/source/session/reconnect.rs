//! Connects again to the destination of a migration that was committed.

use std::time::Instant;

use hikkoshi_handover::{DestinationStage, SourceStage};
use hikkoshi_link::LinkReader;
use hikkoshi_memory::MemoryLost;
use hikkoshi_pages::{PageBitmap, PageRange, RamLayout};
use hikkoshi_wire::{Limits, PageRanges, ToDestination, ToSource};

use crate::source::context::MigrationContext;
use crate::source::error::SourceFailure;
use crate::source::session::connector::{Connected, Connector, DISCARD_TIMEOUT, with_host_pages};
use crate::source::session::notify_memory_lost;
use crate::source::unsent::UnsentPages;

/// A destination that was connected to again.
pub(crate) struct Resumed {
    pub(crate) connected: Connected,
    /// Its stage.
    pub(crate) there: DestinationStage,
    /// What it has not done.
    pub(crate) left_to_do: Option<String>,
}

/// Connects, sends the source's stage, and returns the destination's.
///
/// If the destination is in a stage in which pages may be missing there,
/// `unsent` is afterwards the set of missing pages that hold data. No other
/// thread may use `unsent` meanwhile.
pub(crate) fn resume(
    connector: &Connector<'_>,
    stage: SourceStage,
    unsent: &UnsentPages,
) -> Result<Resumed, SourceFailure> {
    let doing = "resuming the migration";
    let shared = connector.shared;
    shared.sent.note_lost_links();
    let (stream, mut reader, mut control) = connector.control()?;
    let here = ToDestination::ResumeRequest {
        stage: stage.into(),
    };
    control.set_progress_timeout(Some(shared.options.peer_timeout));
    control.control(&here).map_err(SourceFailure::link(doing))?;
    reader.set_deadline(Some(Instant::now() + DISCARD_TIMEOUT));
    let mut answer = reader.control().map_err(SourceFailure::link(doing))?;
    let mut left_to_do = None;
    if let ToSource::LeftToDo { what } = answer {
        left_to_do = Some(what);
        answer = reader.control().map_err(SourceFailure::link(doing))?;
    }
    let (there, host_pages, most_links) = match answer {
        ToSource::ResumeReply {
            stage,
            host_pages,
            background_links,
        } => (DestinationStage::from(stage), host_pages, background_links),
        ToSource::Refuse { reason } => return Err(SourceFailure::Refused(reason)),
        other => return Err(SourceFailure::unexpected(doing, &other)),
    };
    let destination = with_host_pages(shared.ram.layout(), &host_pages)
        .ok_or_else(|| SourceFailure::unexpected(doing, &host_pages))?;
    let mut links = 0;
    if there == DestinationStage::Complete {
        SourceFailure::check_all_sent(doing, unsent.count())?;
    }
    if matches!(there, DestinationStage::Ready | DestinationStage::Running) {
        match take_missing(shared, &mut reader, &destination, unsent) {
            Err(SourceFailure::Ram(error)) if MemoryLost::is_in(&error) => {
                let control = (&mut reader, &mut control);
                return Err(notify_memory_lost::notify(shared, control));
            }
            taken => taken?,
        }
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
    let links = connector.others(links, links > 0, false, 0)?;
    let connected = Connected {
        control: (stream, reader, control),
        links,
        destination,
    };
    Ok(Resumed {
        connected,
        there,
        left_to_do,
    })
}

/// Receives the list of missing pages. Afterwards `unsent` is those that hold
/// data; on an error it is unchanged.
fn take_missing(
    shared: &MigrationContext,
    reader: &mut LinkReader,
    destination: &RamLayout,
    unsent: &UnsentPages,
) -> Result<(), SourceFailure> {
    let earlier = unsent.take();
    let taken = receive_missing(shared, reader, destination, unsent, &earlier)
        .and_then(|()| SourceFailure::check_all_sent(MISSING, earlier.count()));
    if taken.is_err() {
        unsent.put_back(&earlier);
    }
    taken
}

const MISSING: &str = "receiving the list of missing pages";

/// Receives the list of missing pages, adds those with data to `unsent`, and
/// removes them from `earlier`.
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
    let mut lost = None;
    loop {
        match reader.control().map_err(SourceFailure::link(MISSING))? {
            ToSource::Missing { ranges } => {
                let ranges = ranges
                    .within(&limits)
                    .map_err(|error| SourceFailure::unexpected(MISSING, &error.to_string()))?;
                for &range in ranges {
                    if destination.round_out(range) != range {
                        return Err(SourceFailure::unexpected(MISSING, &range));
                    }
                    missing = missing.saturating_add(range.len());
                    earlier.clear_range(range);
                    match unsent.add_missing(&shared.ram, destination, range, &mut known) {
                        // Continue to the end of the list, where the destination expects an answer.
                        Err(error) if MemoryLost::is_in(&error) => lost = Some(error),
                        added => added?,
                    }
                }
            }
            ToSource::MissingEnd { pages } if pages == missing => {
                return lost.map_or(Ok(()), |error| Err(error.into()));
            }
            other => return Err(SourceFailure::unexpected(MISSING, &other)),
        }
    }
}
