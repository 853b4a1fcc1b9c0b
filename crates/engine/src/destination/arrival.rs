//! A guest on its way in: filling, and the way to *ready*. How it ends is told
//! in `ending.rs`.
//!
//! The message sequence is drawn in `source/switchover.rs`. What a failure
//! means depends on how far things are: before *ready* was said the source
//! resumes its guest; between *ready* and *commit* nobody can tell; after
//! *commit* only this side may run the guest.

use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hikkoshi_pages::RamLayout;
use hikkoshi_wire::{Capabilities, DeviceStateDigest, ToDestination, ToSource};

use super::ending::parting;
use super::error::{DestinationFailure, ReceiveError};
use super::installer::Installer;
use super::offer::Offered;
use super::postcopy::{Faulting, Prepared};
use super::receiver::{self, Sink};
use super::session::{Event, Session};
use super::{DestinationOptions, ReceiveWatch, collapse};
use crate::guest::DestinationGuest;
use crate::link::Incoming;
use crate::source::Outcome;
use crate::stats::{Account, Counters, Phase, Tracker};

/// Takes the offered guest in.
pub(super) fn run(
    guest: &mut dyn DestinationGuest,
    offered: Offered,
    incoming: &Receiver<Incoming>,
    options: &DestinationOptions,
    watch: &ReceiveWatch,
) -> Result<Account, ReceiveError> {
    let begun = Instant::now();
    let mode = offered.mode;
    let pages = guest.ram().layout().pages();
    let threads = options.fault_threads_for(guest.describe().cpus);
    let layout = guest.ram().layout().clone();
    let opened = Arrival::open(offered, incoming, options, threads, watch, &layout);
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
    match arrival.await_commit() {
        Ok(()) => {}
        Err(Undecided::CalledOff(cause)) => return Err(arrival.withdraw(guest, cause)),
        Err(Undecided::Unknown(cause)) => {
            return Err(arrival.leave_paused(guest, cause, Outcome::Paused));
        }
    }
    let (downtime, requests) = match arrival.finish(guest, &switch) {
        Ok(done) => done,
        Err(cause) => return Err(arrival.leave_paused(guest, cause, Outcome::AtDestination)),
    };
    let total = begun.elapsed();
    if let Err(error) = arrival.let_go(guest) {
        watch
            .observer
            .notice(&format!("the guest runs here, but: {error}"));
    }
    let collapse = options
        .collapse
        .map(|rate| collapse::run(guest, rate, options.priority, watch));
    Ok(Account {
        mode,
        total_ms: total.as_secs_f64() * 1e3,
        downtime_ms: downtime.as_secs_f64() * 1e3,
        rounds: 0,
        postcopy: switch.postcopy,
        pages: arrival.sink.counters.pages(pages),
        bytes: arrival.sink.counters.bytes(),
        requests,
        collapse,
    })
}

/// What the source says when its guest is stopped and everything but the
/// commit was sent.
#[derive(Debug)]
pub(super) struct Switch {
    postcopy: bool,
    pub(super) running: bool,
    pub(super) at: Instant,
}

/// Why there was no commit.
#[derive(Debug)]
pub(super) enum Undecided {
    /// The source has said that it keeps its guest.
    CalledOff(DestinationFailure),
    /// Nobody can tell: a commit may have been on its way.
    Unknown(DestinationFailure),
}

#[derive(Debug)]
pub(super) struct Arrival<'a> {
    pub(super) watch: &'a ReceiveWatch,
    options: DestinationOptions,
    /// What the source understands.
    pub(super) capabilities: Capabilities,
    pub(super) session: Session,
    pub(super) sink: Arc<Sink>,
    /// The background links' receivers.
    pub(super) receivers: Vec<JoinHandle<()>>,
    /// What post-copy needs, until it begins.
    prepared: Option<Prepared>,
    /// What runs in post-copy.
    pub(super) faulting: Option<Faulting>,
}

impl<'a> Arrival<'a> {
    fn open(
        offered: Offered,
        incoming: &Receiver<Incoming>,
        options: &DestinationOptions,
        fault_threads: usize,
        watch: &'a ReceiveWatch,
        layout: &RamLayout,
    ) -> Result<Self, DestinationFailure> {
        let mut session = Session::start(
            offered.stream,
            offered.reader,
            offered.writer,
            offered.limits,
            offered.stop,
        )?;
        let urgent = offered.userfault.is_some();
        let background = offered.background_links;
        let links = session
            .await_links(incoming, background, urgent, &watch.cancel)
            .inspect_err(|cause| session.part(&parting(cause)))?;
        let prepared = match offered.userfault.zip(links.urgent) {
            None => None,
            Some(((userfault, hosts), urgent)) => Some(Prepared {
                installer: Installer::new(userfault, layout.clone(), &hosts, background)
                    .inspect_err(|cause| session.part(&parting(cause)))?,
                urgent,
                fault_threads,
            }),
        };
        let sink = Arc::new(Sink {
            memory: offered.memory,
            installer: OnceLock::new(),
            counters: Arc::new(Counters::default()),
            tracker: Arc::new(Tracker::default()),
            recorders: Mutex::default(),
        });
        sink.tracker.begin(Phase::Precopy, 1, layout.pages());
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
        })
    }

    /// Everything up to *ready*.
    fn approach(&mut self, guest: &mut dyn DestinationGuest) -> Result<Switch, DestinationFailure> {
        let (switch, state) = self.fill(guest)?;
        if switch.postcopy
            && let Some(prepared) = self.prepared.take()
        {
            let events = self.session.events();
            Faulting::start(
                &mut self.faulting,
                prepared,
                &self.sink,
                &events,
                &self.options,
            )?;
        }
        tracing::debug!(at = ?switch.at.elapsed(), "faults are answered");
        self.load(guest, state)?;
        tracing::debug!(at = ?switch.at.elapsed(), "device state loaded");
        self.check()?;
        if let Some(faulting) = &mut self.faulting {
            faulting.loaded();
            faulting.installer().be_patient();
        }
        self.session.say(&ToSource::Ready, "getting ready")?;
        Ok(switch)
    }

    /// Receives memory and device state while the guest runs at the source,
    /// until the source says that it is stopped.
    fn fill(
        &mut self,
        guest: &dyn DestinationGuest,
    ) -> Result<(Switch, Vec<u8>), DestinationFailure> {
        let doing = "receiving the guest";
        let mut digest = DeviceStateDigest::new();
        let mut state = Vec::new();
        loop {
            self.check()?;
            self.tell();
            let message = match self.session.next() {
                None => continue,
                Some(Event::Said(message)) => message,
                Some(Event::Failed(failure)) => return Err(failure),
                Some(other) => return Err(DestinationFailure::unexpected(doing, &other)),
            };
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
                    let owed = self.prepared.as_ref().map_or(0, |p| p.installer.left());
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
                    let switch = Switch {
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
            self.sink.memory.drop_stale(range)?;
            prepared.installer.owe(range);
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
                    thread::sleep(crate::link::TICK);
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
            None | Some(Event::AllReceived) => Ok(()),
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

    /// Pages that have not arrived.
    pub(super) fn left(&self) -> u64 {
        self.faulting
            .as_ref()
            .map_or(0, |faulting| faulting.installer().left())
    }

    pub(super) fn check(&self) -> Result<(), DestinationFailure> {
        if self.watch.cancel.is_cancelled() {
            Err(DestinationFailure::Cancelled)
        } else {
            Ok(())
        }
    }

    pub(super) fn tell(&self) {
        let bytes = self.sink.counters.bytes();
        self.sink.tracker.tell(
            &*self.watch.observer,
            bytes.precopy + bytes.urgent + bytes.background,
        );
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
