//! How an arrival ends: the source's verdict, the last pages, and the ways in
//! which it does not come to that.

use std::time::{Duration, Instant};

use hikkoshi_wire::{Capabilities, ToDestination, ToSource};

use super::arrival::{Arrival, Switch, Undecided};
use super::error::{DestinationFailure, ReceiveError};
use super::session::{Event, LISTENING};
use crate::guest::{DestinationGuest, GuestError};
use crate::source::Outcome;
use crate::stats::Requests;

/// How long the source may take to say goodbye.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long to listen for the reason when a link has failed: a busy host takes
/// its time, and the end of the control link ends the wait.
const REASON_TIMEOUT: Duration = Duration::from_secs(2);

impl Arrival<'_> {
    /// Waits for the source's verdict.
    pub(super) fn await_commit(&mut self) -> Result<(), Undecided> {
        let doing = "waiting for the source to hand the guest over";
        let mut asked = false;
        let mut failed = None;
        loop {
            if self.watch.cancel.is_cancelled() && !asked {
                // Only the source can still call it off.
                asked = true;
                let reason = "cancelled at the destination".to_owned();
                if let Err(error) = self.session.say(&ToSource::Cancel { reason }, doing) {
                    tracing::debug!(%error, "the source does not hear the cancellation");
                }
            }
            match self.session.next() {
                None | Some(Event::AllReceived) => {}
                Some(Event::Said(ToDestination::Commit)) => {
                    self.session.committed();
                    return Ok(());
                }
                Some(Event::Said(ToDestination::Cancel { reason })) => {
                    return Err(Undecided::CalledOff(DestinationFailure::CalledOff(reason)));
                }
                Some(Event::Said(other)) => {
                    let failure = DestinationFailure::unexpected(doing, &other);
                    return Err(Undecided::Unknown(failure));
                }
                // Another link's end may be seen before what the source said
                // last on the control link, and that decides.
                Some(Event::Failed(failure)) => match &failure {
                    DestinationFailure::Link { doing, cause }
                        if *doing != LISTENING && cause.is_end() =>
                    {
                        failed.get_or_insert(failure);
                    }
                    _ => return Err(Undecided::Unknown(failed.unwrap_or(failure))),
                },
            }
        }
    }

    /// Runs the guest and stays until its last page is here.
    pub(super) fn finish(
        &mut self,
        guest: &mut dyn DestinationGuest,
        switch: &Switch,
    ) -> Result<(Duration, Requests), DestinationFailure> {
        let resumed = guest.resume(switch.running)?;
        self.watch.observer.notice(if switch.running {
            "the guest runs here now"
        } else {
            "the guest is here now, paused as it was"
        });
        let downtime = if switch.running {
            resumed.saturating_duration_since(switch.at)
        } else {
            Duration::ZERO
        };
        if let Err(error) = self.session.say(&ToSource::Resumed, "running the guest") {
            // With every page here the guest needs the source no more.
            if self.left() > 0 {
                return Err(error);
            }
            self.watch.observer.notice(&format!(
                "the guest runs here and everything of it is here, but the source could not be \
                 told so ({error}): see that it is not resumed there"
            ));
        }
        self.await_pages(guest)?;
        let requests = match &mut self.faulting {
            Some(faulting) => {
                faulting.name_threads(guest);
                faulting.requests(&self.sink)
            }
            None => Requests::default(),
        };
        self.goodbye(&requests);
        Ok((downtime, requests))
    }

    fn await_pages(&mut self, guest: &dyn DestinationGuest) -> Result<(), DestinationFailure> {
        let mut told = false;
        while self.left() > 0 {
            self.tell();
            if let Some(faulting) = &mut self.faulting {
                faulting.name_threads(guest);
            }
            if self.watch.cancel.is_cancelled() && !told {
                told = true;
                self.watch.observer.notice(
                    "the guest runs here already and pages of it are still at the source: not \
                     stopping before they are here",
                );
            }
            match self.session.next() {
                None | Some(Event::AllReceived) => {}
                Some(Event::Failed(failure)) if self.left() > 0 => return Err(failure),
                // A link that ends after the last page is no loss.
                Some(Event::Failed(_)) => {}
                Some(Event::Said(other)) => {
                    return Err(DestinationFailure::unexpected("receiving pages", &other));
                }
            }
        }
        Ok(())
    }

    /// Tells the source that everything is here, and waits until it has heard:
    /// a closing socket can overtake the last message on it.
    fn goodbye(&mut self, requests: &Requests) {
        if self.capabilities.contains(Capabilities::MEASURES) {
            let faults = requests.measures();
            self.session.part(&ToSource::Measured { faults });
        }
        let complete = ToSource::Complete {
            requests: (&requests.request_latency_us).into(),
        };
        self.session.part(&complete);
        let deadline = Instant::now() + GOODBYE_TIMEOUT;
        while Instant::now() < deadline {
            match self.session.next() {
                None | Some(Event::AllReceived) => {}
                Some(_) => return,
            }
        }
    }

    /// Looks for what is behind a link's end: a source that calls it off says
    /// why and closes its links, and a link's end may be seen first.
    pub(super) fn explain(&mut self, failure: DestinationFailure) -> DestinationFailure {
        match &failure {
            DestinationFailure::Link { doing, cause } if *doing != LISTENING && cause.is_end() => {}
            _ => return failure,
        }
        let deadline = Instant::now() + REASON_TIMEOUT;
        while let Some(left) = deadline.checked_duration_since(Instant::now()) {
            match self.session.next_within(left) {
                Some(Event::Said(ToDestination::Cancel { reason })) => {
                    return DestinationFailure::CalledOff(reason);
                }
                // Nothing more will be said.
                Some(Event::Failed(DestinationFailure::Link { doing, .. }))
                    if doing == LISTENING =>
                {
                    break;
                }
                _ => {}
            }
        }
        failure
    }

    /// Lets go of the guest's memory, so that whatever waits for a page of it
    /// goes on: when nothing is missing, or when the guest will never run here.
    pub(super) fn let_memory_go(&self) {
        if let Some(faulting) = &self.faulting {
            faulting.let_go();
        }
    }

    /// Waits for all threads that work on pages. The links must have been
    /// closed, and the fault threads stopped.
    fn join(&mut self) {
        if let Some(faulting) = &mut self.faulting {
            faulting.join();
        }
        for receiver in self.receivers.drain(..) {
            // A panic was reported by the panic hook; there is nothing to add.
            let _ = receiver.join();
        }
    }

    /// Everything is here: gives the process back what was taken from it.
    pub(super) fn let_go(&mut self, guest: &mut dyn DestinationGuest) -> Result<(), GuestError> {
        self.session.close();
        self.let_memory_go();
        self.join();
        guest.release()
    }

    /// Ends an arrival that was not committed; the guest stays at the source.
    pub(super) fn withdraw(
        &mut self,
        guest: &mut dyn DestinationGuest,
        cause: DestinationFailure,
    ) -> ReceiveError {
        self.session.part(&parting(&cause));
        if let Err(error) = self.let_go(guest) {
            self.watch.observer.notice(&error.to_string());
        }
        ReceiveError {
            cause,
            outcome: Outcome::AtSource,
        }
    }

    /// Ends an arrival that may have been committed, or was: the guest is
    /// stopped, and faults go on waiting, so that not a page is lost.
    pub(super) fn leave_paused(
        &mut self,
        guest: &mut dyn DestinationGuest,
        cause: DestinationFailure,
        outcome: Outcome,
    ) -> ReceiveError {
        if let Err(error) = guest.stop() {
            self.watch.observer.notice(&error.to_string());
        }
        self.session.part(&parting(&cause));
        self.session.close();
        if let Some(faulting) = &self.faulting {
            faulting.stop();
            guest.abandon_userfault();
        }
        self.join();
        ReceiveError { cause, outcome }
    }
}

/// The last word to a source whose guest is not taken in.
pub(super) fn parting(cause: &DestinationFailure) -> ToSource {
    match cause {
        DestinationFailure::Cancelled => ToSource::Cancel {
            reason: "cancelled by the operator".into(),
        },
        cause => ToSource::Failed {
            reason: cause.to_string(),
        },
    }
}
