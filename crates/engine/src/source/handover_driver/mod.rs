//! The source from the destination's *Ready* to the last page.
//!
//! The driver feeds events to the state machine of `hikkoshi-handover` and performs
//! its actions. The main thread waits for events (`next_event.rs`). The urgent
//! thread answers page requests (`postcopy/answer_requests.rs`), and a thread for each
//! background link pushes all other pages (`postcopy/pusher.rs`).

mod event_with_cause;
mod finish;
mod links;
mod memory_lost;
mod next_event;
mod reconnect;

use std::sync::Arc;
use std::time::{Duration, Instant};

use hikkoshi_handover::{DestinationStage, RecordedSource, SourceAction, SourceEvent, SourceStage};
use hikkoshi_link::{LinkError, Remote};

use crate::guest::SourceGuest;
use crate::report::{FramesAccount, Phase, RequestStatistics};
use crate::retry::RetryBudget;
use crate::source::context::MigrationContext;
use crate::source::error::{MigrateError, SourceFailure};
use crate::source::postcopy::pusher::Pushers;
use crate::source::unsent::UnsentPages;
use event_with_cause::{DOING, EventWithCause};
pub(crate) use links::ActiveLinks;

/// Performs the actions of the source's state machine, from *Ready* on.
pub(crate) struct HandoverDriver<'a> {
    pub(crate) shared: &'a MigrationContext,
    pub(crate) guest: &'a mut dyn SourceGuest,
    pub(crate) handover: &'a mut RecordedSource,
    pub(crate) remote: &'a Remote,
    pub(crate) unsent: Arc<UnsentPages>,
    pub(crate) active: Option<ActiveLinks>,
    pub(crate) retry_budget: RetryBudget,
    /// When the guest was paused, if this engine paused it.
    pub(crate) paused: Option<Instant>,
    /// When *commit* was sent, the last time.
    pub(crate) committed: Option<Instant>,
    /// What the destination has not done, and has reported.
    pub(crate) left_to_do: Option<String>,
}

/// What the destination reported about a completed migration.
#[derive(Debug, Default)]
pub(crate) struct CompletionReport {
    pub(crate) requests: RequestStatistics,
    /// The guest shut itself down there.
    pub(crate) shut_down: bool,
    /// How many frames that arrived for the guest were delivered or lost, if they were kept.
    pub(crate) frames: Option<FramesAccount>,
    /// What was not done there, if that was reported.
    pub(crate) left_to_do: Option<String>,
}

/// What follows from an action.
enum Step {
    /// An event for the state machine.
    Next(EventWithCause),
    Finished(Box<Result<CompletionReport, MigrateError>>),
}

impl HandoverDriver<'_> {
    /// Handles events, starting with `first`, until the destination has every
    /// page, the guest is resumed here, or this engine cannot continue.
    pub(crate) fn run(mut self, first: SourceEvent) -> Result<CompletionReport, MigrateError> {
        let mut result = CompletionReport::default();
        let mut cancel_reported = false;
        let mut event = EventWithCause::from(first);
        if first != SourceEvent::Restarted {
            let missing = self.unsent.count();
            self.handover.history().missing_pages = Some(missing);
        }
        loop {
            self.note_guest_runs(event.event);
            let restarted = event.event == SourceEvent::Restarted;
            let actions = match self.handover.on(event.event) {
                Ok(actions) => actions,
                Err(error) => return Err(self.give_up(SourceFailure::Journal(error))),
            };
            self.shared.control.follow(self.handover.stage());
            if event.event == SourceEvent::GuestResumed {
                let session = self.active.as_ref().map(|active| &active.session);
                if let Some(frames) = session.and_then(|session| session.frames.as_ref()) {
                    frames.guest_resumed();
                }
            }
            let mut step = None;
            for action in actions {
                step = self.perform(*action, &mut event.cause, restarted, &mut result);
                if step.is_some() {
                    break;
                }
            }
            event = match step {
                Some(Step::Next(event)) => event,
                Some(Step::Finished(result)) => return *result,
                None => self.next_event(&mut result, &mut cancel_reported)?,
            };
        }
    }

    fn perform(
        &mut self,
        action: SourceAction,
        cause: &mut Option<SourceFailure>,
        restarted: bool,
        result: &mut CompletionReport,
    ) -> Option<Step> {
        match action {
            // `RecordedSource` has recorded it.
            SourceAction::Record(_) => None,
            SourceAction::SendCommit => {
                let active = self.active.as_mut()?;
                self.guest.handing_over();
                let sent = active.session.commit("handing the guest over");
                let committed = Instant::now();
                self.committed = Some(committed);
                self.shared.steps.done_at("committed", committed);
                if sent.is_ok()
                    && self.guest.describe().running
                    && let (Some(frames), Some(paused)) = (&mut active.session.frames, self.paused)
                {
                    frames.handed_over(paused);
                }
                let lost = sent.err()?;
                Some(Step::Next(EventWithCause::with_cause(
                    SourceEvent::LinkLost,
                    lost,
                )))
            }
            SourceAction::SendPages => {
                let lost = self.send_pages().err()?;
                Some(Step::Next(EventWithCause::with_cause(
                    SourceEvent::LinkLost,
                    lost,
                )))
            }
            SourceAction::Wait => match self
                .reconnect(cause.take().map(contradicted_decline), restarted)
            {
                Ok(event @ SourceEvent::Connected(DestinationStage::Declined)) => {
                    let declined =
                        SourceFailure::Declined("it declined when the source reconnected".into());
                    Some(Step::Next(EventWithCause::with_cause(event, declined)))
                }
                Ok(event) => Some(Step::Next(event.into())),
                Err(error) => Some(Step::Finished(Box::new(Err(error)))),
            },
            // `End` does these.
            SourceAction::ResumeGuest | SourceAction::SendCancel | SourceAction::Close => None,
            SourceAction::End => Some(Step::Finished(Box::new(self.finish(cause.take(), result)))),
        }
    }

    /// Starts to send the missing pages.
    fn send_pages(&mut self) -> Result<(), SourceFailure> {
        let shared = self.shared;
        // Not after a pre-copy: there are no pages to send.
        if self
            .active
            .as_ref()
            .is_some_and(|active| active.idle.is_some() && !active.progress_begun)
        {
            shared
                .progress
                .begin(Phase::Postcopy, 0, self.unsent.count());
        }
        if let Some(active) = &mut self.active
            && let Some((links, policy)) = active.idle.take()
        {
            let pushers = Pushers::start(shared, &active.session, links, &self.unsent, &policy)?;
            active.pushers = Some(pushers);
        }
        Ok(())
    }

    /// Notes how long the guest was paused, when the first report arrives that it
    /// runs at the destination: before that is recorded.
    fn note_guest_runs(&mut self, event: SourceEvent) {
        let says_so = matches!(
            event,
            SourceEvent::GuestResumed
                | SourceEvent::Complete
                | SourceEvent::ShutDown
                | SourceEvent::Connected(DestinationStage::Running | DestinationStage::Complete)
        );
        if !says_so || self.handover.stage() != SourceStage::Committed {
            return;
        }
        let resumed = Instant::now();
        self.shared.steps.done_at("guest resumed", resumed);
        self.shared.steps.end(resumed);
        // `running` is the state at the pause: the guest's owner may have paused it
        // since.
        self.handover.history().downtime = match self.guest.describe().running {
            true => self.paused.map(|paused| resumed.duration_since(paused)),
            false => Some(Duration::ZERO),
        };
    }
}

/// A *Declined* that the state machine does not act on becomes a protocol error.
fn contradicted_decline(cause: SourceFailure) -> SourceFailure {
    match cause {
        SourceFailure::Declined(reason) => SourceFailure::Link {
            doing: DOING,
            cause: LinkError::Protocol(format!(
                "the destination reports that it never ran the guest, after it reported that it \
                 runs it: {reason}"
            )),
        },
        cause => cause,
    }
}
