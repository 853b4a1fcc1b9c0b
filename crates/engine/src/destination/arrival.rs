//! A guest on its way in: filling, switchover, post-copy.
//!
//! The message sequence is drawn in `source/switchover.rs`. What a failure
//! means depends on how far things are: before *ready* was said the source
//! resumes its guest; between *ready* and *commit* nobody can tell; after
//! *commit* only this side may run the guest.

use std::sync::mpsc::Receiver;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use hikkoshi_faults::Stop;
use hikkoshi_pages::RamLayout;
use hikkoshi_wire::{DeviceStateDigest, ToDestination, ToSource};

use super::error::{DestinationFailure, ReceiveError};
use super::installer::Installer;
use super::offer::Offered;
use super::receiver::{self, Sink};
use super::session::{Event, LISTENING, Session};
use super::{DestinationOptions, ReceiveWatch, faults};
use crate::guest::DestinationGuest;
use crate::link::{Incoming, LinkReader, LinkWriter};
use crate::source::Outcome;
use crate::stats::{Account, Counters, LatencySummary, Phase, Requests, Tracker};

/// How long the source may take to say goodbye.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long to listen for the reason when a link has failed.
const REASON_TIMEOUT: Duration = Duration::from_millis(500);

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
    let mut arrival = match Arrival::open(offered, incoming, options, watch, guest.ram().layout()) {
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
    if let Err(error) = arrival.let_go(guest) {
        watch
            .observer
            .notice(&format!("the guest runs here, but: {error}"));
    }
    Ok(Account {
        mode,
        total_ms: begun.elapsed().as_secs_f64() * 1e3,
        downtime_ms: downtime.as_secs_f64() * 1e3,
        rounds: 0,
        postcopy: switch.postcopy,
        pages: arrival.sink.counters.pages(pages),
        bytes: arrival.sink.counters.bytes(),
        requests: Requests {
            request_latency_us: requests,
            ..Requests::default()
        },
        collapse: None,
    })
}

/// What the source says when its guest is stopped and everything but the
/// commit was sent.
#[derive(Debug)]
struct Switch {
    postcopy: bool,
    running: bool,
    at: Instant,
}

/// Why there was no commit.
#[derive(Debug)]
enum Undecided {
    /// The source has said that it keeps its guest.
    CalledOff(DestinationFailure),
    /// Nobody can tell: a commit may have been on its way.
    Unknown(DestinationFailure),
}

#[derive(Debug)]
struct Arrival<'a> {
    watch: &'a ReceiveWatch,
    options: DestinationOptions,
    session: Session,
    sink: Arc<Sink>,
    /// What post-copy needs, until it begins.
    prepared: Option<Prepared>,
    /// What runs in post-copy.
    faulting: Option<Faulting>,
}

#[derive(Debug)]
struct Prepared {
    installer: Installer,
    urgent: (LinkReader, LinkWriter),
}

#[derive(Debug)]
struct Faulting {
    installer: Arc<Installer>,
    stop: Stop,
    fault_thread: Option<thread::JoinHandle<()>>,
}

impl<'a> Arrival<'a> {
    fn open(
        offered: Offered,
        incoming: &Receiver<Incoming>,
        options: &DestinationOptions,
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
        let links = session
            .await_links(incoming, offered.background_links, urgent, &watch.cancel)
            .inspect_err(|cause| session.part(&parting(cause)))?;
        let sink = Arc::new(Sink {
            memory: offered.memory,
            installer: OnceLock::new(),
            counters: Arc::new(Counters::default()),
            tracker: Arc::new(Tracker::default()),
        });
        sink.tracker.begin(Phase::Precopy, 1, layout.pages());
        for (number, (reader, acks)) in links.background.into_iter().enumerate() {
            let (sink, events) = (Arc::clone(&sink), session.events());
            receiver::start_background(number, sink, (reader, acks), events, options.priority)?;
        }
        let prepared = offered
            .userfault
            .zip(links.urgent)
            .map(|((userfault, hosts), urgent)| Prepared {
                installer: Installer::new(userfault, layout.clone(), &hosts),
                urgent,
            });
        Ok(Self {
            watch,
            options: *options,
            session,
            sink,
            prepared,
            faulting: None,
        })
    }

    /// Everything up to *ready*.
    fn approach(&mut self, guest: &mut dyn DestinationGuest) -> Result<Switch, DestinationFailure> {
        let (switch, state) = self.fill(guest)?;
        if switch.postcopy {
            self.start_faulting()?;
        }
        tracing::debug!(at = ?switch.at.elapsed(), "faults are answered");
        self.load(guest, state)?;
        tracing::debug!(at = ?switch.at.elapsed(), "device state loaded");
        self.check()?;
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

    /// From here on an access to a missing page faults, and is answered.
    fn start_faulting(&mut self) -> Result<(), DestinationFailure> {
        let Some(prepared) = self.prepared.take() else {
            return Ok(());
        };
        let stop = Stop::new().map_err(DestinationFailure::Thread)?;
        let installer = Arc::new(prepared.installer);
        let left = installer.left();
        self.sink.tracker.begin(Phase::Postcopy, 0, left);
        // Set once, here: receivers install from now on instead of writing.
        let _ = self.sink.installer.set(Arc::clone(&installer));
        let events = self.session.events();
        let (reader, writer) = prepared.urgent;
        self.faulting = Some(Faulting {
            installer: Arc::clone(&installer),
            stop: stop.clone(),
            fault_thread: None,
        });
        // A failure half-way is undone through `faulting`.
        installer.start()?;
        receiver::start_urgent(
            Arc::clone(&self.sink),
            reader,
            events.clone(),
            self.options.priority,
        )?;
        let thread = faults::start(installer, writer, stop, events)?;
        if let Some(faulting) = &mut self.faulting {
            faulting.fault_thread = Some(thread);
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
                        self.stop_faulting();
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

    /// Waits for the source's verdict.
    fn await_commit(&mut self) -> Result<(), Undecided> {
        let doing = "waiting for the source to hand the guest over";
        let mut asked = false;
        let mut failed = None;
        loop {
            if self.watch.cancel.is_cancelled() && !asked {
                // Only the source can still call it off.
                asked = true;
                let reason = "cancelled at the destination".to_owned();
                if let Err(error) = self.session.say(&ToSource::Cancel { reason }, doing) {
                    tracing::debug!(%error, "the source does not hear the cancellation");
                }
            }
            match self.session.next() {
                None | Some(Event::AllReceived) => {}
                Some(Event::Said(ToDestination::Commit)) => {
                    self.session.committed();
                    return Ok(());
                }
                Some(Event::Said(ToDestination::Cancel { reason })) => {
                    return Err(Undecided::CalledOff(DestinationFailure::CalledOff(reason)));
                }
                Some(Event::Said(other)) => {
                    let failure = DestinationFailure::unexpected(doing, &other);
                    return Err(Undecided::Unknown(failure));
                }
                // Another link's end may be seen before what the source said
                // last on the control link, and that decides.
                Some(Event::Failed(failure)) => match &failure {
                    DestinationFailure::Link { doing, cause }
                        if *doing != LISTENING && cause.is_end() =>
                    {
                        failed.get_or_insert(failure);
                    }
                    _ => return Err(Undecided::Unknown(failed.unwrap_or(failure))),
                },
            }
        }
    }

    /// Runs the guest and stays until its last page is here.
    fn finish(
        &mut self,
        guest: &mut dyn DestinationGuest,
        switch: &Switch,
    ) -> Result<(Duration, LatencySummary), DestinationFailure> {
        let resumed = guest.resume(switch.running)?;
        self.watch.observer.notice(if switch.running {
            "the guest runs here now"
        } else {
            "the guest is here now, paused as it was"
        });
        let downtime = if switch.running {
            resumed.saturating_duration_since(switch.at)
        } else {
            Duration::ZERO
        };
        if let Err(error) = self.session.say(&ToSource::Resumed, "running the guest") {
            // With every page here the guest needs the source no more.
            if self.left() > 0 {
                return Err(error);
            }
            self.watch.observer.notice(&format!(
                "the guest runs here and everything of it is here, but the source could not be \
                 told so ({error}): see that it is not resumed there"
            ));
        }
        self.await_pages()?;
        let requests = self
            .faulting
            .as_ref()
            .map(|faulting| faulting.installer.latency())
            .unwrap_or_default();
        self.goodbye(&requests);
        Ok((downtime, requests))
    }

    fn await_pages(&mut self) -> Result<(), DestinationFailure> {
        let mut told = false;
        while self.left() > 0 {
            self.tell();
            if self.watch.cancel.is_cancelled() && !told {
                told = true;
                self.watch.observer.notice(
                    "the guest runs here already and pages of it are still at the source: not \
                     stopping before they are here",
                );
            }
            match self.session.next() {
                None | Some(Event::AllReceived) => {}
                Some(Event::Failed(failure)) if self.left() > 0 => return Err(failure),
                // A link that ends after the last page is no loss.
                Some(Event::Failed(_)) => {}
                Some(Event::Said(other)) => {
                    return Err(DestinationFailure::unexpected("receiving pages", &other));
                }
            }
        }
        Ok(())
    }

    /// Tells the source that everything is here, and waits until it has heard:
    /// a closing socket can overtake the last message on it.
    fn goodbye(&mut self, requests: &LatencySummary) {
        let complete = ToSource::Complete {
            requests: requests.into(),
        };
        self.session.part(&complete);
        let deadline = Instant::now() + GOODBYE_TIMEOUT;
        while Instant::now() < deadline {
            match self.session.next() {
                None | Some(Event::AllReceived) => {}
                Some(_) => return,
            }
        }
    }

    /// Pages that have not arrived.
    fn left(&self) -> u64 {
        self.faulting
            .as_ref()
            .map_or(0, |faulting| faulting.installer.left())
    }

    /// Looks for what is behind a link's end: a source that calls it off says
    /// why and closes its links, and a link's end may be seen first.
    fn explain(&mut self, failure: DestinationFailure) -> DestinationFailure {
        match &failure {
            DestinationFailure::Link { doing, cause } if *doing != LISTENING && cause.is_end() => {}
            _ => return failure,
        }
        let deadline = Instant::now() + REASON_TIMEOUT;
        while let Some(left) = deadline.checked_duration_since(Instant::now()) {
            match self.session.next_within(left) {
                Some(Event::Said(ToDestination::Cancel { reason })) => {
                    return DestinationFailure::CalledOff(reason);
                }
                // Nothing more will be said.
                Some(Event::Failed(DestinationFailure::Link { doing, .. }))
                    if doing == LISTENING =>
                {
                    break;
                }
                _ => {}
            }
        }
        failure
    }

    fn check(&self) -> Result<(), DestinationFailure> {
        if self.watch.cancel.is_cancelled() {
            Err(DestinationFailure::Cancelled)
        } else {
            Ok(())
        }
    }

    fn tell(&self) {
        let bytes = self.sink.counters.bytes();
        self.sink.tracker.tell(
            &*self.watch.observer,
            bytes.precopy + bytes.urgent + bytes.background,
        );
    }

    /// Lets go of the guest's memory: when nothing is missing, or when the
    /// guest will never run here.
    fn stop_faulting(&self) {
        if let Some(faulting) = &self.faulting {
            faulting.stop.stop();
            if let Err(error) = faulting.installer.unregister() {
                tracing::warn!(%error, "letting go of the guest's memory");
            }
        }
    }

    fn join_fault_thread(&mut self) {
        let thread = self.faulting.as_mut().and_then(|f| f.fault_thread.take());
        if let Some(thread) = thread {
            // A panic was reported by the panic hook; there is nothing to add.
            let _ = thread.join();
        }
    }

    /// Everything is here: gives the process back what was taken from it.
    fn let_go(&mut self, guest: &mut dyn DestinationGuest) -> Result<(), crate::guest::GuestError> {
        self.session.close();
        self.stop_faulting();
        self.join_fault_thread();
        guest.release()
    }

    /// Ends an arrival that was not committed; the guest stays at the source.
    fn withdraw(
        &mut self,
        guest: &mut dyn DestinationGuest,
        cause: DestinationFailure,
    ) -> ReceiveError {
        self.session.part(&parting(&cause));
        if let Err(error) = self.let_go(guest) {
            self.watch.observer.notice(&error.to_string());
        }
        ReceiveError {
            cause,
            outcome: Outcome::AtSource,
        }
    }

    /// Ends an arrival that may have been committed, or was: the guest is
    /// stopped, and faults go on waiting, so that not a page is lost.
    fn leave_paused(
        &mut self,
        guest: &mut dyn DestinationGuest,
        cause: DestinationFailure,
        outcome: Outcome,
    ) -> ReceiveError {
        if let Err(error) = guest.stop() {
            self.watch.observer.notice(&error.to_string());
        }
        self.session.part(&parting(&cause));
        self.session.close();
        if let Some(faulting) = &self.faulting {
            faulting.stop.stop();
            guest.abandon_userfault();
        }
        self.join_fault_thread();
        ReceiveError { cause, outcome }
    }
}

/// The last word to a source whose guest is not taken in.
fn parting(cause: &DestinationFailure) -> ToSource {
    match cause {
        DestinationFailure::Cancelled => ToSource::Cancel {
            reason: "cancelled by the operator".into(),
        },
        cause => ToSource::Failed {
            reason: cause.to_string(),
        },
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
