//! What the destination sends to the source, from *ready* on.

use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_handover::DestinationStage;
use hikkoshi_wire::ToSource;

use crate::destination::error::DestinationFailure;
use crate::destination::handover_driver::HandoverDriver;
use crate::destination::handover_driver::links::LinkState;
use crate::destination::last_message::reason_for_source;
use crate::report::{latency_sent, measures};

/// How long the source may take to answer the last message: to say goodbye, or that it keeps a
/// guest that was declined.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(5);

impl HandoverDriver<'_> {
    /// Sends a control message; does nothing without links.
    fn send(&mut self, message: &ToSource, doing: &'static str) -> Result<(), DestinationFailure> {
        match &mut self.links {
            LinkState::Up(links) => links.session.send(message, doing),
            LinkState::Down(_) => Ok(()),
        }
    }

    /// Reports that the guest could run here.
    pub(crate) fn send_ready(&mut self) -> Result<(), DestinationFailure> {
        self.context.steps.done("readiness recorded");
        self.send(&ToSource::Ready, "getting ready")
    }

    /// Reports that the guest runs here. On links without a *commit* the source knows already.
    pub(crate) fn send_resumed(&mut self) -> Result<(), DestinationFailure> {
        if !self.connection.committed {
            return Ok(());
        }
        self.send(&ToSource::GuestResumed, "running the guest")?;
        self.send_resume_time(DestinationStage::Running)
    }

    /// Reports how long the guest took to run, if it runs in `stage`. Also over new links: the
    /// report may have been lost with the ones before.
    pub(crate) fn send_resume_time(
        &mut self,
        stage: DestinationStage,
    ) -> Result<(), DestinationFailure> {
        match self.guest.resume_time {
            Some(time) if stage == DestinationStage::Running => {
                let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
                self.send(&ToSource::ResumeTime { micros }, "running the guest")
            }
            _ => Ok(()),
        }
    }

    /// Asks the source to cancel.
    pub(crate) fn send_cancel(&mut self) {
        let reason = String::new();
        if let Err(error) = self.send(&ToSource::Cancel { reason }, "cancelling") {
            tracing::debug!(error = %Report::new(&error), "the source does not receive the cancellation");
        }
    }

    /// Reports that every page is here. The source confirms it by *goodbye*: a closing socket can
    /// overtake the last message on it.
    pub(crate) fn send_complete(&mut self) {
        let requests = self.requests();
        let left_to_do = self.left_to_do();
        let LinkState::Up(links) = &mut self.links else {
            return;
        };
        if let Some(message) = left_to_do {
            links.session.send_last(&message);
        }
        let complete = ToSource::Complete {
            requests: latency_sent(&requests.request_latency_us),
            faults: Box::new(measures(&requests)),
        };
        links.session.send_last(&complete);
        self.guest.requests = Some(requests);
        self.expect_last_message();
    }

    /// The message that reports what the machine has not done, if there is something to report.
    pub(crate) fn left_to_do(&self) -> Option<ToSource> {
        let what = self.guest.left_to_do.clone()?;
        Some(ToSource::LeftToDo { what })
    }

    /// Reports that the guest has shut itself down. A source that misses this message gets
    /// the same answer at its next connection.
    pub(crate) fn send_shut_down(&mut self) {
        let left_to_do = self.left_to_do();
        if let LinkState::Up(links) = &mut self.links {
            if let Some(message) = left_to_do {
                links.session.send_last(&message);
            }
            links.session.send_last(&ToSource::ShutDown);
        }
        self.expect_last_message();
    }

    /// Reports that the guest was never run here and never will be. The source confirms that it
    /// has its guest.
    pub(crate) fn send_declined(&mut self, cause: Option<DestinationFailure>) {
        let cause = cause.unwrap_or(DestinationFailure::Cancelled);
        let reason = reason_for_source(&cause);
        if let LinkState::Up(links) = &mut self.links {
            links.session.send_last(&ToSource::Declined { reason });
        }
        self.expect_last_message();
        self.guest.declined = Some(cause);
    }

    /// Limits the wait for the source's last message.
    pub(crate) fn expect_last_message(&mut self) {
        if matches!(self.links, LinkState::Up(_)) {
            self.connection.deadline = Some(Instant::now() + GOODBYE_TIMEOUT);
        }
    }
}
