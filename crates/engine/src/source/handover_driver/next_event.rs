//! Waits for the next event: a message, a link's end, or a cancellation.

use std::time::Duration;

use error_reporter::Report;
use hikkoshi_handover::{SourceEvent, SourceStage};
use hikkoshi_wire::{RequestSummary, ToSource};

use crate::report::{add_measures, latency_received};
use crate::source::error::{MigrateError, SourceFailure};
use crate::source::handover_driver::event_with_cause::{DOING, EventWithCause};
use crate::source::handover_driver::{CompletionReport, HandoverDriver};

const TOO_LATE: &str = "too late to cancel: the destination was asked to run the guest and has not \
                        answered; waiting for its answer";

impl HandoverDriver<'_> {
    /// Waits for the next event for the state machine.
    pub(crate) fn next_event(
        &mut self,
        result: &mut CompletionReport,
        cancel_reported: &mut bool,
    ) -> Result<EventWithCause, MigrateError> {
        loop {
            let handed_over = self.handover.stage() == SourceStage::HandedOver;
            if handed_over && self.shared.cancel.take() {
                // `take` resets the flag: cancelling a second time, after the links are
                // lost, ends the attempts to reconnect.
                self.shared.observer.notice(
                    "the guest already runs at the destination and needs the pages that are still \
                     here: not stopping until they are sent",
                );
                return Ok(SourceEvent::Cancelled.into());
            }
            if !handed_over && self.shared.cancel.is_cancelled() && !*cancel_reported {
                *cancel_reported = true;
                if self.handover.stage() == SourceStage::Committed && self.active.is_some() {
                    self.shared.observer.notice(TOO_LATE);
                }
                return Ok(SourceEvent::Cancelled.into());
            }
            if let Err(error) = self.guest.check_handed_over() {
                return Err(self.give_up(error.into()));
            }
            let Some(active) = &mut self.active else {
                return Ok(SourceEvent::LinkLost.into());
            };
            let message = match active.session.receive_after_commit(DOING) {
                Ok(None) => continue,
                Ok(Some(message)) => message,
                Err(SourceFailure::Destination(reason)) => {
                    let failed = SourceFailure::Destination(reason);
                    return Ok(EventWithCause::with_cause(SourceEvent::Failed, failed));
                }
                Err(failure @ SourceFailure::Link { .. }) => {
                    // The final message may arrive after another link has ended.
                    match active.session.final_message(&failure) {
                        Some(last) => {
                            active.session.defer(failure);
                            last
                        }
                        None => {
                            return Ok(EventWithCause::with_cause(SourceEvent::LinkLost, failure));
                        }
                    }
                }
                // A local failure: reconnecting would not help.
                Err(failure) => return Err(self.give_up(failure)),
            };
            match message {
                ToSource::GuestResumed => return Ok(SourceEvent::GuestResumed.into()),
                ToSource::Declined { reason } => {
                    let declined = SourceFailure::Declined(reason);
                    return Ok(EventWithCause::with_cause(SourceEvent::Declined, declined));
                }
                ToSource::Failed { reason } => {
                    let failed = SourceFailure::Destination(reason);
                    return Ok(EventWithCause::with_cause(SourceEvent::Failed, failed));
                }
                ToSource::GuestLost { reason } if handed_over => {
                    return Err(self.guest_lost(reason));
                }
                // The destination never reported that the guest runs there: every page
                // is still here.
                ToSource::GuestLost { reason } => {
                    let failed = SourceFailure::Destination(reason);
                    return Ok(EventWithCause::with_cause(SourceEvent::Failed, failed));
                }
                ToSource::ShutDown => {
                    result.shut_down = true;
                    return Ok(SourceEvent::ShutDown.into());
                }
                ToSource::LeftToDo { what } => self.keep_left_to_do(what),
                ToSource::ResumeTime { micros } => self.note_resume_time(micros),
                ToSource::Complete { requests, faults } => {
                    add_measures(&mut result.requests, *faults);
                    return Ok(self.complete(result, requests));
                }
                // Sent before the destination received *Commit*, which it will obey.
                ToSource::Cancel { .. } => {}
                other => {
                    let violation = SourceFailure::unexpected(DOING, &other);
                    return Ok(EventWithCause::with_cause(SourceEvent::LinkLost, violation));
                }
            }
        }
    }

    /// The guest ran so long after the destination had received *commit*, which took half a round
    /// trip. How long *commit* waited for a processor there is not known.
    fn note_resume_time(&mut self, micros: u64) {
        let control = self
            .active
            .as_ref()
            .and_then(|it| it.session.streams.first());
        let info = control.and_then(|stream| stream.tcp_info());
        let round_trip = info.and_then(|info| info.shortest_round_trip);
        let time = Duration::from_micros(micros).saturating_add(round_trip.unwrap_or_default() / 2);
        if let Some(resumed) = self.committed.and_then(|sent| sent.checked_add(time)) {
            self.shared.steps.likely_end(resumed);
        }
        self.handover.history().likely_downtime = self.shared.steps.likely_downtime();
        if let Err(error) = self.handover.write() {
            // A later engine does not report it then.
            tracing::warn!(error = %Report::new(&error), "recording how long the guest was paused");
        }
    }

    /// Keeps what the destination has not done. The first report counts: the destination repeats it
    /// on a new connection.
    pub(crate) fn keep_left_to_do(&mut self, what: String) {
        if self.left_to_do.is_none() {
            self.shared
                .observer
                .notice(&format!("at the destination: {what}"));
            self.left_to_do = Some(what);
        }
    }

    fn complete(&self, result: &mut CompletionReport, requests: RequestSummary) -> EventWithCause {
        match SourceFailure::check_all_sent(DOING, self.unsent.count()) {
            Ok(()) => {
                result.requests.request_latency_us = latency_received(requests);
                SourceEvent::Complete.into()
            }
            Err(violation) => EventWithCause::with_cause(SourceEvent::LinkLost, violation),
        }
    }
}
