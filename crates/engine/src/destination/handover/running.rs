//! Making the guest run, with an ear to the links.

use std::thread;
use std::time::Instant;

use crate::destination::error::DestinationFailure;
use crate::destination::handover::{HandoverDriver, LOOK, NotRun, Observation};
use crate::guest::DestinationGuest;
use hikkoshi_handover::{DestinationAction, DestinationEvent, DestinationStage};
use hikkoshi_linux::Cancel;

impl HandoverDriver<'_> {
    /// Makes the guest run, and sees to the links meanwhile: whoever makes it
    /// run may wait for a page.
    pub(crate) fn run(&mut self, guest: &mut dyn DestinationGuest) -> Result<(), NotRun> {
        if self.machine.record().started || guest.has_ended() && self.is_whole() {
            self.state.settled = true;
            guest.attend();
            return Ok(());
        }
        let running = self.machine.record().running;
        let give_up = Cancel::new();
        let mut over = None;
        let resumed = thread::scope(|scope| {
            let runner = thread::Builder::new()
                .name("dst-run".into())
                .spawn_scoped(scope, || guest.resume(running, &give_up))
                .map_err(DestinationFailure::Thread)?;
            while !runner.is_finished() {
                if over.is_some() {
                    thread::sleep(LOOK);
                    continue;
                }
                let done = match self.look(LOOK) {
                    Observation::Nothing => Ok(()),
                    Observation::Event(event, cause) => self.aside(event, cause),
                    Observation::Over(failure) => Err(failure),
                };
                if let Err(failure) = done {
                    over = Some(failure);
                    give_up.cancel();
                }
            }
            let joined = runner.join();
            Ok(joined.map_err(|_| DestinationFailure::ThreadDied)??)
        });
        match (resumed, over) {
            (Ok(resumed), over) => {
                self.runs(running, resumed);
                guest.attend();
                over.map_or(Ok(()), |over| Err(NotRun::PerhapsLater(over)))
            }
            (Err(_), Some(over)) => Err(NotRun::PerhapsLater(over)),
            (Err(failure), None) if guest.never_ran() => Err(NotRun::ForSure(failure)),
            (Err(failure), None) => Err(NotRun::PerhapsLater(failure)),
        }
    }

    fn is_whole(&self) -> bool {
        self.machine.stage() == DestinationStage::Complete
    }

    fn runs(&mut self, running: bool, resumed: Instant) {
        self.state.settled = true;
        self.watch.observer.notice(if running {
            "the guest runs here now"
        } else {
            "the guest is here now, paused as it was"
        });
        if let Some(stopped) = self.stopped.filter(|_| running) {
            self.state.downtime = resumed.saturating_duration_since(stopped);
        }
        if let Err(error) = self.machine.set_started() {
            // Worth a word only: the next engine would make it run once more.
            tracing::warn!(%error, "recording that the guest runs");
        }
    }

    /// Something happens while the guest is made to run.
    fn aside(
        &mut self,
        mut event: DestinationEvent,
        mut cause: Option<DestinationFailure>,
    ) -> Result<(), DestinationFailure> {
        loop {
            let actions = self
                .machine
                .on(event)
                .map_err(DestinationFailure::Journal)?;
            let mut lost = None;
            for action in actions {
                if *action == DestinationAction::End {
                    return Err(cause.unwrap_or(DestinationFailure::ProcessGone(None)));
                }
                lost = self.act(*action, &mut cause).err();
                if lost.is_some() {
                    break;
                }
            }
            let Some(failure) = lost else { return Ok(()) };
            (event, cause) = (DestinationEvent::LinkLost, Some(failure));
        }
    }
}
