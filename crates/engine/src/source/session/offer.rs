//! Offers the guest to a destination that does not know it yet.

use std::time::Instant;

use hikkoshi_wire::{Capabilities, MAX_WARNINGS, ToDestination, ToSource, Versions};

use crate::source::error::SourceFailure;
use crate::source::guest_offer::GuestOffer;
use crate::source::session::connector::{Connected, Connector, DISCARD_TIMEOUT, with_host_pages};

/// Connects, offers the guest, and opens the other links once the destination
/// has accepted it.
pub(crate) fn offer(
    connector: &Connector<'_>,
    guest: GuestOffer<'_>,
    keeps_frames: bool,
) -> Result<Connected, SourceFailure> {
    let shared = connector.shared;
    let options = &shared.options;
    let links = options.links.max(1);
    let doing = "offering the guest to the destination";
    let ((stream, mut reader, mut control), agreed) = connector.control()?;
    if agreed.version < Versions::TO_BEGIN {
        return Err(SourceFailure::OlderDestination);
    }
    control.set_progress_timeout(Some(options.peer_timeout));
    let mut messages = guest.first_messages(agreed.capabilities);
    let frames = keeps_frames && agreed.capabilities.contains(Capabilities::FRAMES);
    if keeps_frames && !frames {
        shared.observer.notice(
            "the destination is an older version: frames that arrive for the guest while it is \
             paused are lost",
        );
    }
    if frames {
        messages.push(ToDestination::KeepsFrames);
    }
    let disks = u16::try_from(guest.disks.copied().count()).unwrap_or(u16::MAX);
    messages.extend(guest.disks_message(agreed.capabilities)?);
    messages.push(ToDestination::Processors {
        processors: guest.processors,
        allow_mismatch: options.allow_cpu_mismatch,
    });
    messages.push(ToDestination::Begin {
        description: guest.description.clone(),
        mode: options.mode,
        may_postcopy: options.may_postcopy(),
        background_links: links,
    });
    for message in &messages {
        control
            .control(message)
            .map_err(SourceFailure::link(doing))?;
    }
    reader.set_deadline(Some(Instant::now() + DISCARD_TIMEOUT));
    let mut warnings = 0;
    let host_pages = loop {
        match reader.control().map_err(SourceFailure::link(doing))? {
            ToSource::Warning { what } if warnings < MAX_WARNINGS => {
                warnings += 1;
                shared.observer.notice(&what);
            }
            ToSource::Accept { host_pages } => break host_pages,
            ToSource::Refuse { reason } => return Err(SourceFailure::Refused(reason)),
            other => return Err(SourceFailure::unexpected(doing, &other)),
        }
    };
    let destination = with_host_pages(shared.ram.layout(), &host_pages)
        .ok_or_else(|| SourceFailure::unexpected(doing, &host_pages))?;

    let links = connector.others(links, options.may_postcopy(), frames, disks)?;
    Ok(Connected {
        control: (stream, reader, control),
        links,
        destination,
        capabilities: agreed.capabilities,
    })
}
