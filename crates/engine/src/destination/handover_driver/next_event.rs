//! The events of the handover's state machine: from the links, new connections, and time limits.

use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_handover::{DestinationEvent, DestinationStage};
use hikkoshi_link::{AcceptedLink, LinkError, TICK};
use hikkoshi_wire::{Role, ToDestination};

use crate::control_link::REASON_TIMEOUT;
use crate::destination::error::DestinationFailure;
use crate::destination::handover_driver::HandoverDriver;
use crate::destination::handover_driver::links::LinkState;
use crate::destination::session::{DestinationSessionEvent, LISTENING};
use crate::guest::DestinationGuest;

/// What one look for events returns.
pub(crate) enum Observation {
    Nothing,
    Event(DestinationEvent, Option<DestinationFailure>),
    /// This engine cannot continue, or has waited long enough.
    Stop(DestinationFailure),
}

impl HandoverDriver<'_> {
    /// Waits for an event that the machine needs to know.
    pub(crate) fn next_event(
        &mut self,
        guest: &mut dyn DestinationGuest,
    ) -> Result<(DestinationEvent, Option<DestinationFailure>), DestinationFailure> {
        loop {
            match self.observe(TICK) {
                Observation::Event(event, cause) => return Ok((event, cause)),
                Observation::Stop(failure) => return Err(failure),
                Observation::Nothing => {}
            }
            if !self.guest.end_handled && guest.has_ended() {
                self.guest.end_handled = true;
                let gone = DestinationFailure::process_ended(guest);
                return Ok((DestinationEvent::GuestFailed, Some(gone)));
            }
            if let Some(postcopy) = &mut self.postcopy {
                postcopy.name_threads(guest);
            }
        }
    }

    /// Waits for an event for up to `wait`.
    pub(crate) fn observe(&mut self, wait: Duration) -> Observation {
        let stage = self.handover.stage();
        if stage == DestinationStage::Running && self.guest.resumed && self.missing_pages() == 0 {
            return Observation::Event(DestinationEvent::AllPagesReceived, None);
        }
        if let Some(event) = self.connection.pending.take() {
            return self.handle_event(event);
        }
        let late = self
            .connection
            .deadline
            .is_some_and(|at| Instant::now() >= at);
        let cancelled = self.control.cancel.is_cancelled();
        match &self.links {
            // Its answer, or the message to it, was lost: the next connection settles it.
            LinkState::Up(_) if late => {
                let slow = DestinationFailure::Link {
                    doing: "waiting for the source's last message",
                    cause: LinkError::TooSlow,
                };
                Observation::Event(DestinationEvent::LinkLost, Some(slow))
            }
            LinkState::Down(_) if late || cancelled => {
                let lost = self.connection.lost.take();
                Observation::Stop(lost.unwrap_or(DestinationFailure::Cancelled))
            }
            LinkState::Up(_)
                if stage == DestinationStage::Running && self.control.cancel.take() =>
            {
                // Handled: an operator who wants to stop although the links are lost asks again.
                self.control.observer.notice(
                    "the guest runs here already and some of its pages are still at the source: not \
                     stopping before they have arrived",
                );
                Observation::Event(DestinationEvent::Cancelled, None)
            }
            LinkState::Up(_) if cancelled && !self.connection.cancel_handled => {
                self.connection.cancel_handled = true;
                Observation::Event(DestinationEvent::Cancelled, None)
            }
            LinkState::Up(_) => self.observe_links(wait),
            LinkState::Down(channel) => {
                if let Some(event) = channel.next_within(Duration::ZERO) {
                    return self.handle_event(event);
                }
                match self.incoming.recv_timeout(wait) {
                    Ok(link) => self.accept_connection(link),
                    Err(RecvTimeoutError::Timeout) => Observation::Nothing,
                    Err(RecvTimeoutError::Disconnected) => {
                        Observation::Stop(DestinationFailure::listener_failed())
                    }
                }
            }
        }
    }

    fn observe_links(&mut self, wait: Duration) -> Observation {
        let LinkState::Up(links) = &mut self.links else {
            return Observation::Nothing;
        };
        // Messages that the source sent before it connected again come first.
        if let Some(event) = links.session.next_within(Duration::ZERO) {
            return self.handle_event(event);
        }
        if let Ok(link) = self.incoming.try_recv() {
            return self.accept_connection(link);
        }
        if let Some(event) = links.session.next_within(wait) {
            return self.handle_event(event);
        }
        let waited = |(_, at): &mut (_, Instant)| at.elapsed() >= REASON_TIMEOUT;
        match links.failed.take_if(waited) {
            Some((failure, _)) => Observation::Event(DestinationEvent::LinkLost, Some(failure)),
            None => Observation::Nothing,
        }
    }

    /// Handles a new connection.
    fn accept_connection(&mut self, link: AcceptedLink) -> Observation {
        if link.id != self.handover.record().id {
            // It was accepted before this migration began.
            tracing::warn!(
                peer = link.peer,
                "connection rejected: another migration is under way"
            );
            return Observation::Nothing;
        }
        if link.role != Role::Control {
            tracing::debug!(role = %link.role, "a link of a connection that has ended");
            return Observation::Nothing;
        }
        let peer = link.peer.clone();
        match self.receive_resume_request(link) {
            Ok((source, stage)) => {
                // The source would not connect again if its other links still worked.
                self.lose_links(Some(DestinationFailure::Link {
                    doing: LISTENING,
                    cause: LinkError::Closed,
                }));
                self.connection.reconnected = Some(source);
                self.control
                    .observer
                    .notice(&format!("the source has reconnected, from {peer}"));
                Observation::Event(DestinationEvent::Connected(stage), None)
            }
            Err(failure) => {
                tracing::warn!(peer, error = %Report::new(&failure), "connection rejected");
                Observation::Nothing
            }
        }
    }

    /// Handles an event of the links' threads.
    fn handle_event(&mut self, event: DestinationSessionEvent) -> Observation {
        match event {
            DestinationSessionEvent::AllReceived | DestinationSessionEvent::GuestCallReturned => {
                Observation::Nothing
            }
            DestinationSessionEvent::Message(ToDestination::Commit) => {
                self.context.set_committed();
                if let LinkState::Up(links) = &mut self.links {
                    links.session.set_committed();
                }
                self.connection.committed = true;
                Observation::Event(DestinationEvent::Commit, None)
            }
            DestinationSessionEvent::Message(ToDestination::Cancel { reason }) => {
                let cause = DestinationFailure::CancelledBySource(reason);
                Observation::Event(DestinationEvent::CancelledBySource, Some(cause))
            }
            DestinationSessionEvent::Message(ToDestination::Goodbye) => {
                Observation::Event(DestinationEvent::Goodbye, None)
            }
            DestinationSessionEvent::Message(ToDestination::MemoryLost { reason }) => {
                self.source_memory_lost(reason)
            }
            DestinationSessionEvent::Message(other) => {
                let unexpected = DestinationFailure::unexpected("waiting for the source", &other);
                Observation::Event(DestinationEvent::LinkLost, Some(unexpected))
            }
            DestinationSessionEvent::Failed(failure) if failure.is_end_of_guest() => {
                Observation::Event(DestinationEvent::GuestFailed, Some(failure))
            }
            DestinationSessionEvent::Failed(failure) if failure.is_about_links() => {
                self.handle_link_failure(failure)
            }
            DestinationSessionEvent::Failed(failure) => Observation::Stop(failure),
        }
    }

    /// Pages that may be missing here were lost at the source.
    pub(crate) fn source_memory_lost(&self, reason: String) -> Observation {
        match self.handover.stage() {
            DestinationStage::Running if self.missing_pages() > 0 => {
                Observation::Stop(DestinationFailure::SourceMemoryLost(reason))
            }
            // It never ran here, and must not with pages missing.
            DestinationStage::Ready => {
                let cause = DestinationFailure::SourceEnded;
                Observation::Event(DestinationEvent::CancelledBySource, Some(cause))
            }
            _ => Observation::Nothing,
        }
    }

    fn handle_link_failure(&mut self, failure: DestinationFailure) -> Observation {
        let LinkState::Up(links) = &mut self.links else {
            return Observation::Nothing;
        };
        match &failure {
            // The end of another link may be seen before the source's last message on the control
            // link, and that message decides.
            DestinationFailure::Link { doing, cause } if *doing != LISTENING && cause.is_end() => {
                links.failed.get_or_insert((failure, Instant::now()));
                Observation::Nothing
            }
            _ => {
                let first = links.failed.take().map(|(failure, _)| failure);
                let cause = first.unwrap_or(failure);
                Observation::Event(DestinationEvent::LinkLost, Some(cause))
            }
        }
    }
}
