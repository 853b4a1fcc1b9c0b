//! An incoming migration up to *ready*: memory and device state are received. From *ready* on
//! `handover_driver/` drives it.
//!
//! The sequence of messages is drawn in `source/switchover/`. If anything fails here, the source
//! resumes its guest (`switchover/abort.rs`).

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;
use std::time::Instant;

use error_reporter::Report;
use hikkoshi_wire::{DeviceStateDigest, ToDestination, ToSource};

use crate::destination::context::ReceiveContext;
use crate::destination::error::{DestinationFailure, ReceiveError};
use crate::destination::handover_driver::links::{ActiveLinks, LinkState};
use crate::destination::handover_driver::run_to_end::finish_handover;
use crate::destination::handover_driver::{HandoverDriver, HandoverStart};
use crate::destination::last_message::last_message;
use crate::destination::network_frames::FrameReceiver;
use crate::destination::options::DestinationOptions;
use crate::destination::page_receiver;
use crate::destination::postcopy::installer::Installer;
use crate::destination::postcopy::missing_pages::MissingPages;
use crate::destination::postcopy::{ActivePostcopy, PreparedPostcopy};
use crate::destination::receive_control::ReceiveControl;
use crate::destination::session::{Channel, DestinationSessionEvent, Session};
use crate::destination::switchover::offer::AcceptedOffer;
use crate::destination::switchover::silence_timer::SilenceTimer;
use crate::disks::{DiskRelay, RelayStart};
use crate::guest::DestinationGuest;
use crate::network_frames::FrameDelivery;
use crate::report::{Account, Counters, Live, LiveStart, Phase};
use hikkoshi_handover::RecordedDestination;
use hikkoshi_handover::{DestinationEvent, DestinationRecord, DestinationStage, History};
use hikkoshi_link::{AcceptedLink, LinkReader};
use hikkoshi_memory::GuestRam;

/// Receives the guest that was offered by the source at `peer`.
pub(crate) fn run(
    guest: &mut dyn DestinationGuest,
    (offered, peer): (AcceptedOffer, String),
    incoming: &Receiver<AcceptedLink>,
    options: &DestinationOptions,
    watch: &ReceiveControl,
) -> Result<Account, ReceiveError> {
    let begun = Instant::now();
    let ram = guest.ram();
    let threads = options.fault_threads_for(guest.describe().cpus);
    let mut record = DestinationRecord {
        id: offered.links.id,
        stage: DestinationStage::Receiving,
        mode: offered.mode,
        postcopy: false,
        running: true,
        started: false,
        links: offered.links.background,
        history: History::begin(),
    };
    let live = Arc::new(Live::new(LiveStart {
        id: record.id,
        stage: (&record).into(),
        resumed: false,
        mode: record.mode,
        peer,
        layout: ram.layout(),
    }));
    watch.observer.begin(&live);
    let delivery = if offered.links.frames {
        guest.deliver_frames()
    } else {
        Ok(None)
    };
    let delivery = delivery.unwrap_or_else(|error| {
        watch.observer.notice(&format!(
            "frames that arrive for the guest while it is paused are lost: {}",
            Report::new(&error)
        ));
        None
    });
    let memory = (&ram, live);
    let offered = (offered, threads);
    let opened =
        IncomingMigration::open(guest, offered, incoming, options, watch, memory, delivery);
    let mut migration = match opened {
        Ok(migration) => migration,
        Err(cause) => return Err(give_back(guest, cause)),
    };
    let switch = match migration.prepare_switchover(guest) {
        Ok(switch) => switch,
        Err(cause) => {
            let cause = migration.explain(cause);
            return Err(migration.withdraw(guest, cause));
        }
    };
    record.postcopy = switch.postcopy;
    record.running = switch.running;
    let start = HandoverStart {
        machine: RecordedDestination::new(
            record,
            migration.context.live.stages_from(&watch.journal),
        ),
        ram,
        context: migration.context,
        postcopy: migration.postcopy,
        links: LinkState::Up(Box::new(ActiveLinks::new(
            migration.session,
            migration.receivers,
        ))),
        source_paused: Some(switch.at),
        frames: migration.frames,
    };
    let driver = HandoverDriver::new(start, watch, options, incoming);
    finish_handover(driver, guest, begun, DestinationEvent::DeviceStateLoaded)
}

/// What the source sends when its guest is paused and everything but the *commit* has been sent.
#[derive(Debug)]
pub(crate) struct SwitchMessage {
    postcopy: bool,
    pub(crate) running: bool,
    pub(crate) at: Instant,
}

#[derive(Debug)]
pub(crate) struct IncomingMigration<'a> {
    pub(crate) watch: &'a ReceiveControl,
    options: DestinationOptions,
    pub(crate) session: Session,
    pub(crate) context: Arc<ReceiveContext>,
    /// The background links' receivers.
    pub(crate) receivers: Vec<JoinHandle<()>>,
    /// What post-copy needs, until it begins.
    pub(super) prepared: Option<PreparedPostcopy>,
    /// The urgent link, from the time when faults are handled until pages may arrive there.
    urgent: Option<LinkReader>,
    /// What handles faults: from the last rounds on.
    pub(crate) postcopy: Option<ActivePostcopy>,
    /// What delivers frames that arrived for the guest at the source.
    frames: Option<FrameReceiver>,
    /// What carries the bytes of the disks' copies, until they are complete.
    disks: Vec<DiskRelay>,
    /// What was received since the source paused the guest, or last had to wait.
    received: Received,
    pub(super) silence: SilenceTimer,
}

/// What was received since the last *DiscardEnd*: since the source has paused the guest, if no
/// other follows.
#[derive(Debug, Default)]
struct Received {
    /// When the first message came.
    first: Option<Instant>,
    /// When the last stale pages had been dropped.
    dropped: Option<Instant>,
}

impl Received {
    /// A message has come.
    fn begin(&mut self) {
        self.first.get_or_insert_with(Instant::now);
    }
}

impl<'a> IncomingMigration<'a> {
    fn open(
        guest: &mut dyn DestinationGuest,
        (offered, fault_threads): (AcceptedOffer, usize),
        incoming: &Receiver<AcceptedLink>,
        options: &DestinationOptions,
        watch: &'a ReceiveControl,
        (ram, live): (&Arc<GuestRam>, Arc<Live>),
        delivery: Option<Box<dyn FrameDelivery>>,
    ) -> Result<Self, DestinationFailure> {
        let mut session = Session::start(offered.control, &mut Channel::new())?;
        let background = offered.links.background;
        let links = session
            .await_links(
                incoming,
                &offered.links,
                options.stall_timeout,
                &watch.cancel,
            )
            .inspect_err(|cause| session.send_last(&last_message(cause)))?;
        let prepared = match offered.userfault.zip(links.urgent) {
            None => None,
            Some(((userfault, hosts), urgent)) => Some(PreparedPostcopy {
                installer: Installer::new(userfault, Arc::clone(ram), &hosts, background)
                    .inspect_err(|cause| session.send_last(&last_message(cause)))?,
                urgent,
                fault_threads,
            }),
        };
        let frames = links
            .frames
            .map(|ends| FrameReceiver::start(ends, delivery));
        let frames = frames.transpose().map_err(DestinationFailure::Thread)?;
        let context = ReceiveContext::new(Some(offered.memory), live);
        // The source does not say which round it is in, or how many pages that has.
        context.tracker.begin(Phase::Precopy, 0, 0);
        let disks = links.disks.into_iter().enumerate();
        let disks = disks
            .map(|(number, (stream, ends))| {
                let relay = DiskRelay::start(RelayStart {
                    name: format!("dst-disk-{number}"),
                    connection: guest.connect_disk(number)?,
                    stream,
                    ends,
                    priority: options.priority,
                    stop: session.stop(),
                    counters: Arc::clone(&context.counters),
                    watch: None,
                });
                relay.map_err(DestinationFailure::Thread)
            })
            .collect::<Result<_, _>>()
            .inspect_err(|cause| session.send_last(&last_message(cause)))?;
        let receivers = links.background.into_iter().enumerate();
        let receivers = receivers
            .map(|(number, ends)| {
                let (context, events) = (Arc::clone(&context), session.events());
                page_receiver::start_background(number, context, ends, events, options.priority)
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            watch,
            options: *options,
            session,
            context,
            receivers,
            prepared,
            urgent: None,
            postcopy: None,
            frames,
            disks,
            received: Received::default(),
            silence: SilenceTimer::new(options.peer_timeout, options.stall_timeout),
        })
    }

    /// Everything up to *ready*.
    fn prepare_switchover(
        &mut self,
        guest: &mut dyn DestinationGuest,
    ) -> Result<SwitchMessage, DestinationFailure> {
        let (switch, state) = self.fill(guest)?;
        if !self.disks.is_empty() {
            // The machine must not share them with its server when it loads the guest.
            guest.end_disks()?;
            self.disks.clear();
            self.context.steps.done("disks complete");
        }
        if switch.postcopy {
            self.begin_postcopy()?;
        } else {
            self.end_installing();
        }
        self.context.steps.done("faults are answered");
        self.load(guest, state)?;
        self.context.steps.done("device state loaded");
        self.check()?;
        if let Some(postcopy) = &mut self.postcopy {
            postcopy.set_device_state_loaded();
            postcopy
                .installer()
                .copier
                .memory_pressure()
                .wait_for_memory();
        }
        Ok(switch)
    }

    /// Handles faults from now on, if post-copy may follow: before the source pauses its guest,
    /// because it takes time. Every pre-copied page is here.
    fn register(&mut self) -> Result<(), DestinationFailure> {
        let Some(prepared) = self.prepared.take() else {
            return Ok(());
        };
        self.end_installing();
        let (reader, writer) = prepared.urgent;
        self.urgent = Some(reader);
        ActivePostcopy::start(
            &mut self.postcopy,
            (prepared.installer, prepared.fault_threads),
            Some(writer),
            &self.context,
            &self.session.events(),
            &self.options,
        )
    }

    /// Receives missing pages from now on. They are known, and the source answers requests.
    fn begin_postcopy(&mut self) -> Result<(), DestinationFailure> {
        self.register()?;
        if let Some(postcopy) = &self.postcopy {
            postcopy.begin(&self.context)?;
        }
        if let Some(reader) = self.urgent.take() {
            let (context, events) = (Arc::clone(&self.context), self.session.events());
            let receiver = page_receiver::start_urgent(context, reader, events, &self.options)?;
            self.receivers.push(receiver);
        }
        Ok(())
    }

    /// What the source still has to send, if post-copy may follow.
    pub(super) fn missing(&self) -> Option<&MissingPages> {
        let active = self
            .postcopy
            .as_ref()
            .map(|postcopy| &postcopy.installer().missing);
        active.or(self
            .prepared
            .as_ref()
            .map(|prepared| &prepared.installer.missing))
    }

    /// Every pre-copied page is here.
    pub(crate) fn end_installing(&self) {
        if let Some(memory) = &self.context.memory {
            memory.end_installing();
        }
    }

    /// Receives memory and device state while the guest runs at the source, until the source
    /// reports that it is paused.
    fn fill(
        &mut self,
        guest: &mut dyn DestinationGuest,
    ) -> Result<(SwitchMessage, Vec<u8>), DestinationFailure> {
        let doing = "receiving the guest";
        let mut digest = DeviceStateDigest::new();
        let mut state = Vec::new();
        loop {
            self.check()?;
            let message = match self.session.next() {
                None => {
                    self.check_silence(doing)?;
                    if guest.has_ended() {
                        return Err(DestinationFailure::process_ended(guest));
                    }
                    guest.check_receiving()?;
                    continue;
                }
                Some(DestinationSessionEvent::Message(message)) => message,
                Some(DestinationSessionEvent::Failed(failure)) => return Err(failure),
                Some(other) => return Err(DestinationFailure::unexpected(doing, &other)),
            };
            self.silence.reset();
            match message {
                ToDestination::Discard { ranges } => {
                    self.received.begin();
                    self.discard(guest, &ranges)?;
                    self.received.dropped = Some(Instant::now());
                }
                ToDestination::DiscardEnd => {
                    // The source has not paused the guest yet.
                    self.received = Received::default();
                    self.register()?;
                    self.session
                        .send(&ToSource::Discarded, "dropping stale pages")?;
                }
                ToDestination::DeviceStateChunk { bytes } => {
                    self.received.begin();
                    // Also limits the total size.
                    digest.update(&bytes).map_err(device_state)?;
                    Counters::add(
                        &self.context.counters.device_state_bytes,
                        bytes.len() as u64,
                    );
                    state.extend_from_slice(&bytes);
                }
                ToDestination::Switch {
                    device_bytes,
                    device_crc32c,
                    owed_pages,
                    postcopy,
                    running,
                } => {
                    digest
                        .verify(device_bytes, device_crc32c)
                        .map_err(device_state)?;
                    let missing = self.missing();
                    let owed = missing.map_or(0, MissingPages::count);
                    // Without post-copy, pages that are still owed would never arrive, and nobody
                    // would unregister memory.
                    let possible = match missing {
                        Some(_) => postcopy || (owed == 0 && self.postcopy.is_none()),
                        None => !postcopy,
                    };
                    if owed != owed_pages || !possible {
                        let text = format!(
                            "a switch with {owed_pages} pages owed (here: {owed}), post-copy: \
                             {postcopy}"
                        );
                        return Err(DestinationFailure::unexpected(doing, &text));
                    }
                    let switch = SwitchMessage {
                        postcopy,
                        running,
                        at: Instant::now(),
                    };
                    self.begin_steps(&switch);
                    return Ok((switch, state));
                }
                ToDestination::Cancel { reason } => {
                    return Err(DestinationFailure::CancelledBySource(reason));
                }
                other => return Err(DestinationFailure::unexpected(doing, &other)),
            }
        }
    }

    /// Begins the account of the switchover, unless the owner of the guest had paused it.
    fn begin_steps(&self, switch: &SwitchMessage) {
        if !switch.running {
            return;
        }
        let (steps, received) = (&self.context.steps, &self.received);
        steps.begin_with(received.first.unwrap_or(switch.at), switch.at);
        if let Some(at) = received.dropped {
            steps.done_at("stale pages dropped", at);
        }
        steps.done_at("everything received", switch.at);
    }

    /// Fails if the source has been silent for too long.
    pub(super) fn check_silence(&mut self, doing: &'static str) -> Result<(), DestinationFailure> {
        let waiting = self.disks.iter().map(DiskRelay::waiting);
        self.silence.check(&self.context.counters, waiting, doing)
    }

    pub(crate) fn check(&self) -> Result<(), DestinationFailure> {
        if self.watch.cancel.is_cancelled() {
            Err(DestinationFailure::Cancelled)
        } else {
            Ok(())
        }
    }
}

fn device_state(error: impl std::error::Error) -> DestinationFailure {
    DestinationFailure::DeviceState(Report::new(error).to_string())
}

/// Ends a migration that could not begin.
fn give_back(guest: &mut dyn DestinationGuest, cause: DestinationFailure) -> ReceiveError {
    if let Err(error) = guest.release() {
        tracing::warn!(error = %Report::new(&error), "giving the machine back");
    }
    ReceiveError::at_source(cause)
}
