//! From *ready* on: drives the state machine of the destination's handover.
//!
//! Each event goes to the state machine ([`hikkoshi_handover::Destination`]), and this driver
//! performs the actions that it returns. When one link is lost, the other links are closed too, and
//! the guest is left alone: it runs with the pages that are here, and threads that need another
//! page wait. The source's next connection (`reconnect.rs`) starts with what is missing.

mod adopt;
mod finish;
pub(crate) mod give_up;
pub(crate) mod links;
mod messages;
mod next_event;
pub(crate) mod reconnect;
mod resume_guest;
pub(crate) mod run_to_end;

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use hikkoshi_handover::{
    DestinationAction, DestinationEvent, DestinationStage, RecordedDestination,
};
use hikkoshi_link::AcceptedLink;
use hikkoshi_memory::GuestRam;
use hikkoshi_wire::Limits;

use crate::destination::context::{DestinationRun, ReceiveContext};
use crate::destination::error::{DestinationFailure, ReceiveError};
use crate::destination::handover_driver::links::{LinkState, LostLinks};
use crate::destination::handover_driver::next_event::Observation;
use crate::destination::handover_driver::reconnect::ReconnectedSource;
use crate::destination::handover_driver::resume_guest::NotResumed;
use crate::destination::network_frames::FrameReceiver;
use crate::destination::options::DestinationOptions;
use crate::destination::postcopy::ActivePostcopy;
use crate::destination::receive_control::ReceiveControl;
use crate::destination::session::DestinationSessionEvent;
use crate::guest::DestinationGuest;
use crate::report::{FramesAccount, RequestStatistics};
use crate::retry::RetryBudget;

/// What is reported of a guest that has ended its machine.
const SHUT_DOWN: &str = "the guest has shut itself down here";

/// What is reported of a guest whose machine does not answer.
const STATE_UNKNOWN: &str = "the guest is here, and all its pages have arrived; its machine has \
    not said whether it runs or has shut down";

/// How long a machine that misses no page may take to answer whether its guest has shut down, and
/// the part of the time after which links count as stalled: nothing is read from them meanwhile.
const STATE_LIMIT: Duration = Duration::from_secs(5);
const STATE_LIMIT_OF_STALL: u32 = 4;

/// Performs the actions of the handover's state machine, for a guest from *ready* on.
pub(crate) struct HandoverDriver<'a> {
    pub(crate) control: &'a ReceiveControl,
    pub(crate) options: DestinationOptions,
    /// New connections.
    pub(crate) incoming: &'a Receiver<AcceptedLink>,
    pub(crate) handover: RecordedDestination,
    pub(crate) ram: Arc<GuestRam>,
    pub(crate) context: Arc<ReceiveContext>,
    pub(crate) postcopy: Option<ActivePostcopy>,
    pub(crate) links: LinkState,
    pub(crate) retry_budget: RetryBudget,
    /// When the source reported that its guest is paused.
    pub(crate) source_paused: Option<Instant>,
    /// What delivers frames that arrived for the guest at the source.
    pub(crate) frames: Option<FrameReceiver>,
    connection: Connection,
    guest: GuestProgress,
}

/// What has happened on the present links, or since they were lost.
#[derive(Debug, Default)]
struct Connection {
    /// The end of the present wait, for the source's last message or for a new connection; `None`:
    /// no limit.
    deadline: Option<Instant>,
    /// Why the links were lost.
    lost: LostLinks,
    /// A source that has connected again and has not been answered.
    reconnected: Option<ReconnectedSource>,
    /// *Commit* arrived on the present links.
    committed: bool,
    /// A request to cancel has been handled.
    cancel_handled: bool,
    /// An event that arrived while the links were being closed.
    pending: Option<DestinationSessionEvent>,
}

/// The state of the guest here.
#[derive(Debug, Default)]
struct GuestProgress {
    /// It was resumed.
    resumed: bool,
    /// The end of its process has been handled.
    end_handled: bool,
    /// It has shut itself down.
    shut_down: bool,
    /// Its machine has not answered whether it has.
    is_unknown: bool,
    /// Why it was declined.
    declined: Option<DestinationFailure>,
    /// Everything taken from its process was given back.
    released: bool,
    /// How long it did not run since *commit* was received.
    resume_time: Option<Duration>,
    /// What was reported to the source about page requests.
    requests: Option<RequestStatistics>,
    /// Its machine was asked to complete the move.
    completed: bool,
    /// What was not done then.
    left_to_do: Option<String>,
}

/// A guest of which every page is here.
#[derive(Debug)]
pub(crate) struct ReceivedGuest {
    /// How long it was paused, as far as that is known.
    pub(crate) downtime: Option<Duration>,
    pub(crate) requests: RequestStatistics,
    /// The guest has shut itself down here; `None`: not known.
    pub(crate) shut_down: Option<bool>,
    /// How many frames that arrived for it were delivered or lost, if they were kept.
    pub(crate) frames: Option<FramesAccount>,
    /// What its machine has not done.
    pub(crate) left_to_do: Option<String>,
}

/// What a driver starts with.
pub(crate) struct HandoverStart {
    pub(crate) handover: RecordedDestination,
    pub(crate) ram: Arc<GuestRam>,
    pub(crate) context: Arc<ReceiveContext>,
    pub(crate) postcopy: Option<ActivePostcopy>,
    pub(crate) links: LinkState,
    pub(crate) source_paused: Option<Instant>,
    pub(crate) frames: Option<FrameReceiver>,
}

impl<'a> HandoverDriver<'a> {
    /// A driver for the stage that `start.machine` is in.
    pub(crate) fn new(
        start: HandoverStart,
        DestinationRun {
            options,
            control,
            incoming,
        }: DestinationRun<'a>,
    ) -> Self {
        let retry_for = options.retry_for.within(start.handover.record().postcopy);
        Self {
            control,
            options: *options,
            incoming,
            handover: start.handover,
            ram: start.ram,
            context: start.context,
            postcopy: start.postcopy,
            links: start.links,
            retry_budget: RetryBudget::new(retry_for, Instant::now()),
            source_paused: start.source_paused,
            frames: start.frames,
            connection: Connection::default(),
            guest: GuestProgress::default(),
        }
    }

    /// Runs from the event `first` until every page is here, the guest is known to stay at the
    /// source, or this engine can do nothing more.
    pub(crate) fn run(
        mut self,
        guest: &mut dyn DestinationGuest,
        first: DestinationEvent,
    ) -> Result<ReceivedGuest, ReceiveError> {
        let (mut event, mut cause) = (first, None);
        if first == DestinationEvent::DeviceStateLoaded {
            self.handover.history().missing_pages = Some(self.missing_pages());
        }
        loop {
            (event, cause) = self.correct_event(guest, event, cause);
            let actions = match self.handover.on(event) {
                Ok(actions) => actions,
                Err(error) => return Err(self.fail_unrecorded(guest, error)),
            };
            let (mut next, mut closes) = (None, false);
            for action in actions {
                if reports_completion(*action) {
                    self.complete_vm(guest);
                }
                match action {
                    DestinationAction::ResumeGuest => match self.resume_guest(guest) {
                        Ok(()) => {}
                        Err(NotResumed::NeverRan(failure)) => {
                            next = Some((DestinationEvent::GuestNeverRan, Some(failure)));
                        }
                        Err(NotResumed::MayRun(failure)) => {
                            return Err(self.leave_guest(guest, failure));
                        }
                    },
                    DestinationAction::DiscardGuest => self.release_guest(guest),
                    DestinationAction::Close => closes = true,
                    DestinationAction::End => {
                        let result = self.finish(guest, event, cause);
                        // Last: the record is needed as long as the memory is held.
                        if closes && (self.guest.released || guest.has_ended()) {
                            self.handover.close();
                        }
                        return result;
                    }
                    // No source was connected, and one that connected while the guest was being
                    // resumed has been answered.
                    DestinationAction::Wait if event == DestinationEvent::Restarted => {}
                    action => match self.perform(*action, &mut cause) {
                        Ok(()) => {}
                        Err(DestinationFailure::SourceMemoryLost(reason)) => {
                            match self.source_memory_lost(reason) {
                                Observation::Event(event, cause) => next = Some((event, cause)),
                                Observation::Stop(failure) => return self.stop(guest, failure),
                                Observation::Nothing => {}
                            }
                        }
                        Err(failure) => {
                            next = Some((DestinationEvent::LinkLost, Some(failure)));
                        }
                    },
                }
                if next.is_some() {
                    break;
                }
            }
            (event, cause) = match next {
                Some(next) => next,
                None => match self.next_event(guest) {
                    Ok(next) => next,
                    Err(failure) => return self.stop(guest, failure),
                },
            };
        }
    }

    /// Replaces an event that means something else when the guest's process has ended.
    fn correct_event(
        &mut self,
        guest: &mut dyn DestinationGuest,
        event: DestinationEvent,
        cause: Option<DestinationFailure>,
    ) -> (DestinationEvent, Option<DestinationFailure>) {
        let stage = self.handover.stage();
        if event == DestinationEvent::Commit
            && stage == DestinationStage::Ready
            && guest.has_ended()
        {
            // It never ran here, so the source can take it back.
            let gone = DestinationFailure::process_ended(guest);
            return (DestinationEvent::GuestFailed, Some(gone));
        }
        let shut_down = match event {
            _ if stage != DestinationStage::Running => false,
            DestinationEvent::GuestFailed => guest.has_shut_down(),
            // Its machine may stay when it shuts down.
            DestinationEvent::AllPagesReceived => self.is_shut_down(guest),
            _ => false,
        };
        if shut_down {
            self.guest.shut_down = true;
            self.control.observer.notice(SHUT_DOWN);
            return (DestinationEvent::ShutDown, None);
        }
        (event, cause)
    }

    /// Whether a guest of which nothing is missing has shut down, as far as that is known.
    fn is_shut_down(&mut self, guest: &mut dyn DestinationGuest) -> bool {
        let limit = STATE_LIMIT.min(self.options.stall_timeout / STATE_LIMIT_OF_STALL);
        let known = guest.is_shut_down(limit);
        self.guest.is_unknown = known.is_none() && self.handover.record().running;
        if self.guest.is_unknown {
            self.control.observer.notice(STATE_UNKNOWN);
        }
        known == Some(true)
    }

    /// A guest of which nothing is missing, for people.
    fn complete_guest(&self) -> &'static str {
        if self.guest.shut_down {
            SHUT_DOWN
        } else if self.guest.is_unknown {
            STATE_UNKNOWN
        } else if self.handover.record().running {
            "the guest runs here, and all its pages have arrived"
        } else {
            "the guest is here, paused as it was, and all its pages have arrived"
        }
    }

    /// Performs an action that concerns the source, not the guest.
    fn perform(
        &mut self,
        action: DestinationAction,
        cause: &mut Option<DestinationFailure>,
    ) -> Result<(), DestinationFailure> {
        match action {
            DestinationAction::SendReady => self.send_ready(),
            DestinationAction::SendGuestResumed => self.send_resumed(),
            DestinationAction::SendComplete => {
                self.send_complete();
                Ok(())
            }
            DestinationAction::SendShutDown => {
                self.send_shut_down();
                Ok(())
            }
            DestinationAction::SendDeclined => {
                self.send_declined(cause.take());
                Ok(())
            }
            DestinationAction::SendCancel => {
                self.send_cancel();
                Ok(())
            }
            DestinationAction::SendResumeReply(stage) => {
                let answered = self
                    .answer_reconnected(stage)
                    .and_then(|()| self.send_resume_time(stage));
                if matches!(
                    stage,
                    DestinationStage::Complete | DestinationStage::Declined
                ) {
                    self.expect_last_message();
                }
                answered
            }
            DestinationAction::Wait => {
                self.lose_links(cause.take());
                Ok(())
            }
            // Recording is the state machine's, the others are `run`'s. (Only `give_up.rs` ends a
            // guest that may have run.)
            DestinationAction::Record(_)
            | DestinationAction::ResumeGuest
            | DestinationAction::DiscardGuest
            | DestinationAction::KillGuest
            | DestinationAction::Close
            | DestinationAction::End => Ok(()),
        }
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits {
            pages: self.ram.layout().pages(),
        }
    }

    /// Pages that have not arrived.
    fn missing_pages(&self) -> u64 {
        self.postcopy
            .as_ref()
            .map_or(0, |postcopy| postcopy.installer().missing.count())
    }

    fn requests(&self) -> RequestStatistics {
        self.postcopy
            .as_ref()
            .map_or_else(RequestStatistics::default, ActivePostcopy::requests)
    }
}

/// Whether this tells the source that it is not needed any more.
fn reports_completion(action: DestinationAction) -> bool {
    matches!(
        action,
        DestinationAction::SendComplete
            | DestinationAction::SendShutDown
            | DestinationAction::SendResumeReply(DestinationStage::Complete)
    )
}
