//! A guest on its way in: filling, and the way to *ready*. From there on it is
//! `stay.rs`'s.
//!
//! The message sequence is drawn in `source/switchover/`. Whatever fails here,
//! the source resumes its guest (`ending.rs`).

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hikkoshi_wire::{Capabilities, DeviceStateDigest, ToDestination, ToSource};

use crate::destination::error::{DestinationFailure, ReceiveError};
use crate::destination::handover::abort::parting;
use crate::destination::handover::{ActiveLinks, HandoverDriver, Link, State};
use crate::destination::postcopy::huge::collapse;
use crate::destination::postcopy::installer::Installer;
use crate::destination::postcopy::{ActivePostcopy, PreparedPostcopy};
use crate::destination::receiver;
use crate::destination::receiver::PageSink;
use crate::destination::session::{Channel, Event, Session};
use crate::destination::switchover::offer::AcceptedOffer;
use crate::destination::{DestinationOptions, ReceiveWatch};
use crate::guest::DestinationGuest;
use crate::report::{Account, Counters, GuestState, Phase};
use crate::retry_budget::RetryBudget;
use hikkoshi_handover::Outcome;
use hikkoshi_handover::RecordedDestination;
use hikkoshi_handover::{DestinationEvent, DestinationRecord, DestinationStage};
use hikkoshi_link::{Incoming, LinkError};
use hikkoshi_memory::RamFiles;

/// Takes the offered guest in.
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
    let opened = IncomingMigration::open(offered, incoming, options, threads, watch, &ram);
    let mut arrival = match opened {
        Ok(arrival) => arrival,
        Err(cause) => return Err(give_back(guest, cause)),
    };
    let switch = match arrival.approach(guest) {
        Ok(switch) => switch,
        Err(cause) => {
            let cause = arrival.explain(cause);
            return Err(arrival.withdraw(guest, cause));
        }
    };
    record.postcopy = switch.postcopy;
    record.running = switch.running;
    let stay = HandoverDriver {
        watch,
        options: *options,
        incoming,
        machine: RecordedDestination::new(record, Arc::clone(&watch.journal)),
        capabilities: arrival.capabilities,
        ram,
        sink: arrival.sink,
        faulting: arrival.faulting,
        link: Link::Up(Box::new(ActiveLinks::new(
            arrival.session,
            arrival.receivers,
        ))),
        stopped: Some(switch.at),
        retry_budget: RetryBudget::new(options.retry_for.of(switch.postcopy), Instant::now()),
        state: State::default(),
    };
    stay_on(stay, guest, begun, DestinationEvent::DeviceStateLoaded)
}

/// Goes on with a guest that another engine took in.
pub(crate) fn take_up(
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
    let mut stay = HandoverDriver {
        watch,
        options: *options,
        incoming,
        machine: RecordedDestination::new(record, Arc::clone(&watch.journal)),
        // What it understands is told by its next connection.
        capabilities: Capabilities::NONE,
        ram,
        sink: PageSink::new(None),
        faulting: None,
        link: Link::Down(Channel::new()),
        stopped: None,
        retry_budget: RetryBudget::new(options.retry_for.of(postcopy), Instant::now()),
        state: State::default(),
    };
    let lives = matches!(stage, DestinationStage::Ready | DestinationStage::Running);
    if lives && guest.has_ended() {
        return stay_on(stay, guest, begun, DestinationEvent::GuestFailed);
    }
    if lives && postcopy {
        stay.adopt(guest).map_err(fail)?;
    }
    if stage == DestinationStage::Complete {
        // Nobody answers faults any more, and none is needed: what is not here
        // holds zeros. The source may be long in coming, or never come.
        stay.let_go(guest);
    }
    stay_on(stay, guest, begun, DestinationEvent::Restarted)
}

/// From *ready* on, or from where another engine was.
fn stay_on(
    stay: HandoverDriver<'_>,
    guest: &mut dyn DestinationGuest,
    begun: Instant,
    first: DestinationEvent,
) -> Result<Account, ReceiveError> {
    let (watch, options, sink) = (stay.watch, stay.options, Arc::clone(&stay.sink));
    let (mode, postcopy) = (stay.machine.record().mode, stay.machine.record().postcopy);
    let running = stay.machine.record().running;
    let pages = stay.ram.layout().pages();
    let stayed = stay.go(guest, first)?;
    let total = begun.elapsed();
    let collapse = options
        .collapse
        .filter(|_| !stayed.shut_down)
        .map(|rate| collapse::run(guest, rate, options.priority, watch));
    Ok(Account {
        mode,
        guest_state: GuestState::new(running, stayed.shut_down),
        total_ms: total.as_secs_f64() * 1e3,
        downtime_ms: stayed.downtime.as_secs_f64() * 1e3,
        rounds: 0,
        postcopy,
        pages: sink.counters.pages(pages),
        bytes: sink.counters.bytes(),
        drains: None,
        requests: stayed.requests,
        collapse,
    })
}

/// What the source says when its guest is stopped and everything but the
/// commit was sent.
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
    /// What the source understands.
    pub(crate) capabilities: Capabilities,
    pub(crate) session: Session,
    pub(crate) sink: Arc<PageSink>,
    /// The background links' receivers.
    pub(crate) receivers: Vec<JoinHandle<()>>,
    /// What post-copy needs, until it begins.
    prepared: Option<PreparedPostcopy>,
    /// What runs in post-copy.
    pub(crate) faulting: Option<ActivePostcopy>,
    heard: SilenceTimer,
}

impl<'a> IncomingMigration<'a> {
    fn open(
        offered: AcceptedOffer,
        incoming: &Receiver<Incoming>,
        options: &DestinationOptions,
        fault_threads: usize,
        watch: &'a ReceiveWatch,
        ram: &Arc<RamFiles>,
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
                options.stall_timeout,
                &watch.cancel,
            )
            .inspect_err(|cause| session.part(&parting(cause)))?;
        let prepared = match offered.userfault.zip(links.urgent) {
            None => None,
            Some(((userfault, hosts), urgent)) => Some(PreparedPostcopy {
                installer: Installer::new(userfault, Arc::clone(ram), &hosts, background)
                    .inspect_err(|cause| session.part(&parting(cause)))?,
                urgent,
                fault_threads,
            }),
        };
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
            faulting: None,
            heard: SilenceTimer::new(options.patience),
        })
    }

    /// Everything up to *ready*.
    fn approach(
        &mut self,
        guest: &mut dyn DestinationGuest,
    ) -> Result<SwitchRequest, DestinationFailure> {
        let (switch, state) = self.fill(guest)?;
        if switch.postcopy
            && let Some(prepared) = self.prepared.take()
        {
            let events = self.session.events();
            let (reader, writer) = prepared.urgent;
            ActivePostcopy::start(
                &mut self.faulting,
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
        tracing::debug!(at = ?switch.at.elapsed(), "faults are answered");
        self.load(guest, state)?;
        tracing::debug!(at = ?switch.at.elapsed(), "device state loaded");
        self.check()?;
        if let Some(faulting) = &mut self.faulting {
            faulting.loaded();
            faulting.installer().copier.memory_pressure().be_patient();
        }
        Ok(switch)
    }

    /// Receives memory and device state while the guest runs at the source,
    /// until the source says that it is stopped.
    fn fill(
        &mut self,
        guest: &dyn DestinationGuest,
    ) -> Result<(SwitchRequest, Vec<u8>), DestinationFailure> {
        let doing = "receiving the guest";
        let mut digest = DeviceStateDigest::new();
        let mut state = Vec::new();
        loop {
            self.check()?;
            self.tell();
            let message = match self.session.next() {
                None => {
                    self.heard.check(&self.sink, doing)?;
                    continue;
                }
                Some(Event::Said(message)) => message,
                Some(Event::Failed(failure)) => return Err(failure),
                Some(other) => return Err(DestinationFailure::unexpected(doing, &other)),
            };
            self.heard.something();
            match message {
                ToDestination::Discard { ranges } => self.discard(guest, &ranges)?,
                ToDestination::DiscardEnd => {
                    self.session
                        .say(&ToSource::Discarded, "dropping stale pages")?;
                }
                ToDestination::DeviceStateChunk { bytes } => {
                    // Bounds the sum, too.
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
                    // Without post-copy whatever is owed would never come.
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
                    return Err(DestinationFailure::CalledOff(reason));
                }
                other => return Err(DestinationFailure::unexpected(doing, &other)),
            }
        }
    }

    /// Drops pages that the source has overwritten since it sent them; they
    /// come again after the switch.
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
            // The source knows the host page sizes; a hole in half a huge
            // page would drop nothing.
            if ram.layout().round_out(range) != range {
                return Err(DestinationFailure::unexpected(doing, &range));
            }
            if let Some(memory) = &self.sink.memory {
                memory.drop_stale(range)?;
            }
            prepared.installer.missing.add(range);
        }
        Ok(())
    }

    /// Loads the device state. It touches memory, and waits for pages that
    /// may never come if a link fails meanwhile: so this thread watches.
    fn load(
        &mut self,
        guest: &mut dyn DestinationGuest,
        state: Vec<u8>,
    ) -> Result<(), DestinationFailure> {
        thread::scope(|scope| {
            let loader = thread::Builder::new()
                .name("dst-load".into())
                .spawn_scoped(scope, || guest.load_device_state(state))
                .map_err(DestinationFailure::Thread)?;
            let mut failure = None;
            while !loader.is_finished() {
                if failure.is_none() {
                    failure = self.watch_load().err();
                    if failure.is_some() {
                        // The guest will not run here. With its memory let go,
                        // whatever waits for a page goes on, and the loader
                        // comes back.
                        self.let_memory_go();
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

    /// One look at what happens while the device state is loaded.
    fn watch_load(&mut self) -> Result<(), DestinationFailure> {
        self.check()?;
        match self.session.next_within(Duration::from_millis(1)) {
            None | Some(Event::AllReceived) => {
                self.heard.check(&self.sink, "loading the device state")
            }
            Some(Event::Failed(failure)) => Err(failure),
            Some(Event::Said(ToDestination::Cancel { reason })) => {
                Err(DestinationFailure::CalledOff(reason))
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

    pub(crate) fn tell(&self) {
        let bytes = self.sink.counters.bytes();
        self.sink.tracker.tell(
            &*self.watch.observer,
            bytes.precopy + bytes.urgent + bytes.background,
        );
    }
}

/// When anything has last come from the source. Before *ready* a destination
/// owes it nothing, and waits for it only so long.
#[derive(Debug)]
struct SilenceTimer {
    patience: Duration,
    at: Instant,
    received: u64,
}

impl SilenceTimer {
    fn new(patience: Duration) -> Self {
        Self {
            patience,
            at: Instant::now(),
            received: 0,
        }
    }

    fn something(&mut self) {
        self.at = Instant::now();
    }

    /// Looks at what has come on the other links.
    fn check(&mut self, sink: &PageSink, doing: &'static str) -> Result<(), DestinationFailure> {
        let received = sink.counters.received();
        if received != self.received {
            self.received = received;
            self.something();
        }
        if self.at.elapsed() > self.patience {
            return Err(DestinationFailure::link(doing)(LinkError::TooSlow));
        }
        Ok(())
    }
}

fn device_state(error: impl std::fmt::Display) -> DestinationFailure {
    DestinationFailure::DeviceState(error.to_string())
}

/// Ends an arrival that never began.
fn give_back(guest: &mut dyn DestinationGuest, cause: DestinationFailure) -> ReceiveError {
    if let Err(error) = guest.release() {
        tracing::warn!(%error, "giving the machine back");
    }
    ReceiveError {
        cause,
        outcome: Outcome::AtSource,
    }
}
