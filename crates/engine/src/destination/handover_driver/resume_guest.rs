//! Resuming the guest, while the links are watched.

use std::thread;
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_handover::{DestinationAction, DestinationEvent, DestinationStage};
use hikkoshi_linux::CancelFlag;

use crate::destination::error::DestinationFailure;
use crate::destination::handover_driver::HandoverDriver;
use crate::destination::handover_driver::links::LinkState;
use crate::destination::handover_driver::next_event::Observation;
use crate::destination::session::DestinationSessionEvent;
use crate::guest::DestinationGuest;

/// How often to check whether the guest runs.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Why the guest was not resumed.
pub(crate) enum NotResumed {
    /// It has certainly never run here.
    NeverRan(DestinationFailure),
    /// It may have run, or may still come to run.
    MayRun(DestinationFailure),
}

impl HandoverDriver<'_> {
    /// Resumes the guest. The call that resumes it may wait for a page, so the links are watched
    /// meanwhile.
    pub(crate) fn resume_guest(
        &mut self,
        guest: &mut dyn DestinationGuest,
    ) -> Result<(), NotResumed> {
        let complete = self.handover.stage() == DestinationStage::Complete;
        if self.handover.record().started || guest.has_ended() && complete {
            self.guest.resumed = true;
            guest.watch_for_end();
            return Ok(());
        }
        let running = self.handover.record().running;
        let give_up = CancelFlag::new();
        let mut failed = None;
        let returned = match &self.links {
            LinkState::Up(links) => links.session.events(),
            LinkState::Down(channel) => channel.sender(),
        };
        let committed = Instant::now();
        self.context.steps.done_at("commit received", committed);
        let resumed = thread::scope(|scope| {
            let resumer = thread::Builder::new()
                .name("dst-run".into())
                .spawn_scoped(scope, || {
                    let resumed = guest.resume(running, &give_up);
                    // If the queue is full, the main thread is awake.
                    let _ = returned.try_send(DestinationSessionEvent::GuestCallReturned);
                    resumed
                })
                .map_err(DestinationFailure::Thread)?;
            while !resumer.is_finished() {
                if failed.is_some() {
                    thread::sleep(POLL_INTERVAL);
                    continue;
                }
                let handled = match self.observe(POLL_INTERVAL) {
                    Observation::Nothing => Ok(()),
                    Observation::Event(event, cause) => self.handle_while_resuming(event, cause),
                    Observation::Stop(failure) => Err(failure),
                };
                if let Err(failure) = handled {
                    failed = Some(failure);
                    give_up.cancel();
                }
            }
            let joined = resumer.join();
            Ok(joined.map_err(|_| DestinationFailure::ThreadDied)??)
        });
        match (resumed, failed) {
            (Ok(resumed), failed) => {
                if running {
                    self.guest.resume_time = Some(resumed.saturating_duration_since(committed));
                }
                self.set_resumed(running, resumed);
                guest.watch_for_end();
                failed.map_or(Ok(()), |failure| Err(NotResumed::MayRun(failure)))
            }
            // Whatever else has failed meanwhile: the process was ended, which is noticed, too.
            (Err(failure), _) if guest.never_ran() => Err(NotResumed::NeverRan(failure)),
            (Err(_), Some(failure)) => Err(NotResumed::MayRun(failure)),
            (Err(failure), None) => Err(NotResumed::MayRun(failure)),
        }
    }

    fn set_resumed(&mut self, running: bool, resumed: Instant) {
        self.guest.resumed = true;
        if running {
            self.context.steps.done_at("guest runs", resumed);
            self.context.steps.end(resumed);
            self.context.steps.done("guest announced");
        }
        if running && let Some(frames) = &self.frames {
            frames.guest_runs();
        }
        self.control.observer.notice(if running {
            "the guest runs here now"
        } else {
            "the guest is here now, paused as it was"
        });
        let paused = self.source_paused;
        self.handover.history().downtime = match running {
            true => paused.map(|paused| resumed.saturating_duration_since(paused)),
            false => Some(Duration::ZERO),
        };
        if let Err(error) = self.handover.set_started() {
            // A warning is enough: another engine would resume it once more.
            tracing::warn!(error = %Report::new(&error), "recording that the guest runs");
        }
    }

    /// Handles an event while the guest is being resumed.
    fn handle_while_resuming(
        &mut self,
        mut event: DestinationEvent,
        mut cause: Option<DestinationFailure>,
    ) -> Result<(), DestinationFailure> {
        loop {
            let actions = self
                .handover
                .on(event)
                .map_err(DestinationFailure::Journal)?;
            let mut lost = None;
            for action in actions {
                if *action == DestinationAction::End {
                    return Err(cause.unwrap_or(DestinationFailure::process_gone()));
                }
                lost = self.perform(*action, &mut cause).err();
                if lost.is_some() {
                    break;
                }
            }
            let Some(failure) = lost else { return Ok(()) };
            (event, cause) = (DestinationEvent::LinkLost, Some(failure));
        }
    }
}
