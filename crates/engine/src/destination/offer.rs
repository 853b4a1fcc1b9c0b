//! The source's offer: what guest it has, and whether it fits here.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hikkoshi_faults::Userfault;
use hikkoshi_wire::{Limits, MAX_LINKS, ToDestination, ToSource};

use super::memory::Memory;
use crate::cancel::Cancel;
use crate::guest::DestinationGuest;
use crate::link::{Incoming, LinkReader, LinkWriter, Stream, split};
use crate::stats::Mode;

/// How long a source may take to make its offer.
const OFFER_TIMEOUT: Duration = Duration::from_secs(10);

/// An accepted guest, and the machine made ready for it.
#[derive(Debug)]
pub(super) struct Offered {
    pub(super) stream: Arc<Stream>,
    pub(super) reader: LinkReader,
    pub(super) writer: LinkWriter,
    pub(super) limits: Limits,
    pub(super) stop: Cancel,
    pub(super) mode: Mode,
    /// How many background links the source will open.
    pub(super) background_links: u16,
    pub(super) memory: Memory,
    /// Where post-copy is possible: what is needed for it.
    pub(super) userfault: Option<(Arc<Userfault>, Vec<u64>)>,
}

/// Hears what the source offers, and readies the machine for it. Whatever
/// speaks against it is told to the source, and given here.
pub(super) fn hear(
    guest: &mut dyn DestinationGuest,
    link: Incoming,
    cancel: &Cancel,
) -> Result<Offered, String> {
    let limits = Limits {
        pages: guest.ram().layout().pages(),
    };
    let stop = Cancel::new();
    let stream = Arc::new(link.stream);
    let (mut reader, mut writer) = split(&stream, limits, &stop).map_err(text)?;
    // Until the commit, cancelling ends whatever is blocked on the link.
    reader.set_stop(cancel.clone());
    writer.set_stop(cancel.clone());
    reader.set_deadline(Some(Instant::now() + OFFER_TIMEOUT));
    let ToDestination::Begin {
        description,
        mode,
        may_postcopy,
        background_links,
    } = reader.control().map_err(text)?
    else {
        return Err("it does not begin with an offer of a guest".into());
    };
    let ready = description
        .compatible_with(guest.describe())
        .map_err(text)
        .and_then(|()| check_links(background_links))
        .and_then(|()| make_ready(guest, may_postcopy));
    let (memory, userfault) = match ready {
        Ok(ready) => ready,
        Err(reason) => {
            let refusal = ToSource::Refuse {
                reason: reason.clone(),
            };
            if let Err(error) = writer.control(&refusal) {
                tracing::debug!(%error, "the source does not hear the refusal");
            }
            return Err(give_back(guest, reason));
        }
    };
    let ram = guest.ram();
    let host_pages = ram.layout().blocks().map(|(block, _)| block.host_page);
    let accept = ToSource::Accept {
        host_pages: host_pages.collect(),
    };
    if let Err(error) = writer.control(&accept) {
        return Err(give_back(guest, error.to_string()));
    }
    reader.set_stop(stop.clone());
    reader.set_deadline(None);
    Ok(Offered {
        stream,
        reader,
        writer,
        limits,
        stop,
        mode: mode.into(),
        background_links,
        memory,
        userfault,
    })
}

fn check_links(links: u16) -> Result<(), String> {
    if (1..=MAX_LINKS).contains(&links) {
        Ok(())
    } else {
        Err(format!(
            "the source wants {links} background links, and 1 to {MAX_LINKS} are possible"
        ))
    }
}

type Ready = (Memory, Option<(Arc<Userfault>, Vec<u64>)>);

fn make_ready(guest: &mut dyn DestinationGuest, may_postcopy: bool) -> Result<Ready, String> {
    guest.prepare().map_err(text)?;
    let userfault = if may_postcopy {
        Some(guest.take_userfault().map_err(text)?)
    } else {
        None
    };
    let memory = Memory::open(guest.ram()).map_err(text)?;
    // The first pre-copy round sends no holes, and what is not owed in
    // post-copy holds zeros: nothing may be left here.
    memory.drop_all().map_err(text)?;
    Ok((memory, userfault))
}

/// Gives the machine back; what goes wrong is added to `reason`.
fn give_back(guest: &mut dyn DestinationGuest, reason: String) -> String {
    match guest.release() {
        Ok(()) => reason,
        Err(error) => format!("{reason}; then: {error}"),
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
