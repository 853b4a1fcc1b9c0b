//! How the destination's part ends: with a guest that is here, that never ran here, or that is left
//! for another engine.

use error_reporter::Report;
use hikkoshi_handover::{DestinationEvent, DestinationStage, Outcome};
use hikkoshi_wire::ToSource;

use crate::destination::error::{DestinationFailure, ReceiveError};
use crate::destination::handover_driver::links::LinkState;
use crate::destination::handover_driver::{HandoverDriver, ReceivedGuest};
use crate::destination::last_message::last_message;
use crate::destination::network_frames::FrameReceiver;
use crate::guest::DestinationGuest;

impl HandoverDriver<'_> {
    /// The machine has nothing more to do.
    pub(crate) fn finish(
        &mut self,
        guest: &mut dyn DestinationGuest,
        event: DestinationEvent,
        cause: Option<DestinationFailure>,
    ) -> Result<ReceivedGuest, ReceiveError> {
        match self.handover.stage() {
            DestinationStage::Complete => Ok(self.complete(guest)),
            DestinationStage::Receiving | DestinationStage::Declined => {
                let why = self.guest.declined.take().or(cause);
                let cause = why.unwrap_or(match event {
                    DestinationEvent::Connected(_) => {
                        DestinationFailure::CancelledBySource("it keeps its guest".into())
                    }
                    _ => DestinationFailure::Interrupted,
                });
                let outcome = Outcome::AtSource;
                Err(ReceiveError { cause, outcome })
            }
            DestinationStage::Ready | DestinationStage::Running => {
                let cause = cause.unwrap_or_else(|| DestinationFailure::process_ended(guest));
                Err(self.leave_guest(guest, cause))
            }
        }
    }

    /// This engine cannot continue.
    pub(crate) fn stop(
        &mut self,
        guest: &mut dyn DestinationGuest,
        cause: DestinationFailure,
    ) -> Result<ReceivedGuest, ReceiveError> {
        match self.handover.stage() {
            DestinationStage::Complete => {
                let state = self.complete_guest();
                self.control.observer.notice(&format!(
                    "{state}, but the source could not be notified: do not resume the guest there"
                ));
                Ok(self.complete(guest))
            }
            DestinationStage::Receiving => Err(ReceiveError {
                cause,
                outcome: Outcome::AtSource,
            }),
            // The source may wait for that message: another engine can send it.
            DestinationStage::Declined => {
                self.release_guest(guest);
                Err(ReceiveError {
                    cause: self.guest.declined.take().unwrap_or(cause),
                    outcome: Outcome::Declined,
                })
            }
            DestinationStage::Ready | DestinationStage::Running => {
                Err(self.leave_guest(guest, cause))
            }
        }
    }

    /// Lets the machine complete the move, once: the guest is here with all of its pages.
    pub(crate) fn complete_vm(&mut self, guest: &mut dyn DestinationGuest) {
        if std::mem::replace(&mut self.guest.completed, true) {
            return;
        }
        self.guest.left_to_do = guest.complete();
        if let Some(what) = &self.guest.left_to_do {
            self.control.observer.notice(what);
        }
    }

    fn complete(&mut self, guest: &mut dyn DestinationGuest) -> ReceivedGuest {
        self.complete_vm(guest);
        let reported = self.guest.requests.take();
        let requests = reported.unwrap_or_else(|| self.requests());
        self.release_guest(guest);
        // The links have ended, and so do the threads of this one.
        let frames = self.frames.take().and_then(FrameReceiver::finish);
        ReceivedGuest {
            frames,
            downtime: self.handover.record().history.downtime,
            requests,
            shut_down: (!self.guest.is_unknown).then_some(self.guest.shut_down),
            left_to_do: self.guest.left_to_do.take(),
        }
    }

    /// Gives back everything that was taken from the guest's process: every page is here, or the
    /// guest will never run here.
    pub(crate) fn release_guest(&mut self, guest: &mut dyn DestinationGuest) {
        if let Some(postcopy) = &self.postcopy {
            postcopy.stop();
        }
        self.close_links();
        if let Some(mut postcopy) = self.postcopy.take() {
            postcopy.release_memory();
            postcopy.join();
        }
        if self.guest.released {
            return;
        }
        let released = guest.release();
        self.guest.released = released.is_ok();
        if let Err(error) = released {
            let error = Report::new(&error);
            let notice = match self.handover.stage() {
                DestinationStage::Complete => format!("{}, but: {error}", self.complete_guest()),
                _ => error.to_string(),
            };
            self.control.observer.notice(&notice);
        }
    }

    /// Leaves everything to another engine: faults keep waiting, so that no page is lost.
    pub(crate) fn leave_guest(
        &mut self,
        guest: &mut dyn DestinationGuest,
        cause: DestinationFailure,
    ) -> ReceiveError {
        let cause = cause.explained_by(guest);
        let outcome = match self.handover.stage() {
            _ if matches!(cause, DestinationFailure::SourceMemoryLost(_)) => Outcome::Lost,
            DestinationStage::Ready => Outcome::Paused,
            DestinationStage::Running if !self.handover.record().started => Outcome::Paused,
            _ => Outcome::AtDestination,
        };
        if let Some(postcopy) = &self.postcopy {
            postcopy.stop();
        }
        if cause.is_corruption() && self.handover.stage() == DestinationStage::Running {
            self.kill_corrupted(guest);
        }
        let guest_lost = outcome == Outcome::AtDestination && cause.is_end_of_guest();
        if let LinkState::Up(links) = &mut self.links {
            links.session.send_last(&if guest_lost {
                let reason = Report::new(&cause).to_string();
                ToSource::GuestLost { reason }
            } else {
                last_message(&cause)
            });
        }
        self.close_links();
        guest.abandon_userfault();
        if let Some(mut postcopy) = self.postcopy.take() {
            postcopy.join();
        }
        ReceiveError { cause, outcome }
    }

    /// Ends a guest whose memory is corrupted, and that may have read it: if it continued to run,
    /// it could write the damage to its disks, and the pages cannot be sent again.
    fn kill_corrupted(&self, guest: &mut dyn DestinationGuest) {
        let notice = match guest.kill() {
            Ok(()) => {
                "the guest's memory here is corrupted: its QEMU was ended, so that the guest \
                       does no harm to its disks"
                    .to_owned()
            }
            Err(error) => format!(
                "the guest's memory here is corrupted, but: {}",
                Report::new(&error)
            ),
        };
        self.control.observer.notice(&notice);
    }

    /// The next stage could not be recorded.
    pub(crate) fn fail_unrecorded(
        &mut self,
        guest: &mut dyn DestinationGuest,
        error: std::io::Error,
    ) -> ReceiveError {
        let cause = DestinationFailure::Journal(error);
        if self.handover.stage() != DestinationStage::Receiving {
            return self.leave_guest(guest, cause);
        }
        if let LinkState::Up(links) = &mut self.links {
            links.session.send_last(&last_message(&cause));
        }
        self.release_guest(guest);
        ReceiveError {
            cause,
            outcome: Outcome::AtSource,
        }
    }
}
