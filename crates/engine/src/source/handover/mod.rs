//! From the destination's *ready* to the last page: what the source does about
//! the guest that it gives away, and about links that are lost meanwhile.
//!
//! What happens is told to the machine (`custody`), and what it says is done
//! here. The urgent thread answers requests (`urgent.rs`), a thread for each
//! background link pushes what nobody has asked for (`pusher.rs`); the main
//! thread listens.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use hikkoshi_wire::{FaultMeasures, RequestSummary, ToDestination, ToSource};

use crate::guest::{GuestError, SourceGuest};
use crate::report::{Phase, Requests};
use crate::retry_budget::RetryBudget;
use crate::source::MigrationContext;
use crate::source::error::{MigrateError, SourceFailure};
use crate::source::kept_notice;
use crate::source::postcopy::push_policy::PushPolicy;
use crate::source::postcopy::pusher::Pushers;
use crate::source::postcopy::urgent::UrgentThread;
use crate::source::session::{Session, check_all_sent, unexpected_message};
use crate::source::switchover::PreparedPostcopy;
use crate::source::unsent::UnsentPages;
use hikkoshi_handover::RecordedSource;
use hikkoshi_handover::{DestinationStage, Outcome, SourceAction, SourceEvent, SourceStage};
use hikkoshi_link::{BackgroundSender, LinkError, Remote, TICK};

const DOING: &str = "sending pages to the running guest";

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

/// Connections to a destination, and the threads that work on them.
#[derive(Debug)]
pub(crate) struct ActiveLinks {
    pub(crate) session: Session,
    urgent: Option<UrgentThread>,
    /// What the rest is pushed on, before it is.
    idle: Option<(Vec<BackgroundSender>, Arc<PushPolicy>)>,
    pushers: Option<Pushers>,
    /// What it is to bring was counted before its first page.
    progress_begun: bool,
}

impl ActiveLinks {
    pub(crate) fn new(session: Session, postcopy: Option<PreparedPostcopy>) -> Self {
        let (urgent, idle) = match postcopy {
            Some(PreparedPostcopy {
                urgent,
                links,
                policy,
            }) => (Some(urgent), Some((links, policy))),
            None => (None, None),
        };
        Self {
            session,
            urgent,
            idle,
            pushers: None,
            progress_begun: false,
        }
    }

    /// Ends the links, and waits for the threads.
    fn end(mut self) {
        self.session.close();
        if let Some(pushers) = self.pushers {
            pushers.join();
        }
        if let Some(urgent) = self.urgent {
            urgent.join();
        }
    }
}

/// What has happened, and why if it is nothing good.
struct Occurrence {
    event: SourceEvent,
    cause: Option<SourceFailure>,
}

impl From<SourceEvent> for Occurrence {
    fn from(event: SourceEvent) -> Self {
        Self { event, cause: None }
    }
}

impl Occurrence {
    fn bad(event: SourceEvent, cause: SourceFailure) -> Self {
        Self {
            event,
            cause: Some(cause),
        }
    }
}

/// How an attempt to go on ended.
enum Step {
    /// With this to be told to the machine.
    Next(Occurrence),
    Finished(Box<Result<HandoverResult, MigrateError>>),
}

impl HandoverDriver<'_> {
    /// Goes on from `first` until the destination has everything, or the guest
    /// is back, or nothing more can be done now.
    pub(crate) fn run(mut self, first: SourceEvent) -> Result<HandoverResult, MigrateError> {
        let mut handed = HandoverResult::default();
        let mut told = false;
        let mut heard = Occurrence::from(first);
        loop {
            let restarted = heard.event == SourceEvent::Restarted;
            let actions = match self.machine.on(heard.event) {
                Ok(actions) => actions,
                Err(error) => return Err(self.give_up(SourceFailure::Journal(error))),
            };
            if heard.event == SourceEvent::GuestResumed {
                handed.downtime = self.downtime();
            }
            let mut step = None;
            for action in actions {
                step = self.perform(*action, &mut heard.cause, restarted, &mut handed);
                if step.is_some() {
                    break;
                }
            }
            heard = match step {
                Some(Step::Next(heard)) => heard,
                Some(Step::Finished(result)) => return *result,
                None => self.next_event(&mut handed, &mut told)?,
            };
        }
    }

    fn perform(
        &mut self,
        action: SourceAction,
        cause: &mut Option<SourceFailure>,
        restarted: bool,
        handed: &mut HandoverResult,
    ) -> Option<Step> {
        match action {
            // Done before.
            SourceAction::Record(_) => None,
            SourceAction::SendCommit => {
                let active = self.active.as_mut()?;
                let sent = active.session.commit("handing the guest over");
                let lost = sent.err()?;
                Some(Step::Next(Occurrence::bad(SourceEvent::LinkLost, lost)))
            }
            SourceAction::SendPages => {
                let lost = self.serve().err()?;
                Some(Step::Next(Occurrence::bad(SourceEvent::LinkLost, lost)))
            }
            SourceAction::Wait => match self
                .reconnect(cause.take().map(contradicted_decline), restarted)
            {
                Ok(event @ SourceEvent::Connected(DestinationStage::Declined)) => {
                    let declined = SourceFailure::Declined("it said so when asked again".into());
                    Some(Step::Next(Occurrence::bad(event, declined)))
                }
                Ok(event) => Some(Step::Next(event.into())),
                Err(error) => Some(Step::Finished(Box::new(Err(error)))),
            },
            // What these come to is told by `End`.
            SourceAction::ResumeGuest | SourceAction::SendCancel | SourceAction::Close => None,
            SourceAction::End => Some(Step::Finished(Box::new(self.end(cause.take(), handed)))),
        }
    }

    /// Begins to send what the destination lacks.
    fn serve(&mut self) -> Result<(), SourceFailure> {
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

    /// Waits for something that the machine should know.
    fn next_event(
        &mut self,
        handed: &mut HandoverResult,
        told: &mut bool,
    ) -> Result<Occurrence, MigrateError> {
        loop {
            let gone = self.machine.stage() == SourceStage::HandedOver;
            if gone && self.shared.cancel.take() {
                // Answered: who means it though the links are lost says so again.
                self.shared.observer.notice(
                    "the guest runs at the destination already and needs the pages that are still \
                     here: not stopping before it has them",
                );
                return Ok(SourceEvent::Cancelled.into());
            }
            if !gone && self.shared.cancel.is_cancelled() && !*told {
                *told = true;
                return Ok(SourceEvent::Cancelled.into());
            }
            let Some(active) = &mut self.active else {
                return Ok(SourceEvent::LinkLost.into());
            };
            let heard = match active.session.receive_after_commit(DOING) {
                Ok(None) => {
                    self.tell();
                    continue;
                }
                Ok(Some(message)) => message,
                Err(SourceFailure::Destination(reason)) => {
                    let failed = SourceFailure::Destination(reason);
                    return Ok(Occurrence::bad(SourceEvent::Failed, failed));
                }
                Err(failure @ SourceFailure::Link { .. }) => {
                    // The last word may come after the end of another link.
                    match active.session.final_message(&failure) {
                        Some(last) => {
                            active.session.defer(failure);
                            last
                        }
                        None => return Ok(Occurrence::bad(SourceEvent::LinkLost, failure)),
                    }
                }
                // Nothing of it is the destination's doing, and trying again
                // would not help.
                Err(failure) => return Err(self.give_up(failure)),
            };
            match heard {
                ToSource::GuestResumed => return Ok(SourceEvent::GuestResumed.into()),
                ToSource::Declined { reason } => {
                    let declined = SourceFailure::Declined(reason);
                    return Ok(Occurrence::bad(SourceEvent::Declined, declined));
                }
                ToSource::Failed { reason } => {
                    let failed = SourceFailure::Destination(reason);
                    return Ok(Occurrence::bad(SourceEvent::Failed, failed));
                }
                ToSource::GuestLost { reason } if gone => return Err(self.lost(reason)),
                // It was never said to run there: all of it is still here.
                ToSource::GuestLost { reason } => {
                    let failed = SourceFailure::Destination(reason);
                    return Ok(Occurrence::bad(SourceEvent::Failed, failed));
                }
                ToSource::ShutDown => {
                    handed.shut_down = true;
                    return Ok(SourceEvent::ShutDown.into());
                }
                ToSource::Measured { faults } => self.measured(handed, faults),
                ToSource::Complete { requests } => return Ok(self.complete(handed, requests)),
                // It crossed the commit, which the destination will obey.
                ToSource::Cancel { .. } => {}
                other => {
                    let odd = unexpected_message(DOING, &other);
                    return Ok(Occurrence::bad(SourceEvent::LinkLost, odd));
                }
            }
        }
    }

    fn measured(&self, handed: &mut HandoverResult, faults: FaultMeasures) {
        handed.requests.add_measures(faults);
    }

    fn complete(&self, handed: &mut HandoverResult, requests: RequestSummary) -> Occurrence {
        match check_all_sent(DOING, self.unsent.count()) {
            Ok(()) => {
                handed.requests.request_latency_us = requests.into();
                SourceEvent::Complete.into()
            }
            Err(odd) => Occurrence::bad(SourceEvent::LinkLost, odd),
        }
    }

    /// Waits for a new connection, as long as it was told to.
    fn reconnect(
        &mut self,
        cause: Option<SourceFailure>,
        restarted: bool,
    ) -> Result<SourceEvent, MigrateError> {
        if let Some(active) = self.active.take() {
            active.end();
        }
        let patience = self.retry_budget.lost(Instant::now());
        let deadline = Instant::now() + patience;
        let lost = cause.unwrap_or(SourceFailure::Link {
            doing: DOING,
            cause: LinkError::Closed,
        });
        if patience.is_zero() && !restarted {
            return Err(self.interrupted(lost));
        }
        if !restarted {
            self.shared.observer.notice(&format!(
                "{lost}; nothing is lost. Trying to reach the destination at {} again for {} s",
                self.remote.address,
                patience.as_secs_f32()
            ));
        }
        self.shared.progress.begin(Phase::Connecting, 0, 0);
        let mut told = String::new();
        loop {
            self.pause();
            let failure = match self.connect() {
                Ok(event) => {
                    self.retry_budget.back(Instant::now());
                    self.shared
                        .observer
                        .notice("the destination is there again: going on");
                    return Ok(event);
                }
                Err(failure) => failure,
            };
            if self.shared.cancel.is_cancelled() || Instant::now() >= deadline {
                return Err(self.interrupted(if restarted {
                    failure
                } else {
                    SourceFailure::LostForGood {
                        lost: Box::new(lost),
                        since: Box::new(failure),
                    }
                }));
            }
            // Not only in the end: it may be something to be seen to.
            let text = failure.to_string();
            if text != told {
                self.shared.observer.notice(&format!("not yet: {text}"));
                told = text;
            }
        }
    }

    /// Before another attempt.
    fn pause(&mut self) {
        let pause = self.retry_budget.pause();
        let until = Instant::now() + pause;
        while Instant::now() < until && !self.shared.cancel.is_cancelled() {
            thread::sleep(TICK.min(pause));
        }
    }

    /// One attempt at it.
    fn connect(&mut self) -> Result<SourceEvent, SourceFailure> {
        let stage = self.machine.stage();
        let id = self.machine.record().id;
        let (mut session, links, there) =
            Session::again(self.shared, self.remote, id, stage, &self.unsent)?;
        let progress_begun = session.urgent.is_some();
        if progress_begun {
            // Before a page leaves: the destination counts what is missing now.
            self.shared
                .progress
                .begin(Phase::Postcopy, 0, self.unsent.count());
        }
        let postcopy = match session.urgent.take() {
            None => None,
            Some(ends) => {
                let policy = Arc::new(PushPolicy::new(links.len()));
                Some(PreparedPostcopy {
                    urgent: UrgentThread::start(
                        self.shared,
                        &session,
                        ends,
                        &self.unsent,
                        &policy,
                    )?,
                    links,
                    policy,
                })
            }
        };
        let mut active = ActiveLinks::new(session, postcopy);
        active.progress_begun = progress_begun;
        self.active = Some(active);
        Ok(SourceEvent::Connected(there))
    }

    fn end(
        &mut self,
        cause: Option<SourceFailure>,
        handed: &mut HandoverResult,
    ) -> Result<HandoverResult, MigrateError> {
        if self.machine.stage() != SourceStage::Done {
            let cause = cause.unwrap_or(SourceFailure::Interrupted);
            return Err(self.resume_at_source(cause));
        }
        if let Some(mut active) = self.active.take() {
            // Both sides say goodbye before either closes: a closing socket can
            // overtake the last message on it. That the destination has
            // everything is known already, so a failure here costs nothing.
            let goodbye = active
                .session
                .send(&ToDestination::Goodbye, "ending the migration");
            if let Err(error) = goodbye {
                tracing::debug!(%error, "no goodbye");
            }
            active.end();
        }
        Ok(std::mem::take(handed))
    }

    /// Ends a hand-over that cannot go on in this engine.
    fn give_up(&mut self, cause: SourceFailure) -> MigrateError {
        if self.machine.stage() == SourceStage::Owned {
            return self.resume_at_source(cause);
        }
        if let Some(active) = self.active.take() {
            active.end();
        }
        self.interrupted(cause)
    }

    /// The guest has ended where it ran: there is nothing to go on with.
    fn lost(&mut self, reason: String) -> MigrateError {
        if let Some(active) = self.active.take() {
            active.end();
        }
        MigrateError::new(SourceFailure::GuestLost(reason), Outcome::Lost)
    }

    /// The guest is the source's still, or again: it runs on.
    fn resume_at_source(&mut self, cause: SourceFailure) -> MigrateError {
        let resumed = self.guest.resume();
        if let Some(mut active) = self.active.take() {
            active
                .session
                .cancel(cancel_reason(&cause, self.guest.has_ended()));
            active.end();
        } else {
            // Another engine has called it off, or the guard has.
            kept_notice::send(
                self.remote,
                self.machine.record().id,
                &*self.shared.observer,
            );
        }
        resumed_at_source(cause, resumed, self.guest.has_ended())
    }

    /// Leaves everything as it is, to be taken up again.
    fn interrupted(&self, cause: SourceFailure) -> MigrateError {
        let outcome = match self.machine.stage() {
            SourceStage::Owned => Outcome::AtSource,
            SourceStage::Committed => Outcome::Paused,
            SourceStage::HandedOver | SourceStage::Done => Outcome::AtDestination,
        };
        MigrateError::new(cause, outcome)
    }

    fn downtime(&self) -> Duration {
        // As of the pause: its owner may have stopped it meanwhile.
        match self.paused {
            Some(paused) if self.guest.describe().running => paused.elapsed(),
            _ => Duration::ZERO,
        }
    }

    fn tell(&self) {
        let bytes = self.shared.counters.bytes();
        self.shared.progress.tell(
            &*self.shared.observer,
            bytes.precopy + bytes.urgent + bytes.background,
        );
    }
}

/// The machine does not act on every *declined*.
fn contradicted_decline(cause: SourceFailure) -> SourceFailure {
    match cause {
        SourceFailure::Declined(reason) => SourceFailure::Link {
            doing: DOING,
            cause: LinkError::Protocol(format!(
                "it says that it never ran the guest, after it had said that it runs there: {reason}"
            )),
        },
        cause => cause,
    }
}

/// What has become of a guest that was to run on at the source. One that `ended`
/// with its machine is nothing to be taken up again.
pub(crate) fn resumed_at_source(
    cause: SourceFailure,
    resumed: Result<(), GuestError>,
    ended: bool,
) -> MigrateError {
    match resumed {
        Ok(()) => MigrateError::new(cause, Outcome::AtSource),
        Err(error) => MigrateError {
            cause,
            outcome: if ended {
                Outcome::AtSource
            } else {
                Outcome::Stopped
            },
            aftermath: vec![error],
        },
    }
}

/// What a destination is told, and tells, when the source's machine has ended.
pub const SOURCE_ENDED: &str = "the source's virtual machine has ended, and the guest with it";

/// What the destination is told about a migration that comes to nothing.
/// Of a machine that `ended` nothing else matters.
pub(crate) fn cancel_reason(cause: &SourceFailure, ended: bool) -> String {
    match cause {
        _ if ended => SOURCE_ENDED.to_owned(),
        SourceFailure::Cancelled => "cancelled at the source".to_owned(),
        cause => format!("the source failed: {cause}"),
    }
}
