//! How it ends: with a guest that is here, that never ran here, or that is left as it is for another
//! engine.

use hikkoshi_wire::{Capabilities, ToSource};

use crate::destination::error::{DestinationFailure, ReceiveError};
use crate::destination::handover::abort::parting;
use crate::destination::handover::{HandoverDriver, HandoverResult, Link};
use crate::guest::DestinationGuest;
use hikkoshi_handover::Outcome;
use hikkoshi_handover::{DestinationEvent, DestinationStage};

impl HandoverDriver<'_> {
    pub(crate) fn end(
        &mut self,
        guest: &mut dyn DestinationGuest,
        event: DestinationEvent,
        cause: Option<DestinationFailure>,
    ) -> Result<HandoverResult, ReceiveError> {
        match self.machine.stage() {
            DestinationStage::Complete => Ok(self.stayed(guest)),
            DestinationStage::Receiving | DestinationStage::Declined => {
                let why = self.state.declined.take().or(cause);
                let cause = why.unwrap_or(match event {
                    DestinationEvent::Connected(_) => {
                        DestinationFailure::CalledOff("its guest is its own".into())
                    }
                    _ => DestinationFailure::Interrupted,
                });
                let outcome = Outcome::AtSource;
                Err(ReceiveError { cause, outcome })
            }
            DestinationStage::Ready | DestinationStage::Running => {
                let cause = cause.unwrap_or_else(|| DestinationFailure::gone(guest));
                Err(self.leave(guest, cause))
            }
        }
    }

    /// Nothing more is to be done by this engine.
    pub(crate) fn over(
        &mut self,
        guest: &mut dyn DestinationGuest,
        cause: DestinationFailure,
    ) -> Result<HandoverResult, ReceiveError> {
        match self.machine.stage() {
            DestinationStage::Complete => {
                let what = if self.state.shut_down {
                    "the guest has shut itself down here"
                } else {
                    "the guest runs here and everything of it is here"
                };
                self.watch.observer.notice(&format!(
                    "{what}, but the source could not be told so: see that it is not resumed there"
                ));
                Ok(self.stayed(guest))
            }
            DestinationStage::Receiving => Err(ReceiveError {
                cause,
                outcome: Outcome::AtSource,
            }),
            // The source may wait for that word: another engine can say it.
            DestinationStage::Declined => {
                self.let_go(guest);
                Err(ReceiveError {
                    cause: self.state.declined.take().unwrap_or(cause),
                    outcome: Outcome::Declined,
                })
            }
            DestinationStage::Ready | DestinationStage::Running => Err(self.leave(guest, cause)),
        }
    }

    pub(crate) fn stayed(&mut self, guest: &mut dyn DestinationGuest) -> HandoverResult {
        let told = self.state.requests.take();
        let requests = told.unwrap_or_else(|| self.requests());
        self.let_go(guest);
        HandoverResult {
            downtime: self.state.downtime,
            requests,
            shut_down: self.state.shut_down,
        }
    }

    /// Everything is here, or the guest will never run here: gives the process
    /// back what was taken from it.
    pub(crate) fn let_go(&mut self, guest: &mut dyn DestinationGuest) {
        if let Some(faulting) = &self.faulting {
            faulting.stop();
        }
        self.hang_up();
        if let Some(mut faulting) = self.faulting.take() {
            faulting.let_go();
            faulting.join();
        }
        if self.state.released {
            return;
        }
        let released = guest.release();
        self.state.released = released.is_ok();
        if let Err(error) = released {
            let notice = match self.machine.stage() {
                DestinationStage::Complete => format!("the guest runs here, but: {error}"),
                _ => error.to_string(),
            };
            self.watch.observer.notice(&notice);
        }
    }

    /// Leaves everything as it is, to be taken up again: faults go on waiting,
    /// so that not a page is lost.
    pub(crate) fn leave(
        &mut self,
        guest: &mut dyn DestinationGuest,
        cause: DestinationFailure,
    ) -> ReceiveError {
        let cause = cause.seen(guest);
        let outcome = match self.machine.stage() {
            DestinationStage::Ready => Outcome::Paused,
            DestinationStage::Running if !self.machine.record().started => Outcome::Paused,
            _ => Outcome::AtDestination,
        };
        if let Some(faulting) = &self.faulting {
            faulting.stop();
        }
        if cause.is_corruption() && self.machine.stage() == DestinationStage::Running {
            self.end_corrupted(guest);
        }
        let perished = outcome == Outcome::AtDestination
            && cause.is_end_of_guest()
            && self.capabilities.contains(Capabilities::RECOVERY);
        if let Link::Up(line) = &mut self.link {
            line.session.part(&if perished {
                let reason = cause.to_string();
                ToSource::GuestLost { reason }
            } else {
                parting(&cause)
            });
        }
        self.hang_up();
        guest.abandon_userfault();
        if let Some(mut faulting) = self.faulting.take() {
            faulting.join();
        }
        ReceiveError { cause, outcome }
    }

    /// Ends a guest whose memory is not what it should be, and that may have
    /// seen that: run on, it would carry the damage to its disks, and nobody
    /// could take the pages back.
    fn end_corrupted(&self, guest: &mut dyn DestinationGuest) {
        let notice = match guest.kill() {
            Ok(()) => {
                "the guest's memory here is corrupted: its QEMU was ended, so that the guest \
                       does no harm to its disks"
                    .to_owned()
            }
            Err(error) => format!("the guest's memory here is corrupted, but: {error}"),
        };
        self.watch.observer.notice(&notice);
    }

    /// The next stage could not be recorded.
    pub(crate) fn unrecorded(
        &mut self,
        guest: &mut dyn DestinationGuest,
        error: std::io::Error,
    ) -> ReceiveError {
        let cause = DestinationFailure::Journal(error);
        if self.machine.stage() != DestinationStage::Receiving {
            return self.leave(guest, cause);
        }
        if let Link::Up(line) = &mut self.link {
            line.session.part(&parting(&cause));
        }
        self.let_go(guest);
        ReceiveError {
            cause,
            outcome: Outcome::AtSource,
        }
    }
}
