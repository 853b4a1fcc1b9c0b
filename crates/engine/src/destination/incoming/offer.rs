//! The source's offer: which guest it has, and whether it fits here.

use std::sync::Arc;
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_userfault::Userfault;
use hikkoshi_wire::{Limits, MAX_LINKS, Mode, OfferedGuest, ToDestination, ToSource};

use crate::default_links::default_links;
use crate::destination::error::DestinationFailure;
use crate::destination::host::DestinationHost;
use crate::destination::incoming::comparison::{Comparison, text};
use crate::destination::options::DestinationOptions;
use crate::destination::probe::ProbeRequest;
use crate::destination::receive_control::ReceiveControl;
use crate::destination::session::{ControlLink, ExpectedLinks};
use crate::guest::DestinationGuest;
use hikkoshi_link::{AcceptedLink, LinkError, split};
use hikkoshi_linux::CancelFlag;
use hikkoshi_memory::RamWriter;

/// How long a source may take to make its offer.
const OFFER_TIMEOUT: Duration = Duration::from_secs(10);

/// An accepted guest, and the VM prepared for it.
#[derive(Debug)]
pub(crate) struct AcceptedOffer {
    pub(crate) control: ControlLink,
    /// The links that the source will open.
    pub(crate) links: ExpectedLinks,
    pub(crate) mode: Mode,
    pub(crate) memory: RamWriter,
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

/// Receives the source's offer and prepares the VM for it. A reason to refuse it is sent to
/// the source, and returned here.
///
/// `over` is called before a refused source is notified: it may connect again at once.
pub(crate) fn receive_offer<'a>(
    host: &'a mut dyn DestinationHost,
    link: AcceptedLink,
    options: &DestinationOptions,
    control: &ReceiveControl,
    over: impl Fn(),
) -> Result<(&'a mut dyn DestinationGuest, AcceptedOffer), NoGuest> {
    let id = link.id;
    let mut source = OfferingSource::connected(link, options, control, &over)?;
    match source.link.reader.control().map_err(text)? {
        ToDestination::Offer {
            guest,
            mode,
            may_postcopy,
            background_links,
            keeps_frames,
        } => {
            let postcopy = may_postcopy;
            let links = ExpectedLinks {
                id,
                background: background_links,
                urgent: may_postcopy,
                frames: keeps_frames,
                disks: u16::try_from(guest.disks.copied().count()).unwrap_or(u16::MAX),
            };
            let vm = match host.vm(&guest) {
                Ok(vm) => vm,
                Err(error) => return Err(source.refuse(text(error))),
            };
            let pages = vm.ram().layout().pages();
            source.link.set_limits(Limits { pages });
            let ready = check_links(background_links)
                .and_then(|()| Comparison::new(vm, &guest, background_links).refuse(postcopy))
                .and_then(|warnings| Ok((make_ready(vm, &guest, postcopy)?, warnings)))
                .map_err(|reason| {
                    if vm.has_ended() {
                        return text(DestinationFailure::process_ended(vm));
                    }
                    reason
                });
            let ((memory, userfault), warnings) = match ready {
                Ok(ready) => ready,
                Err(reason) => return Err(source.refuse(give_back(vm, reason))),
            };
            let accept = ToSource::Accept {
                host_pages: host_pages(vm),
                marks_holes: memory.keeps_any(),
            };
            if let Err(error) = source.accept(&warnings, &accept, control) {
                return Err(give_back(vm, text(&error)).into());
            }
            let offer = AcceptedOffer {
                control: source.link,
                links,
                mode,
                memory,
                userfault,
            };
            Ok((vm, offer))
        }
        ToDestination::Compare { guest } => {
            let (host_pages, found) = match host.vm(&guest) {
                // How many links it would open is not part of the question: as many as by default.
                Ok(vm) => (host_pages(vm), Comparison::new(vm, &guest, default_links())),
                Err(error) => (Vec::new(), Comparison::obstacle(text(error))),
            };
            over();
            Err(source.answer(host_pages, found))
        }
        ToDestination::Probe { background_links } => Err(NoGuest::Probes(Box::new(ProbeRequest {
            stream: source.link.stream,
            reader: source.link.reader,
            writer: source.link.writer,
            id,
            background_links,
        }))),
        ToDestination::ResumeRequest { .. } => Err(source.refuse(
            "it resumes a migration that is unknown here: start 'hikkoshi receive --resume' for it"
                .into(),
        )),
        _ => Err("it does not begin with an offer of a guest"
            .to_owned()
            .into()),
    }
}

/// A source that has connected, and that has not been answered yet.
struct OfferingSource<'a> {
    link: ControlLink,
    /// To be called before the source is refused.
    over: &'a dyn Fn(),
}

impl<'a> OfferingSource<'a> {
    fn connected(
        link: AcceptedLink,
        options: &DestinationOptions,
        control: &ReceiveControl,
        over: &'a dyn Fn(),
    ) -> Result<Self, String> {
        link.stream
            .set_stall_timeout(options.stall_timeout)
            .map_err(text)?;
        let (stream, stop) = (Arc::new(link.stream), CancelFlag::new());
        // No page is named before the VM is known.
        let limits = Limits { pages: 0 };
        let (mut reader, mut writer) = split(&stream, limits, &stop).map_err(text)?;
        // Until the commit, cancelling ends calls that block on the link.
        reader.set_stop(control.cancel.clone());
        writer.set_stop(control.cancel.clone());
        reader.set_deadline(Some(Instant::now() + OFFER_TIMEOUT));
        writer.set_progress_timeout(Some(options.peer_timeout));
        let link = ControlLink {
            stream,
            reader,
            writer,
            limits,
            stop,
        };
        Ok(Self { link, over })
    }

    fn refuse(mut self, reason: String) -> NoGuest {
        // Before the source receives it: it may connect again at once.
        (self.over)();
        let refusal = ToSource::Refuse {
            reason: reason.clone(),
        };
        if let Err(error) = self.link.writer.control(&refusal) {
            tracing::debug!(error = %Report::new(&error), "the source does not receive the refusal");
        }
        NoGuest::Refused(reason)
    }

    fn accept(
        &mut self,
        warnings: &[String],
        accept: &ToSource,
        control: &ReceiveControl,
    ) -> Result<(), LinkError> {
        let ControlLink {
            reader,
            writer,
            stop,
            ..
        } = &mut self.link;
        for what in warnings {
            control.observer.notice(what);
            let what = what.clone();
            writer.control(&ToSource::Warning { what })?;
        }
        writer.control(accept)?;
        reader.set_stop(stop.clone());
        reader.set_deadline(None);
        Ok(())
    }

    /// Answers a source that only asks.
    fn answer(self, host_pages: Vec<u64>, found: Comparison) -> NoGuest {
        let ControlLink {
            mut reader,
            mut writer,
            ..
        } = self.link;
        let count = found.obstacles.len();
        let obstacles = found.obstacles.into_iter();
        let obstacles = obstacles.map(|obstacle| ToSource::Obstacle {
            reason: obstacle.reason,
            postcopy_only: obstacle.postcopy_only,
        });
        let warnings = found.warnings.into_iter();
        let warnings = warnings.map(|what| ToSource::Warning { what });
        let compared = ToSource::Compared { host_pages };
        for message in obstacles.chain(warnings).chain([compared]) {
            if let Err(error) = writer.control(&message) {
                return text(error).into();
            }
        }
        // The answer arrives before the link ends.
        let _ = reader.control::<ToDestination>();
        NoGuest::Compared(count)
    }
}

fn host_pages(guest: &dyn DestinationGuest) -> Vec<u64> {
    let ram = guest.ram();
    let host_pages = ram.layout().blocks().map(|(block, _)| block.host_page);
    host_pages.collect()
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
    vm: &mut dyn DestinationGuest,
    guest: &OfferedGuest,
    may_postcopy: bool,
) -> Result<Ready, String> {
    vm.prepare().map_err(text)?;
    if guest.disks.copied().next().is_some() {
        let disks = vm.copied_disks().map_err(text)?;
        disks.serve(&guest.disks).map_err(text)?;
    }
    let userfault = if may_postcopy {
        Some(vm.take_userfault().map_err(text)?)
    } else {
        None
    };
    let mut memory = RamWriter::open(vm.ram()).map_err(text)?;
    // The first pre-copy round sends no holes unless it is asked to mark them, and pages not owed
    // in post-copy hold zeros: the memory must be empty. A VM that has started holds firmware, for
    // instance.
    if may_postcopy {
        memory.drop_all().map_err(text)?;
    } else {
        memory.clear_all().map_err(text)?;
    }
    install_absent(vm, &mut memory);
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

/// Releases the VM; a failure is appended to `reason`.
fn give_back(guest: &mut dyn DestinationGuest, reason: String) -> String {
    match guest.release() {
        Ok(()) => reason,
        Err(error) => format!("{reason}; then: {}", Report::new(&error)),
    }
}
