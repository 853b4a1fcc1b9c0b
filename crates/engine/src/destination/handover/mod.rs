//! From *ready* on: what the destination does about the guest that it has, or
//! may come to have, and about links that are lost meanwhile.
//!
//! What happens is told to the machine (`custody`), and what it says is done
//! here. A link that is lost takes the others with it; the guest is left alone.
//! It runs on with the pages that are here, and who needs another one waits.
//! The next connection (`meeting.rs`) begins with what is missing.

pub(crate) mod abort;
pub(crate) mod give_up;
mod leaving;
mod listening;
pub(crate) mod reconnect;
mod running;

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hikkoshi_wire::{Capabilities, Limits, ToSource};

use crate::destination::error::{DestinationFailure, ReceiveError};
use crate::destination::handover::abort::parting;
use crate::destination::handover::reconnect::ReconnectedSource;
use crate::destination::postcopy::ActivePostcopy;
use crate::destination::postcopy::installer::Installer;
use crate::destination::receiver::PageSink;
use crate::destination::session::{Channel, Event, Session};
use crate::destination::{DestinationOptions, ReceiveWatch};
use crate::guest::DestinationGuest;
use crate::report::Requests;
use crate::retry_budget::RetryBudget;
use hikkoshi_handover::RecordedDestination;
use hikkoshi_handover::{DestinationAction, DestinationEvent, DestinationStage};
use hikkoshi_link::{Incoming, LinkError, TICK};
use hikkoshi_memory::RamFiles;

/// How long the source may take to answer the last word: to say goodbye, or that
/// it keeps a guest that was declined.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(5);

/// How often to look whether the guest runs.
const LOOK: Duration = Duration::from_millis(1);

/// A guest from *ready* on.
pub(crate) struct HandoverDriver<'a> {
    pub(crate) watch: &'a ReceiveWatch,
    pub(crate) options: DestinationOptions,
    pub(crate) incoming: &'a Receiver<Incoming>,
    pub(crate) machine: RecordedDestination,
    /// What the source understands.
    pub(crate) capabilities: Capabilities,
    pub(crate) ram: Arc<RamFiles>,
    pub(crate) sink: Arc<PageSink>,
    pub(crate) faulting: Option<ActivePostcopy>,
    pub(crate) link: Link,
    /// When the source said that its guest is stopped.
    pub(crate) stopped: Option<Instant>,
    pub(crate) retry_budget: RetryBudget,
    pub(crate) state: State,
}

/// How things are.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// Until when to wait for whatever is waited for; `None`: without end.
    until: Option<Instant>,
    /// Why the links were lost.
    lost: Option<DestinationFailure>,
    /// A source that is back, and was not answered yet.
    pub(crate) met: Option<ReconnectedSource>,
    /// *Commit* came on the links that are there now.
    committed_here: bool,
    /// The guest was made to run.
    settled: bool,
    /// Somebody's wish to stop was dealt with.
    told: bool,
    /// Why the guest was declined.
    declined: Option<DestinationFailure>,
    /// That the guest's process is gone was dealt with.
    ended: bool,
    /// The guest has shut itself down here.
    shut_down: bool,
    downtime: Duration,
    /// What the source was told about requests.
    requests: Option<Requests>,
    /// The process has everything back that was taken from it.
    released: bool,
    /// Something that was told when the links ended.
    serious: Option<Event>,
}

/// The connections to the source.
#[derive(Debug)]
pub(crate) enum Link {
    Up(Box<ActiveLinks>),
    Down(Channel),
}

/// Connections, and the threads that receive on them.
#[derive(Debug)]
pub(crate) struct ActiveLinks {
    pub(crate) session: Session,
    pub(crate) receivers: Vec<JoinHandle<()>>,
    /// A link that has failed, and when: what the source said last may come
    /// behind it, on the control link.
    failed: Option<(DestinationFailure, Instant)>,
}

impl ActiveLinks {
    pub(crate) fn new(session: Session, receivers: Vec<JoinHandle<()>>) -> Self {
        Self {
            session,
            receivers,
            failed: None,
        }
    }
}

/// What came of a look around.
pub(crate) enum Observation {
    Nothing,
    Event(DestinationEvent, Option<DestinationFailure>),
    /// This engine cannot go on, or has waited long enough.
    Over(DestinationFailure),
}

/// Why the guest was not made to run.
pub(crate) enum NotRun {
    /// It never did.
    ForSure(DestinationFailure),
    /// It may come to run yet, or has.
    PerhapsLater(DestinationFailure),
}

/// A guest that is wholly here.
#[derive(Debug)]
pub(crate) struct HandoverResult {
    pub(crate) downtime: Duration,
    pub(crate) requests: Requests,
    /// The guest has shut itself down here.
    pub(crate) shut_down: bool,
}

impl<'a> HandoverDriver<'a> {
    /// Goes on from `first` until everything is here, or it is known that the
    /// guest stays at the source, or nothing more can be done now.
    pub(crate) fn go(
        mut self,
        guest: &mut dyn DestinationGuest,
        first: DestinationEvent,
    ) -> Result<HandoverResult, ReceiveError> {
        let (mut event, mut cause) = (first, None);
        loop {
            if event == DestinationEvent::Commit
                && self.machine.stage() == DestinationStage::Ready
                && guest.has_ended()
            {
                // It never ran here: the source shall take it back.
                (event, cause) = (
                    DestinationEvent::GuestFailed,
                    Some(DestinationFailure::gone(guest)),
                );
            }
            if event == DestinationEvent::GuestFailed
                && self.machine.stage() == DestinationStage::Running
                && guest.has_shut_down()
            {
                self.state.shut_down = true;
                self.watch
                    .observer
                    .notice("the guest has shut itself down here");
                (event, cause) = (DestinationEvent::ShutDown, None);
            }
            let actions = match self.machine.on(event) {
                Ok(actions) => actions,
                Err(error) => return Err(self.unrecorded(guest, error)),
            };
            let (mut next, mut closes) = (None, false);
            for action in actions {
                let mut lost = None;
                match action {
                    DestinationAction::Record(_) => {}
                    DestinationAction::ResumeGuest => match self.run(guest) {
                        Ok(()) => {}
                        Err(NotRun::ForSure(failure)) => {
                            next = Some((DestinationEvent::GuestNeverRan, Some(failure)));
                        }
                        Err(NotRun::PerhapsLater(failure)) => {
                            return Err(self.leave(guest, failure));
                        }
                    },
                    DestinationAction::DiscardGuest => self.let_go(guest),
                    DestinationAction::Close => closes = true,
                    DestinationAction::End => {
                        let result = self.end(guest, event, cause);
                        // Last: as long as the memory is held, somebody must know.
                        if closes && (self.state.released || guest.has_ended()) {
                            self.machine.close();
                        }
                        return result;
                    }
                    // Nobody was there, and whoever has come while the guest was made
                    // to run was answered.
                    DestinationAction::Wait if event == DestinationEvent::Restarted => {}
                    action => lost = self.act(*action, &mut cause).err(),
                }
                if let Some(failure) = lost {
                    next = Some((DestinationEvent::LinkLost, Some(failure)));
                }
                if next.is_some() {
                    break;
                }
            }
            (event, cause) = match next {
                Some(next) => next,
                None => match self.next(guest) {
                    Ok(seen) => seen,
                    Err(failure) => return self.over(guest, failure),
                },
            };
        }
    }

    /// Waits for something that the machine should know.
    fn next(
        &mut self,
        guest: &dyn DestinationGuest,
    ) -> Result<(DestinationEvent, Option<DestinationFailure>), DestinationFailure> {
        loop {
            match self.look(TICK) {
                Observation::Event(event, cause) => return Ok((event, cause)),
                Observation::Over(failure) => return Err(failure),
                Observation::Nothing => {}
            }
            if !self.state.ended && guest.has_ended() {
                self.state.ended = true;
                let gone = DestinationFailure::gone(guest);
                return Ok((DestinationEvent::GuestFailed, Some(gone)));
            }
            let bytes = self.sink.counters.bytes();
            self.sink.tracker.tell(
                &*self.watch.observer,
                bytes.precopy + bytes.urgent + bytes.background,
            );
            if let Some(faulting) = &mut self.faulting {
                faulting.name_threads(guest);
            }
        }
    }

    /// Does what the machine says, but for what is done to the guest.
    fn act(
        &mut self,
        action: DestinationAction,
        cause: &mut Option<DestinationFailure>,
    ) -> Result<(), DestinationFailure> {
        match action {
            DestinationAction::SendReady => self.say(&ToSource::Ready, "getting ready"),
            DestinationAction::SendGuestResumed if self.state.committed_here => {
                self.say(&ToSource::GuestResumed, "running the guest")
            }
            DestinationAction::SendComplete => {
                self.say_complete();
                Ok(())
            }
            DestinationAction::SendShutDown => self.say_shut_down(),
            DestinationAction::SendDeclined => {
                self.say_declined(cause.take());
                Ok(())
            }
            DestinationAction::SendCancel => {
                let reason = "cancelled at the destination".to_owned();
                let asked = self.say(&ToSource::Cancel { reason }, "cancelling");
                if let Err(error) = asked {
                    tracing::debug!(%error, "the source does not hear the cancellation");
                }
                Ok(())
            }
            DestinationAction::SendResumeReply(stage) => {
                let answered = self.answer(stage);
                if matches!(
                    stage,
                    DestinationStage::Complete | DestinationStage::Declined
                ) {
                    self.await_last_word();
                }
                answered
            }
            DestinationAction::Wait => {
                self.go_down(cause.take());
                Ok(())
            }
            // The source knows already, or another line tells it; or nothing
            // of it is to be done here, but by `go`. (A guest that may have run
            // is ended by `give_up.rs` alone.)
            DestinationAction::SendGuestResumed
            | DestinationAction::Record(_)
            | DestinationAction::ResumeGuest
            | DestinationAction::DiscardGuest
            | DestinationAction::KillGuest
            | DestinationAction::Close
            | DestinationAction::End => Ok(()),
        }
    }

    /// Sends a control message; without a link it does not arrive.
    fn say(&mut self, message: &ToSource, doing: &'static str) -> Result<(), DestinationFailure> {
        match &mut self.link {
            Link::Up(line) => line.session.say(message, doing),
            Link::Down(_) => Ok(()),
        }
    }

    /// Tells the source that everything is here. It has heard when it says
    /// goodbye: a closing socket can overtake the last message on it.
    fn say_complete(&mut self) {
        let requests = self.requests();
        let Link::Up(line) = &mut self.link else {
            return;
        };
        if self.capabilities.contains(Capabilities::MEASURES) {
            let faults = requests.measures();
            line.session.part(&ToSource::Measured { faults });
        }
        let complete = ToSource::Complete {
            requests: (&requests.request_latency_us).into(),
        };
        line.session.part(&complete);
        self.state.requests = Some(requests);
        self.await_last_word();
    }

    /// Says that the guest has shut itself down. A source that does not know that
    /// word hears on its next connection that nothing is needed of it.
    fn say_shut_down(&mut self) -> Result<(), DestinationFailure> {
        if !self.capabilities.contains(Capabilities::SHUT_DOWN) {
            return Err(DestinationFailure::Link {
                doing: "telling the source that the guest has shut itself down",
                cause: LinkError::Closed,
            });
        }
        if let Link::Up(line) = &mut self.link {
            line.session.part(&ToSource::ShutDown);
        }
        self.await_last_word();
        Ok(())
    }

    /// Says that the guest was never run here and never will be. The source has
    /// heard when it says that it has its guest.
    fn say_declined(&mut self, cause: Option<DestinationFailure>) {
        let cause = cause.unwrap_or(DestinationFailure::Cancelled);
        let word = if self.capabilities.contains(Capabilities::RECOVERY) {
            let reason = cause.to_string();
            ToSource::Declined { reason }
        } else {
            parting(&cause)
        };
        if let Link::Up(line) = &mut self.link {
            line.session.part(&word);
        }
        self.await_last_word();
        self.state.declined = Some(cause);
    }

    fn await_last_word(&mut self) {
        if matches!(self.link, Link::Up(_)) {
            self.state.until = Some(Instant::now() + GOODBYE_TIMEOUT);
        }
    }

    /// Takes over the userfaultfd that another engine left in the guest's
    /// process, and finds out what is missing.
    pub(crate) fn adopt(
        &mut self,
        guest: &mut dyn DestinationGuest,
    ) -> Result<(), DestinationFailure> {
        let (userfault, hosts) = guest.take_userfault()?;
        let ram = Arc::clone(&self.ram);
        let links = self.machine.record().links;
        let installer = Installer::new(Arc::clone(&userfault), ram, &hosts, links)?;
        installer.copier.memory_pressure().be_patient();
        // It is registered already, unless that engine was killed at it.
        installer.copier.register()?;
        hikkoshi_memory::missing_pages(&self.ram, &userfault, &hosts, |range| {
            installer.missing.add(range)
        })?;
        tracing::info!(pages = installer.missing.count(), "pages are not here");
        let Link::Down(channel) = &self.link else {
            return Ok(());
        };
        let threads = self.options.fault_threads_for(guest.describe().cpus);
        let events = channel.sender();
        let (sink, options) = (Arc::clone(&self.sink), self.options);
        ActivePostcopy::start(
            &mut self.faulting,
            (installer, threads),
            None,
            &sink,
            &events,
            &options,
        )?;
        Ok(())
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits {
            pages: self.ram.layout().pages(),
        }
    }

    /// The source is there again, and was answered.
    pub(crate) fn is_up(&mut self, line: ActiveLinks) {
        self.link = Link::Up(Box::new(line));
        self.retry_budget.back(Instant::now());
        self.state.until = None;
        self.state.lost = None;
        self.state.told = false;
    }

    /// Pages that have not arrived.
    fn left(&self) -> u64 {
        self.faulting
            .as_ref()
            .map_or(0, |faulting| faulting.installer().missing.count())
    }

    fn requests(&self) -> Requests {
        self.faulting
            .as_ref()
            .map_or_else(Requests::default, |faulting| faulting.requests(&self.sink))
    }
}
