//! Offers the guest to a destination that does not know it yet.

use std::sync::atomic::Ordering;
use std::time::Instant;

use hikkoshi_wire::{MAX_WARNINGS, OfferedGuest, ToDestination, ToSource};

use crate::source::error::SourceFailure;
use crate::source::session::connector::{Connected, Connector, DISCARD_TIMEOUT, with_host_pages};

/// Connects, offers the guest, and opens the other links once the destination
/// has accepted it.
pub(crate) fn offer(
    connector: &Connector<'_>,
    guest: OfferedGuest,
    keeps_frames: bool,
) -> Result<Connected, SourceFailure> {
    let shared = connector.shared;
    let options = &shared.options;
    let links = options.links.max(1);
    let doing = "offering the guest to the destination";
    let (stream, mut reader, mut control) = connector.control()?;
    control.set_progress_timeout(Some(options.peer_timeout));
    let disks = u16::try_from(guest.disks.copied().count()).unwrap_or(u16::MAX);
    let offer = ToDestination::Offer {
        guest: Box::new(guest),
        mode: options.mode,
        may_postcopy: options.may_postcopy(),
        background_links: links,
        keeps_frames,
    };
    control
        .control(&offer)
        .map_err(SourceFailure::link(doing))?;
    reader.set_deadline(Some(Instant::now() + DISCARD_TIMEOUT));
    let mut warnings = 0;
    let host_pages = loop {
        match reader.control().map_err(SourceFailure::link(doing))? {
            ToSource::Warning { what } if warnings < MAX_WARNINGS => {
                warnings += 1;
                shared.observer.notice(&what);
            }
            ToSource::Accept {
                host_pages,
                marks_holes,
            } => {
                shared.marks_holes.store(marks_holes, Ordering::Relaxed);
                break host_pages;
            }
            ToSource::Refuse { reason } => return Err(SourceFailure::Refused(reason)),
            other => return Err(SourceFailure::unexpected(doing, &other)),
        }
    };
    let destination = with_host_pages(shared.ram.layout(), &host_pages)
        .ok_or_else(|| SourceFailure::unexpected(doing, &host_pages))?;

    let links = connector.others(links, options.may_postcopy(), keeps_frames, disks)?;
    Ok(Connected {
        control: (stream, reader, control),
        links,
        destination,
    })
}
