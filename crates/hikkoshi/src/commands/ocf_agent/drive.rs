//! Looks at the guest, does what the table says, and looks again, until there is an answer.

use std::time::{Duration, Instant};

use super::answer::Answer;
use super::cluster::Side;
use super::deadline::Deadline;
use super::guest::{Found, Guest};
use super::state::State;
use super::table::{self, Action, Step};
use super::{end, monitor, start, stop};
use crate::journal::{DestinationEntry, SourceEntry};
use crate::output::streams;

/// How long a QEMU may be silent before it is ended: another program may use its monitor.
const SILENCE: Duration = Duration::from_secs(30);

/// How long an engine that was resumed may take before another attempt.
const RESUME_INTERVAL: Duration = Duration::from_secs(15);

/// What is needed for ending a guest whose pages do not arrive in time.
const END_RESERVE: Duration = Duration::from_secs(15);

/// An action that is under way.
#[derive(Debug)]
pub(super) struct Drive<'a> {
    guest: &'a Guest,
    deadline: Deadline,
    /// The state that was reported last.
    last: Option<State>,
    /// When an engine was resumed.
    resumed: Option<Instant>,
    /// Since when QEMU is silent.
    silent: Option<Instant>,
}

/// Does `action`.
pub(super) fn drive(guest: &Guest, action: Action, deadline: Deadline) -> Answer {
    let mut drive = Drive::new(guest, deadline);
    loop {
        let (found, step) = drive.look(action);
        if let Some(answer) = drive.act(action, step, &found) {
            return answer;
        }
    }
}

/// Reports why an action has failed.
fn answered(action: Action, answer: Answer, found: &Found) -> Answer {
    let expected = answer == Answer::Success
        || answer == Answer::NotRunning && matches!(action, Action::Probe | Action::Monitor);
    if !expected {
        let why = found.why.as_deref();
        let why = why.map_or_else(String::new, |why| format!(" ({why})"));
        let (words, meaning) = (found.state.words(), found.state.meaning());
        streams::ocf_exit_reason(&format!("{words}: {meaning}{why}"));
    }
    answer
}

impl<'a> Drive<'a> {
    /// Begins an action.
    pub(super) fn new(guest: &'a Guest, deadline: Deadline) -> Self {
        Self {
            guest,
            deadline,
            last: None,
            resumed: None,
            silent: None,
        }
    }

    /// Looks at the guest, and in the table what is to be done.
    pub(super) fn look(&mut self, action: Action) -> (Found, Step) {
        let found = self.guest.look();
        self.report(&found);
        let step = table::step(found.state, action);
        (found, step)
    }

    /// Does this step. Returns an answer if it is the last one.
    pub(super) fn act(&mut self, action: Action, step: Step, found: &Found) -> Option<Answer> {
        match self.perform(step, found) {
            Ok(None) => None,
            Ok(Some(answer)) => {
                monitor::report(self.guest, action, found);
                self.forget_moves(found.state);
                Some(answered(action, answer, found))
            }
            Err(why) => {
                streams::notice(&why);
                // It is not repeated.
                if step == Step::Boot || self.deadline.is_over() {
                    streams::ocf_exit_reason(&why);
                    return Some(Answer::Failed);
                }
                self.deadline.pause();
                None
            }
        }
    }

    /// Removes the notes of moves that are over.
    fn forget_moves(&self, state: State) {
        let (cluster, name) = (&self.guest.cluster, &self.guest.parameters.name);
        match state {
            State::Absent => {
                cluster.forget_received(name);
                cluster.forget_move(name, Side::Source);
            }
            State::Running => {
                cluster.forget_received(name);
                cluster.forget_sent(name);
            }
            State::Moved => cluster.forget_move(name, Side::Source),
            _ => {}
        }
    }

    /// Reports a state that is another one than before.
    fn report(&mut self, found: &Found) {
        if found.state != State::Silent {
            self.silent = None;
        }
        if self.last.is_some_and(|last| last != found.state) {
            streams::notice(&format!(
                "{}: {}",
                found.state.words(),
                found.state.meaning()
            ));
        }
        self.last = Some(found.state);
    }

    /// Does this step, and waits a moment. Returns an answer when the time was over before.
    fn perform(&mut self, step: Step, found: &Found) -> Result<Option<Answer>, String> {
        let (guest, deadline) = (self.guest, self.deadline);
        let at_end = match step {
            Step::Wait(answer) | Step::Finish(answer) => Some(answer),
            Step::FinishOrEnd => None,
            _ => Some(Answer::Failed),
        };
        if deadline.is_over() && at_end.is_some() {
            return Ok(at_end);
        }
        match step {
            Step::Answer(answer) => return Ok(Some(answer)),
            Step::Resume(answer) => {
                self.resume(found)?;
                return Ok(Some(answer));
            }
            Step::Finish(_) => self.resume(found)?,
            Step::FinishOrEnd if deadline.earlier(END_RESERVE).is_over() => {
                streams::notice(
                    "the guest is ended before all of its pages have arrived: the time for this \
                     action is nearly over",
                );
                end::give_up(guest, found, deadline)?;
            }
            Step::FinishOrEnd => self.resume(found)?,
            Step::Boot => start::boot(guest, deadline)?,
            Step::Run => start::run(guest)?,
            Step::ShutDown => stop::shut_down(guest, deadline)?,
            Step::EndQemu if found.state == State::Silent && !self.is_silent_for_long() => {}
            // The guest cannot be shut down without it; it may come back.
            Step::EndQemu
                if found.state == State::Unreached && !deadline.earlier(END_RESERVE).is_over() => {}
            Step::EndQemu => end::end_qemu(guest, found, deadline)?,
            Step::GiveUp => end::give_up(guest, found, deadline)?,
            Step::Cancel => {
                if let Err(why) = guest.control("cancel") {
                    streams::notice(&format!("cancelling the move: {why}"));
                }
            }
            Step::Restore => {
                if let Some(journal) = &found.source {
                    guest.restore(journal).map_err(|error| error.to_string())?;
                }
            }
            // `migrate_to` performs these.
            Step::Wait(_) | Step::Move | Step::Follow => {}
        }
        deadline.pause();
        Ok(None)
    }

    fn is_silent_for_long(&mut self) -> bool {
        let since = *self.silent.get_or_insert_with(Instant::now);
        let left = self.deadline.left();
        since.elapsed() > SILENCE || left < END_RESERVE
    }

    /// Resumes the migration of the guest if no engine works on it.
    pub(super) fn resume(&mut self, found: &Found) -> Result<(), String> {
        let is_recent = |at: Instant| at.elapsed() < RESUME_INTERVAL;
        if self.resumed.is_some_and(is_recent) {
            return Ok(());
        }
        let started = match (&found.source, &found.destination) {
            (Some(journal), _) if !journal.held => self.guest.resume::<SourceEntry>(journal),
            (None, Some(journal)) if !journal.held => {
                self.guest.resume::<DestinationEntry>(journal)
            }
            _ => return Ok(()),
        };
        self.resumed = Some(Instant::now());
        match started {
            Ok(Some(child)) => {
                streams::notice(&format!(
                    "no engine works on the guest's migration: process {} resumes it",
                    child.id()
                ));
                Ok(())
            }
            // The daemon does it.
            Ok(None) => Ok(()),
            Err(error) => Err(format!("resuming the guest's migration: {error}")),
        }
    }
}
