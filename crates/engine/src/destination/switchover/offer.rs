//! The source's offer: which guest it has, and whether it fits here.

use std::sync::Arc;
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_userfault::Userfault;
use hikkoshi_wire::{
    Capabilities, GuestDisks, Limits, MAX_LINKS, MigrationId, Mode, ToDestination, ToSource,
};

use crate::default_links::default_links;
use crate::destination::error::DestinationFailure;
use crate::destination::host::{DestinationHost, OfferedGuest};
use crate::destination::options::DestinationOptions;
use crate::destination::probe::ProbeRequest;
use crate::destination::receive_control::ReceiveControl;
use crate::destination::switchover::comparison::{Found, text};
use crate::guest::DestinationGuest;
use crate::obstacle::DestinationObstacle;
use hikkoshi_link::{AcceptedLink, LinkReader, LinkWriter, Stream, split};
use hikkoshi_linux::CancelFlag;
use hikkoshi_memory::RamWriter;

/// How long a source may take to make its offer.
const OFFER_TIMEOUT: Duration = Duration::from_secs(10);

/// An accepted guest, and the machine prepared for it.
#[derive(Debug)]
pub(crate) struct AcceptedOffer {
    pub(crate) stream: Arc<Stream>,
    pub(crate) reader: LinkReader,
    pub(crate) writer: LinkWriter,
    pub(crate) limits: Limits,
    pub(crate) stop: CancelFlag,
    /// The migration's id.
    pub(crate) id: MigrationId,
    /// What both sides support beyond the protocol's version.
    pub(crate) capabilities: Capabilities,
    pub(crate) mode: Mode,
    /// How many background links the source will open.
    pub(crate) background_links: u16,
    pub(crate) memory: RamWriter,
    /// The source opens a link for frames.
    pub(crate) keeps_frames: bool,
    /// The source opens links for so many disks, which are served.
    pub(crate) disks: u16,
    /// What post-copy needs, if it is possible.
    pub(crate) userfault: Option<(Arc<Userfault>, Vec<u64>)>,
}

/// Why no guest arrives from a source that has connected.
#[derive(Debug)]
pub(crate) enum NoGuest {
    /// Its guest was refused, or its link failed, for this reason.
    Refused(String),
    /// It only asked whether its guest could move here. The number of obstacles.
    Compared(usize),
    /// It measures the line.
    Probes(Box<ProbeRequest>),
}

impl From<String> for NoGuest {
    fn from(reason: String) -> Self {
        Self::Refused(reason)
    }
}

/// Receives the source's offer and prepares the machine for it. A reason to refuse it is sent to
/// the source, and returned here.
///
/// `over` is called before a refused source is notified: it may connect again at once.
pub(crate) fn receive_offer<'a>(
    host: &'a mut dyn DestinationHost,
    link: AcceptedLink,
    options: &DestinationOptions,
    watch: &ReceiveControl,
    over: impl Fn(),
) -> Result<(&'a mut dyn DestinationGuest, AcceptedOffer), NoGuest> {
    let stop = CancelFlag::new();
    let capabilities = link.capabilities;
    let id = link.id;
    link.stream
        .set_stall_timeout(options.stall_timeout)
        .map_err(text)?;
    let stream = Arc::new(link.stream);
    // No page is named before the machine is known.
    let (mut reader, mut writer) = split(&stream, Limits { pages: 0 }, &stop).map_err(text)?;
    // Until the commit, cancelling ends calls that block on the link.
    reader.set_stop(watch.cancel.clone());
    writer.set_stop(watch.cancel.clone());
    reader.set_deadline(Some(Instant::now() + OFFER_TIMEOUT));
    writer.set_progress_timeout(Some(options.peer_timeout));
    let mut refuse = |reason: String| {
        // Before the source receives it: it may connect again at once.
        over();
        let refusal = ToSource::Refuse {
            reason: reason.clone(),
        };
        if let Err(error) = writer.control(&refusal) {
            tracing::debug!(error = %Report::new(&error), "the source does not receive the refusal");
        }
        Err(NoGuest::Refused(reason))
    };
    let mut first = reader.control().map_err(text)?;
    if let ToDestination::Probe { background_links } = first {
        return Err(NoGuest::Probes(Box::new(ProbeRequest {
            stream,
            reader,
            writer,
            id,
            background_links,
        })));
    }
    let mut domain = None;
    if let ToDestination::Domain { domain: theirs } = first {
        domain = Some(theirs);
        first = reader.control().map_err(text)?;
    }
    let mut machine = None;
    if let ToDestination::Machine { machine: theirs } = first {
        machine = Some(theirs);
        first = reader.control().map_err(text)?;
    }
    let keeps_frames = first == ToDestination::KeepsFrames;
    if keeps_frames {
        first = reader.control().map_err(text)?;
    }
    let mut disks = GuestDisks::default();
    if let ToDestination::Disks { disks: theirs } = first {
        disks = theirs;
        first = reader.control().map_err(text)?;
    }
    let mut processors = None;
    if let ToDestination::Processors {
        processors: theirs,
        allow_mismatch,
    } = first
    {
        processors = Some((theirs, allow_mismatch));
        first = reader.control().map_err(text)?;
    }
    let (description, begin) = match first {
        ToDestination::Begin {
            description,
            mode,
            may_postcopy,
            background_links,
        } => (description, Some((mode, may_postcopy, background_links))),
        ToDestination::Compare { description } => (description, None),
        ToDestination::ResumeRequest { .. } => {
            return refuse(
                "it resumes a migration that is unknown here: start 'hikkoshi receive \
                 --resume' for it"
                    .into(),
            );
        }
        _ => {
            return Err("it does not begin with an offer of a guest"
                .to_owned()
                .into());
        }
    };
    let offered = OfferedGuest {
        description: &description,
        processors: processors.as_ref().map(|(processors, _)| processors),
        machine: machine.as_ref(),
        domain: domain.as_ref(),
    };
    let guest = match host.machine(offered) {
        Ok(guest) => guest,
        Err(error) => match begin {
            Some(_) => return refuse(text(error)),
            None => {
                over();
                let obstacle = DestinationObstacle {
                    reason: text(error),
                    postcopy_only: false,
                };
                let found = Found {
                    obstacles: vec![obstacle],
                    ..Found::default()
                };
                return Err(answer(reader, writer, &[], found));
            }
        },
    };
    let Some((mode, may_postcopy, background_links)) = begin else {
        // How many links it would open is not part of the question: as many as by default.
        let links = default_links();
        let machine = machine.as_ref();
        let found = Found::of(guest, &description, machine, processors, links, &disks);
        let host_pages = host_pages(guest);
        over();
        return Err(answer(reader, writer, &host_pages, found));
    };
    let limits = Limits {
        pages: guest.ram().layout().pages(),
    };
    reader.set_limits(limits);
    let ready = check_links(background_links)
        .and_then(|()| {
            let (machine, links) = (machine.as_ref(), background_links);
            let found = Found::of(guest, &description, machine, processors, links, &disks);
            found.refuse(may_postcopy)
        })
        .and_then(|warnings| Ok((make_ready(guest, may_postcopy, &disks)?, warnings)))
        .map_err(|reason| {
            if guest.has_ended() {
                return text(DestinationFailure::process_ended(guest));
            }
            reason
        });
    let ((memory, userfault), warnings) = match ready {
        Ok(ready) => ready,
        Err(reason) => return refuse(give_back(guest, reason)),
    };
    for what in warnings {
        watch.observer.notice(&what);
        if let Err(error) = writer.control(&ToSource::Warning { what }) {
            return Err(give_back(guest, text(&error)).into());
        }
    }
    let accept = ToSource::Accept {
        host_pages: host_pages(guest),
    };
    if let Err(error) = writer.control(&accept) {
        return Err(give_back(guest, text(&error)).into());
    }
    reader.set_stop(stop.clone());
    reader.set_deadline(None);
    let offer = AcceptedOffer {
        stream,
        reader,
        writer,
        limits,
        stop,
        id,
        capabilities,
        mode,
        background_links,
        memory,
        keeps_frames,
        disks: u16::try_from(disks.copied().count()).unwrap_or(u16::MAX),
        userfault,
    };
    Ok((guest, offer))
}

fn host_pages(guest: &dyn DestinationGuest) -> Vec<u64> {
    let ram = guest.ram();
    let host_pages = ram.layout().blocks().map(|(block, _)| block.host_page);
    host_pages.collect()
}

/// Answers a source that only asks.
fn answer(
    mut reader: LinkReader,
    mut writer: LinkWriter,
    host_pages: &[u64],
    Found {
        obstacles,
        warnings,
    }: Found,
) -> NoGuest {
    let found = obstacles.len();
    let compared = ToSource::Compared {
        host_pages: host_pages.to_vec(),
    };
    let obstacles = obstacles.into_iter().map(|obstacle| ToSource::Obstacle {
        reason: obstacle.reason,
        postcopy_only: obstacle.postcopy_only,
    });
    let warnings = warnings.into_iter().map(|what| ToSource::Warning { what });
    for message in obstacles.chain(warnings).chain([compared]) {
        if let Err(error) = writer.control(&message) {
            return text(error).into();
        }
    }
    // The answer arrives before the link ends.
    let _ = reader.control::<ToDestination>();
    NoGuest::Compared(found)
}

fn check_links(links: u16) -> Result<(), String> {
    if (1..=MAX_LINKS).contains(&links) {
        Ok(())
    } else {
        Err(format!(
            "the source requests {links} background links, and 1 to {MAX_LINKS} are possible"
        ))
    }
}

type Ready = (RamWriter, Option<(Arc<Userfault>, Vec<u64>)>);

fn make_ready(
    guest: &mut dyn DestinationGuest,
    may_postcopy: bool,
    disks: &GuestDisks,
) -> Result<Ready, String> {
    guest.prepare().map_err(text)?;
    if disks.copied().next().is_some() {
        guest.serve_disks(disks).map_err(text)?;
    }
    let userfault = if may_postcopy {
        Some(guest.take_userfault().map_err(text)?)
    } else {
        None
    };
    let mut memory = RamWriter::open(guest.ram()).map_err(text)?;
    // The first pre-copy round sends no holes, and pages not owed in post-copy hold zeros: the
    // memory must be empty. A machine that has started holds firmware, for instance.
    if may_postcopy {
        memory.drop_all().map_err(text)?;
    } else {
        memory.clear_all().map_err(text)?;
    }
    install_absent(guest, &mut memory);
    Ok((memory, userfault))
}

/// Absent pages are installed by userfaultfd if possible, and otherwise written.
fn install_absent(guest: &mut dyn DestinationGuest, memory: &mut RamWriter) {
    if !memory.can_install_absent() {
        return;
    }
    let installed = match guest.filling_userfault() {
        Ok(None) => return,
        Ok(Some(userfault)) => memory.install_absent(userfault).map_err(text),
        Err(error) => Err(text(error)),
    };
    if let Err(reason) = installed {
        tracing::warn!(%reason, "the guest's memory is filled more slowly, without a userfaultfd");
    }
}

/// Releases the machine; a failure is appended to `reason`.
fn give_back(guest: &mut dyn DestinationGuest, reason: String) -> String {
    match guest.release() {
        Ok(()) => reason,
        Err(error) => format!("{reason}; then: {}", Report::new(&error)),
    }
}
