//! An incoming migration up to *ready*: memory and device state are received. From *ready* on
//! `handover_driver/` drives it.
//!
//! The sequence of messages is drawn in `source/switchover/`. If anything fails here, the source
//! resumes its guest (`switchover/abort.rs`).

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_wire::{Capabilities, DeviceStateDigest, ToDestination, ToSource};

use crate::destination::error::{DestinationFailure, ReceiveError};
use crate::destination::frames::FrameReceiver;
use crate::destination::handover_driver::links::{ActiveLinks, LinkState};
use crate::destination::handover_driver::{HandoverDriver, HandoverStart};
use crate::destination::last_message::last_message;
use crate::destination::postcopy::huge::collapse;
use crate::destination::postcopy::installer::Installer;
use crate::destination::postcopy::{ActivePostcopy, PreparedPostcopy};
use crate::destination::receiver;
use crate::destination::receiver::PageSink;
use crate::destination::session::{Channel, Event, Session};
use crate::destination::switchover::offer::AcceptedOffer;
use crate::destination::{DestinationOptions, ReceiveWatch};
use crate::frames::FrameDelivery;
use crate::guest::DestinationGuest;
use crate::report::{Account, Counters, GuestState, Phase};
use hikkoshi_handover::Outcome;
use hikkoshi_handover::RecordedDestination;
use hikkoshi_handover::{DestinationEvent, DestinationRecord, DestinationStage};
use hikkoshi_link::{Incoming, LinkError};
use hikkoshi_memory::GuestRam;

/// Receives the offered guest.
pub(crate) fn run(
    guest: &mut dyn DestinationGuest,
    offered: AcceptedOffer,
    incoming: &Receiver<Incoming>,
    options: &DestinationOptions,
    watch: &ReceiveWatch,
) -> Result<Account, ReceiveError> {
    let begun = Instant::now();
    let ram = guest.ram();
    let threads = options.fault_threads_for(guest.describe().cpus);
    let mut record = DestinationRecord {
        id: offered.id,
        stage: DestinationStage::Receiving,
        mode: offered.mode,
        postcopy: false,
        running: true,
        started: false,
        links: offered.background_links,
    };
    let delivery = if offered.keeps_frames {
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
    let opened =
        IncomingMigration::open(offered, incoming, options, threads, watch, &ram, delivery);
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
        machine: RecordedDestination::new(record, Arc::clone(&watch.journal)),
        capabilities: migration.capabilities,
        ram,
        sink: migration.sink,
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

/// Resumes a migration that another engine began.
pub(crate) fn resume(
    guest: &mut dyn DestinationGuest,
    record: DestinationRecord,
    incoming: &Receiver<Incoming>,
    options: &DestinationOptions,
    watch: &ReceiveWatch,
) -> Result<Account, ReceiveError> {
    let begun = Instant::now();
    let stage = record.stage;
    let fail = |cause| ReceiveError {
        cause,
        outcome: match stage {
            DestinationStage::Ready => Outcome::Paused,
            DestinationStage::Running | DestinationStage::Complete => Outcome::AtDestination,
            DestinationStage::Receiving | DestinationStage::Declined => Outcome::AtSource,
        },
    };
    let ram = guest.ram();
    let postcopy = record.postcopy;
    let start = HandoverStart {
        machine: RecordedDestination::new(record, Arc::clone(&watch.journal)),
        // Its next connection says what it supports.
        capabilities: Capabilities::NONE,
        ram,
        sink: PageSink::new(None),
        postcopy: None,
        links: LinkState::Down(Channel::new()),
        source_paused: None,
        frames: None,
    };
    let mut driver = HandoverDriver::new(start, watch, options, incoming);
    let lives = matches!(stage, DestinationStage::Ready | DestinationStage::Running);
    if lives && guest.has_ended() {
        return finish_handover(driver, guest, begun, DestinationEvent::GuestFailed);
    }
    if lives && postcopy {
        driver.adopt_userfault(guest).map_err(fail)?;
    }
    if stage == DestinationStage::Complete {
        // No fault needs an answer any more: pages that are absent hold zeros. The source may
        // connect much later, or never.
        driver.release_guest(guest);
    }
    finish_handover(driver, guest, begun, DestinationEvent::Restarted)
}

/// From *ready* on, or from where another engine was.
fn finish_handover(
    driver: HandoverDriver<'_>,
    guest: &mut dyn DestinationGuest,
    begun: Instant,
    first: DestinationEvent,
) -> Result<Account, ReceiveError> {
    let (watch, options, sink) = (driver.watch, driver.options, Arc::clone(&driver.sink));
    let (mode, postcopy) = (
        driver.machine.record().mode,
        driver.machine.record().postcopy,
    );
    let running = driver.machine.record().running;
    let pages = driver.ram.layout().pages();
    let result = driver.run(guest, first)?;
    let total = begun.elapsed();
    let collapse = options
        .collapse
        .filter(|_| !result.shut_down)
        .map(|rate| collapse::run(guest, rate, options.priority, watch));
    Ok(Account {
        mode,
        guest_state: GuestState::new(running, result.shut_down),
        total_ms: total.as_secs_f64() * 1e3,
        downtime_ms: result.downtime.as_secs_f64() * 1e3,
        switchover: sink.steps.all(),
        rounds: 0,
        postcopy,
        pages: sink.counters.pages(pages),
        bytes: sink.counters.bytes(),
        drains: None,
        frames: result.frames,
        requests: result.requests,
        collapse,
        source_private_bytes: None,
    })
}

/// What the source sends when its guest is paused and everything but the *commit* has been sent.
#[derive(Debug)]
pub(crate) struct SwitchRequest {
    postcopy: bool,
    pub(crate) running: bool,
    pub(crate) at: Instant,
}

#[derive(Debug)]
pub(crate) struct IncomingMigration<'a> {
    pub(crate) watch: &'a ReceiveWatch,
    options: DestinationOptions,
    /// What the source supports.
    pub(crate) capabilities: Capabilities,
    pub(crate) session: Session,
    pub(crate) sink: Arc<PageSink>,
    /// The background links' receivers.
    pub(crate) receivers: Vec<JoinHandle<()>>,
    /// What post-copy needs, until it begins.
    prepared: Option<PreparedPostcopy>,
    /// What runs during post-copy.
    pub(crate) postcopy: Option<ActivePostcopy>,
    /// What delivers frames that arrived for the guest at the source.
    frames: Option<FrameReceiver>,
    silence: SilenceTimer,
}

impl<'a> IncomingMigration<'a> {
    fn open(
        offered: AcceptedOffer,
        incoming: &Receiver<Incoming>,
        options: &DestinationOptions,
        fault_threads: usize,
        watch: &'a ReceiveWatch,
        ram: &Arc<GuestRam>,
        delivery: Option<Box<dyn FrameDelivery>>,
    ) -> Result<Self, DestinationFailure> {
        let mut session = Session::start(
            offered.stream,
            offered.reader,
            offered.writer,
            offered.limits,
            offered.stop,
            &mut Channel::new(),
        )?;
        let urgent = offered.userfault.is_some();
        let background = offered.background_links;
        let links = session
            .await_links(
                incoming,
                offered.id,
                background,
                urgent,
                offered.keeps_frames,
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
        let sink = PageSink::new(Some(offered.memory));
        sink.tracker.begin(Phase::Precopy, 1, ram.layout().pages());
        let receivers = links.background.into_iter().enumerate();
        let receivers = receivers
            .map(|(number, ends)| {
                let (sink, events) = (Arc::clone(&sink), session.events());
                receiver::start_background(number, sink, ends, events, options.priority)
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            watch,
            options: *options,
            capabilities: offered.capabilities,
            session,
            sink,
            receivers,
            prepared,
            postcopy: None,
            frames,
            silence: SilenceTimer::new(options.peer_timeout),
        })
    }

    /// Everything up to *ready*.
    fn prepare_switchover(
        &mut self,
        guest: &mut dyn DestinationGuest,
    ) -> Result<SwitchRequest, DestinationFailure> {
        let (switch, state) = self.fill(guest)?;
        self.end_installing();
        if switch.postcopy
            && let Some(prepared) = self.prepared.take()
        {
            let events = self.session.events();
            let (reader, writer) = prepared.urgent;
            ActivePostcopy::start(
                &mut self.postcopy,
                (prepared.installer, prepared.fault_threads),
                Some(writer),
                &self.sink,
                &events,
                &self.options,
            )?;
            let sink = Arc::clone(&self.sink);
            self.receivers
                .push(receiver::start_urgent(sink, reader, events, &self.options)?);
        }
        self.sink.steps.begin(switch.at);
        self.sink.steps.done("faults are answered");
        self.load(guest, state)?;
        self.sink.steps.done("device state loaded");
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

    /// Every pre-copied page is here.
    pub(crate) fn end_installing(&self) {
        if let Some(memory) = &self.sink.memory {
            memory.end_installing();
        }
    }

    /// Receives memory and device state while the guest runs at the source, until the source
    /// reports that it is paused.
    fn fill(
        &mut self,
        guest: &dyn DestinationGuest,
    ) -> Result<(SwitchRequest, Vec<u8>), DestinationFailure> {
        let doing = "receiving the guest";
        let mut digest = DeviceStateDigest::new();
        let mut state = Vec::new();
        loop {
            self.check()?;
            self.sink.report_progress(&*self.watch.observer);
            let message = match self.session.next() {
                None => {
                    self.silence.check(&self.sink, doing)?;
                    continue;
                }
                Some(Event::Message(message)) => message,
                Some(Event::Failed(failure)) => return Err(failure),
                Some(other) => return Err(DestinationFailure::unexpected(doing, &other)),
            };
            self.silence.reset();
            match message {
                ToDestination::Discard { ranges } => self.discard(guest, &ranges)?,
                ToDestination::DiscardEnd => {
                    self.session
                        .send(&ToSource::Discarded, "dropping stale pages")?;
                }
                ToDestination::DeviceStateChunk { bytes } => {
                    // Also limits the total size.
                    digest.update(&bytes).map_err(device_state)?;
                    Counters::add(&self.sink.counters.device_state_bytes, bytes.len() as u64);
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
                    let owed = self
                        .prepared
                        .as_ref()
                        .map_or(0, |p| p.installer.missing.count());
                    // Without post-copy, pages that are still owed would never arrive.
                    let possible = match &self.prepared {
                        Some(_) => postcopy || owed == 0,
                        None => !postcopy,
                    };
                    if owed != owed_pages || !possible {
                        let text = format!(
                            "a switch with {owed_pages} pages owed (here: {owed}), post-copy: \
                             {postcopy}"
                        );
                        return Err(DestinationFailure::unexpected(doing, &text));
                    }
                    let switch = SwitchRequest {
                        postcopy,
                        running,
                        at: Instant::now(),
                    };
                    return Ok((switch, state));
                }
                ToDestination::Cancel { reason } => {
                    return Err(DestinationFailure::CancelledBySource(reason));
                }
                other => return Err(DestinationFailure::unexpected(doing, &other)),
            }
        }
    }

    /// Drops pages that the guest has overwritten at the source since they were sent; they are sent
    /// again after the switchover.
    fn discard(
        &mut self,
        guest: &dyn DestinationGuest,
        ranges: &hikkoshi_wire::PageRanges,
    ) -> Result<(), DestinationFailure> {
        let doing = "dropping stale pages";
        let Some(prepared) = &self.prepared else {
            return Err(DestinationFailure::unexpected(doing, ranges));
        };
        let ram = guest.ram();
        let limits = self.session.limits();
        let ranges = ranges
            .within(&limits)
            .map_err(|error| DestinationFailure::unexpected(doing, &error.to_string()))?;
        for &range in ranges {
            // The source knows the host page sizes; a hole in half a huge page would drop nothing.
            if ram.layout().round_out(range) != range {
                return Err(DestinationFailure::unexpected(doing, &range));
            }
        }
        if let Some(memory) = &self.sink.memory {
            memory.drop_stale(ranges)?;
        }
        for &range in ranges {
            prepared.installer.missing.add(range);
        }
        Ok(())
    }

    /// Loads the device state. Loading touches memory, and so waits for pages that never arrive if
    /// a link fails meanwhile: this thread watches the links.
    fn load(
        &mut self,
        guest: &mut dyn DestinationGuest,
        state: Vec<u8>,
    ) -> Result<(), DestinationFailure> {
        let returned = self.session.events();
        thread::scope(|scope| {
            let loader = thread::Builder::new()
                .name("dst-load".into())
                .spawn_scoped(scope, || {
                    let loaded = guest.load_device_state(state);
                    // If the queue is full, the main thread is awake.
                    let _ = returned.try_send(Event::GuestCallReturned);
                    loaded
                })
                .map_err(DestinationFailure::Thread)?;
            let mut failure = None;
            while !loader.is_finished() {
                if failure.is_none() {
                    failure = self.watch_load().err();
                    if failure.is_some() {
                        // The guest will not run here. Releasing its memory lets every waiting
                        // thread continue, the loading thread included.
                        self.release_memory();
                    }
                } else {
                    thread::sleep(hikkoshi_link::TICK);
                }
            }
            let loaded = loader.join().map_err(|_| {
                DestinationFailure::DeviceState("the loading thread panicked".into())
            })?;
            match failure {
                Some(failure) => Err(failure),
                None => Ok(loaded?),
            }
        })
    }

    /// Handles one event while the device state is loaded.
    fn watch_load(&mut self) -> Result<(), DestinationFailure> {
        self.check()?;
        match self.session.next_within(Duration::from_millis(1)) {
            None | Some(Event::AllReceived | Event::GuestCallReturned) => {
                self.silence.check(&self.sink, "loading the device state")
            }
            Some(Event::Failed(failure)) => Err(failure),
            Some(Event::Message(ToDestination::Cancel { reason })) => {
                Err(DestinationFailure::CancelledBySource(reason))
            }
            Some(other) => Err(DestinationFailure::unexpected(
                "loading the device state",
                &other,
            )),
        }
    }

    pub(crate) fn check(&self) -> Result<(), DestinationFailure> {
        if self.watch.cancel.is_cancelled() {
            Err(DestinationFailure::Cancelled)
        } else {
            Ok(())
        }
    }
}

/// How long the source has been silent. Before *ready* the destination owes it nothing, and gives
/// up after a time limit.
#[derive(Debug)]
struct SilenceTimer {
    limit: Duration,
    at: Instant,
    received: u64,
}

impl SilenceTimer {
    fn new(limit: Duration) -> Self {
        Self {
            limit,
            at: Instant::now(),
            received: 0,
        }
    }

    fn reset(&mut self) {
        self.at = Instant::now();
    }

    /// Also counts what has arrived on the other links.
    fn check(&mut self, sink: &PageSink, doing: &'static str) -> Result<(), DestinationFailure> {
        let received = sink.counters.received();
        if received != self.received {
            self.received = received;
            self.reset();
        }
        if self.at.elapsed() > self.limit {
            return Err(DestinationFailure::link(doing)(LinkError::TooSlow));
        }
        Ok(())
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
    ReceiveError {
        cause,
        outcome: Outcome::AtSource,
    }
}
