//! What happens: on the links, at the door, and by the clock.

use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use hikkoshi_wire::{Capabilities, Role, ToDestination};

use crate::destination::error::DestinationFailure;
use crate::destination::handover::abort::{REASON_TIMEOUT, parting};
use crate::destination::handover::{HandoverDriver, Link, Observation};
use crate::destination::no_door;
use crate::destination::session::{Channel, Event, LISTENING};
use hikkoshi_handover::{DestinationEvent, DestinationStage};
use hikkoshi_link::{Incoming, LinkError};

impl HandoverDriver<'_> {
    /// Looks around for up to `wait`.
    pub(crate) fn look(&mut self, wait: Duration) -> Observation {
        let stage = self.machine.stage();
        if stage == DestinationStage::Running && self.state.settled && self.left() == 0 {
            return Observation::Event(DestinationEvent::AllPagesReceived, None);
        }
        if let Some(event) = self.state.serious.take() {
            return self.happened(event);
        }
        let late = self.state.until.is_some_and(|at| Instant::now() >= at);
        let cancelled = self.watch.cancel.is_cancelled();
        match &mut self.link {
            // Its answer, or what was said to it, was lost on the way: the next
            // connection settles it.
            Link::Up(_) if late => {
                let slow = DestinationFailure::Link {
                    doing: "waiting for the source's last word",
                    cause: LinkError::TooSlow,
                };
                Observation::Event(DestinationEvent::LinkLost, Some(slow))
            }
            Link::Down(_) if late || cancelled => {
                let lost = self.state.lost.take();
                Observation::Over(lost.unwrap_or(DestinationFailure::Cancelled))
            }
            Link::Up(_) if stage == DestinationStage::Running && self.watch.cancel.take() => {
                // Answered: who means it though the links are lost says so again.
                self.watch.observer.notice(
                    "the guest runs here already and pages of it are still at the source: not \
                     stopping before they are here",
                );
                Observation::Event(DestinationEvent::Cancelled, None)
            }
            Link::Up(_) if cancelled && !self.state.told => {
                self.state.told = true;
                Observation::Event(DestinationEvent::Cancelled, None)
            }
            Link::Up(line) => {
                // What the source said before it made another connection comes first.
                if let Some(event) = line.session.next_within(Duration::ZERO) {
                    return self.happened(event);
                }
                if let Ok(link) = self.incoming.try_recv() {
                    return self.knocked(link);
                }
                if let Some(event) = line.session.next_within(wait) {
                    return self.happened(event);
                }
                let over = |(_, at): &mut (_, Instant)| at.elapsed() >= REASON_TIMEOUT;
                match line.failed.take_if(over) {
                    Some((failure, _)) => {
                        Observation::Event(DestinationEvent::LinkLost, Some(failure))
                    }
                    None => Observation::Nothing,
                }
            }
            Link::Down(channel) => {
                if let Some(event) = channel.next_within(Duration::ZERO) {
                    return self.happened(event);
                }
                match self.incoming.recv_timeout(wait) {
                    Ok(link) => self.knocked(link),
                    Err(RecvTimeoutError::Timeout) => Observation::Nothing,
                    Err(RecvTimeoutError::Disconnected) => Observation::Over(no_door()),
                }
            }
        }
    }

    /// A connection of this migration.
    pub(crate) fn knocked(&mut self, link: Incoming) -> Observation {
        if link.id != self.machine.record().id {
            // It was let in when nothing was under way.
            tracing::warn!(
                peer = link.peer,
                "turned away: another migration is under way"
            );
            return Observation::Nothing;
        }
        if link.role != Role::Control {
            tracing::debug!(role = %link.role, "a link of a connection that is gone");
            return Observation::Nothing;
        }
        let peer = link.peer.clone();
        match self.meet(link) {
            Ok((met, stage)) => {
                // The source would not come if it still had the others.
                self.go_down(Some(DestinationFailure::Link {
                    doing: LISTENING,
                    cause: LinkError::Closed,
                }));
                self.state.met = Some(met);
                self.watch
                    .observer
                    .notice(&format!("the source is there again, from {peer}"));
                Observation::Event(DestinationEvent::Connected(stage), None)
            }
            Err(failure) => {
                tracing::warn!(peer, %failure, "turned away");
                Observation::Nothing
            }
        }
    }

    pub(crate) fn happened(&mut self, event: Event) -> Observation {
        let doing = "waiting for the source";
        match event {
            Event::AllReceived => Observation::Nothing,
            Event::Said(ToDestination::Commit) => {
                if let Link::Up(line) = &mut self.link {
                    line.session.committed();
                }
                self.state.committed_here = true;
                Observation::Event(DestinationEvent::Commit, None)
            }
            Event::Said(ToDestination::Cancel { reason }) => {
                let cause = DestinationFailure::CalledOff(reason);
                Observation::Event(DestinationEvent::CancelledBySource, Some(cause))
            }
            Event::Said(ToDestination::Goodbye) => {
                Observation::Event(DestinationEvent::Goodbye, None)
            }
            Event::Said(other) => {
                let odd = DestinationFailure::unexpected(doing, &other);
                Observation::Event(DestinationEvent::LinkLost, Some(odd))
            }
            Event::Failed(failure) if failure.is_end_of_guest() => {
                Observation::Event(DestinationEvent::GuestFailed, Some(failure))
            }
            Event::Failed(failure) if failure.is_about_links() => self.link_failed(failure),
            Event::Failed(failure) => Observation::Over(failure),
        }
    }

    pub(crate) fn link_failed(&mut self, failure: DestinationFailure) -> Observation {
        let Link::Up(line) = &mut self.link else {
            return Observation::Nothing;
        };
        match &failure {
            // Another link's end may be seen before what the source said last on
            // the control link, and that decides.
            DestinationFailure::Link { doing, cause } if *doing != LISTENING && cause.is_end() => {
                line.failed.get_or_insert((failure, Instant::now()));
                Observation::Nothing
            }
            _ => {
                let first = line.failed.take().map(|(failure, _)| failure);
                Observation::Event(DestinationEvent::LinkLost, Some(first.unwrap_or(failure)))
            }
        }
    }

    /// Ends the links, if there are any. From here on it is waited for new ones.
    pub(crate) fn go_down(&mut self, cause: Option<DestinationFailure>) {
        self.state.met = None;
        self.state.committed_here = false;
        let patience = if self.capabilities.contains(Capabilities::RECOVERY) {
            let patience = self.retry_budget.lost(Instant::now());
            if self.machine.stage() == DestinationStage::Ready {
                patience.max(self.options.retry_for.at_ready())
            } else {
                patience
            }
        } else {
            Duration::ZERO
        };
        if matches!(self.link, Link::Down(_)) {
            // A declined guest was let go of first, and the links with it: from
            // here on its source is waited for as long as any.
            if self.state.until.is_some() && self.machine.stage() == DestinationStage::Declined {
                self.state.until = Some(Instant::now() + patience);
            }
            return;
        }
        let lost = cause.unwrap_or(DestinationFailure::Link {
            doing: LISTENING,
            cause: LinkError::Closed,
        });
        let stage = self.machine.stage();
        if let Link::Up(line) = &mut self.link
            && stage != DestinationStage::Declined
        {
            line.session.part(&parting(&lost));
        }
        self.hang_up();
        self.state.until = Some(Instant::now() + patience);
        if !patience.is_zero() {
            let guest = match stage {
                DestinationStage::Running => "the guest runs on here with the pages that it has",
                DestinationStage::Complete if self.state.shut_down => {
                    "the guest has shut itself down here"
                }
                DestinationStage::Complete => "the guest runs here, and all of it is here",
                DestinationStage::Declined => {
                    "the guest was not run here, and the source may not know that yet"
                }
                _ => "the guest is paused",
            };
            self.watch.observer.notice(&format!(
                "{lost}; {guest}, and nothing is lost. Waiting for the source for {} s",
                patience.as_secs_f32()
            ));
        }
        self.state.lost = Some(lost);
    }

    /// Ends the links and waits for their threads.
    pub(crate) fn hang_up(&mut self) {
        let channel = match &mut self.link {
            Link::Down(_) => return,
            Link::Up(_) => Link::Down(Channel::closed()),
        };
        let Link::Up(line) = std::mem::replace(&mut self.link, channel) else {
            return;
        };
        if let Some(faulting) = &self.faulting {
            faulting.ask(None);
            faulting
                .installer()
                .copier
                .memory_pressure()
                .interrupt(true);
        }
        let (channel, serious) = line.session.end(line.receivers);
        if let Some(faulting) = &self.faulting {
            faulting
                .installer()
                .copier
                .memory_pressure()
                .interrupt(false);
        }
        self.link = Link::Down(channel);
        self.state.serious = self.state.serious.take().or(serious);
    }
}
