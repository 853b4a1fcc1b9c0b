//! From the destination's *ready* to the last page: what the source does about
//! the guest that it gives away, and about links that are lost meanwhile.
//!
//! What happens is told to the machine (`custody`), and what it says is done
//! here. The urgent thread answers requests (`urgent.rs`), a thread for each
//! background link pushes what nobody has asked for (`pusher.rs`); the main
//! thread listens.

mod active_links;
mod end;
mod next_event;
mod occurrence;
mod reconnect;

use std::sync::Arc;
use std::time::{Duration, Instant};

use hikkoshi_handover::{DestinationStage, RecordedSource, SourceAction, SourceEvent};
use hikkoshi_link::{LinkError, Remote};

use crate::guest::SourceGuest;
use crate::report::{Phase, Requests};
use crate::retry_budget::RetryBudget;
use crate::source::context::MigrationContext;
use crate::source::error::{MigrateError, SourceFailure};
use crate::source::postcopy::pusher::Pushers;
use crate::source::unsent::UnsentPages;
pub(crate) use active_links::ActiveLinks;
use occurrence::{DOING, Occurrence};

/// What becomes of a guest from *ready* on.
pub(crate) struct HandoverDriver<'a> {
    pub(crate) shared: &'a MigrationContext,
    pub(crate) guest: &'a mut dyn SourceGuest,
    pub(crate) machine: &'a mut RecordedSource,
    pub(crate) remote: &'a Remote,
    pub(crate) unsent: Arc<UnsentPages>,
    pub(crate) active: Option<ActiveLinks>,
    pub(crate) retry_budget: RetryBudget,
    /// When the guest was stopped, if this engine did that.
    pub(crate) paused: Option<Instant>,
}

/// What the destination has told about a guest that it has wholly.
#[derive(Debug, Default)]
pub(crate) struct HandoverResult {
    /// For how long nobody ran.
    pub(crate) downtime: Duration,
    pub(crate) requests: Requests,
    /// The guest has shut itself down there.
    pub(crate) shut_down: bool,
}

/// What follows from an action.
enum Step {
    /// An event for the machine.
    Next(Occurrence),
    Finished(Box<Result<HandoverResult, MigrateError>>),
}

impl HandoverDriver<'_> {
    /// Goes on from `first` until the destination has everything, or the guest
    /// is back, or nothing more can be done now.
    pub(crate) fn run(mut self, first: SourceEvent) -> Result<HandoverResult, MigrateError> {
        let mut result = HandoverResult::default();
        let mut cancel_reported = false;
        let mut occurrence = Occurrence::from(first);
        loop {
            let restarted = occurrence.event == SourceEvent::Restarted;
            let actions = match self.machine.on(occurrence.event) {
                Ok(actions) => actions,
                Err(error) => return Err(self.give_up(SourceFailure::Journal(error))),
            };
            if occurrence.event == SourceEvent::GuestResumed {
                result.downtime = self.downtime();
            }
            let mut step = None;
            for action in actions {
                step = self.perform(*action, &mut occurrence.cause, restarted, &mut result);
                if step.is_some() {
                    break;
                }
            }
            occurrence = match step {
                Some(Step::Next(occurrence)) => occurrence,
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
        result: &mut HandoverResult,
    ) -> Option<Step> {
        match action {
            // Done before.
            SourceAction::Record(_) => None,
            SourceAction::SendCommit => {
                let active = self.active.as_mut()?;
                let sent = active.session.commit("handing the guest over");
                let lost = sent.err()?;
                Some(Step::Next(Occurrence::with_cause(
                    SourceEvent::LinkLost,
                    lost,
                )))
            }
            SourceAction::SendPages => {
                let lost = self.send_pages().err()?;
                Some(Step::Next(Occurrence::with_cause(
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
                    Some(Step::Next(Occurrence::with_cause(event, declined)))
                }
                Ok(event) => Some(Step::Next(event.into())),
                Err(error) => Some(Step::Finished(Box::new(Err(error)))),
            },
            // What these come to is told by `End`.
            SourceAction::ResumeGuest | SourceAction::SendCancel | SourceAction::Close => None,
            SourceAction::End => Some(Step::Finished(Box::new(self.end(cause.take(), result)))),
        }
    }

    /// Begins to send what the destination lacks.
    fn send_pages(&mut self) -> Result<(), SourceFailure> {
        let shared = self.shared;
        if self
            .active
            .as_ref()
            .is_none_or(|active| !active.progress_begun)
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

    fn downtime(&self) -> Duration {
        // As of the pause: its owner may have stopped it meanwhile.
        match self.paused {
            Some(paused) if self.guest.describe().running => paused.elapsed(),
            _ => Duration::ZERO,
        }
    }
}

/// The machine does not act on every *declined*.
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
