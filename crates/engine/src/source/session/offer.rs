//! Offers the guest to a destination that does not know it yet.

use std::time::Instant;

use hikkoshi_wire::{
    Capabilities, GuestDescription, Machine, Processors, ToDestination, ToSource, Versions,
};

use crate::source::error::SourceFailure;
use crate::source::session::connector::{Connected, Connector, DISCARD_TIMEOUT, with_host_pages};

/// Connects, offers the guest, and opens the other links once the destination
/// has accepted it.
pub(crate) fn offer(
    connector: &Connector<'_>,
    description: &GuestDescription,
    processors: Processors,
    machine: Machine,
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
    let of_machine = (agreed.capabilities.contains(Capabilities::MACHINE)
        && machine != Machine::default())
    .then_some(ToDestination::Machine { machine });
    let frames = keeps_frames && agreed.capabilities.contains(Capabilities::FRAMES);
    if keeps_frames && !frames {
        shared.observer.notice(
            "the destination is an older version: frames that arrive for the guest while it is \
             paused are lost",
        );
    }
    let of_frames = frames.then_some(ToDestination::KeepsFrames);
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
    for message in of_machine.iter().chain(&of_frames).chain(&offer) {
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
            "the destination's processors differ from the guest's: {what}"
        ));
        answer = reader.control().map_err(SourceFailure::link(doing))?;
    }
    let host_pages = match answer {
        ToSource::Accept { host_pages } => host_pages,
        ToSource::Refuse { reason } => return Err(SourceFailure::Refused(reason)),
        other => return Err(SourceFailure::unexpected(doing, &other)),
    };
    let destination = with_host_pages(shared.ram.layout(), &host_pages)
        .ok_or_else(|| SourceFailure::unexpected(doing, &host_pages))?;

    let links = connector.others(links, options.may_postcopy(), frames)?;
    Ok(Connected {
        control: (stream, reader, control),
        links,
        destination,
        capabilities: agreed.capabilities,
    })
}
