//! The connections to the source: used, lost, and waited for.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_handover::DestinationStage;
use hikkoshi_link::LinkError;

use crate::destination::error::DestinationFailure;
use crate::destination::handover_driver::HandoverDriver;
use crate::destination::last_message::last_message;
use crate::destination::session::{Channel, DestinationSession, LISTENING};

/// The connections to the source.
#[derive(Debug)]
pub(crate) enum LinkState {
    /// There are links.
    Up(Box<ActiveLinks>),
    /// There are none. Events of other threads still arrive.
    Down(Channel),
}

/// Why the links were lost, if they were.
pub(crate) type LostLinks = Option<DestinationFailure>;

/// Links, and the threads that receive on them.
#[derive(Debug)]
pub(crate) struct ActiveLinks {
    pub(crate) session: DestinationSession,
    pub(crate) receivers: Vec<JoinHandle<()>>,
    /// A link that has failed, and when. The source's last message may still arrive on the control
    /// link.
    pub(crate) failed: Option<(DestinationFailure, Instant)>,
}

impl ActiveLinks {
    pub(crate) fn new(session: DestinationSession, receivers: Vec<JoinHandle<()>>) -> Self {
        Self {
            session,
            receivers,
            failed: None,
        }
    }
}

impl HandoverDriver<'_> {
    /// Uses the links of a source that has reconnected and was answered.
    pub(crate) fn set_links(&mut self, links: ActiveLinks) {
        self.links = LinkState::Up(Box::new(links));
        self.retry_budget.back(Instant::now());
        self.connection.deadline = None;
        self.connection.lost = None;
        self.connection.cancel_handled = false;
    }

    /// Closes the links, if there are any, and starts to wait for a new connection.
    pub(crate) fn lose_links(&mut self, cause: Option<DestinationFailure>) {
        self.connection.reconnected = None;
        self.connection.committed = false;
        let stage = self.handover.stage();
        let wait = self.time_to_wait(stage);
        if matches!(self.links, LinkState::Down(_)) {
            // A declined guest was released first, and the links with it. The wait for its source
            // begins here.
            if self.connection.deadline.is_some() && stage == DestinationStage::Declined {
                self.connection.deadline = Some(Instant::now() + wait);
            }
            return;
        }
        let lost = cause.unwrap_or(DestinationFailure::Link {
            doing: LISTENING,
            cause: LinkError::Closed,
        });
        if let LinkState::Up(links) = &mut self.links
            && stage != DestinationStage::Declined
        {
            links.session.send_last(&last_message(&lost));
        }
        let last_data = match &self.links {
            LinkState::Up(links) => links.session.last_data(),
            LinkState::Down(_) => None,
        };
        self.close_links();
        let deadline = Instant::now() + wait;
        let outages = &self.context.live.outages;
        outages.begin(last_data, Some(deadline));
        self.connection.deadline = Some(deadline);
        if !wait.is_zero() {
            let guest = match stage {
                DestinationStage::Running => "the guest keeps running here with the pages it has",
                DestinationStage::Complete => self.complete_guest(),
                DestinationStage::Declined => {
                    "the guest was not run here, and the source may not know that yet"
                }
                _ => "the guest is paused",
            };
            self.control.observer.notice(&format!(
                "{}; {guest}, and nothing is lost. Waiting for the source for {} s",
                Report::new(&lost),
                wait.as_secs_f32()
            ));
        }
        self.connection.lost = Some(lost);
    }

    /// How long to wait for the source after links were lost in `stage`.
    fn time_to_wait(&mut self, stage: DestinationStage) -> Duration {
        let wait = self.retry_budget.lost(Instant::now());
        if stage == DestinationStage::Ready {
            wait.max(self.options.retry_for.at_ready())
        } else {
            wait
        }
    }

    /// Closes the links and waits for their threads.
    pub(crate) fn close_links(&mut self) {
        let closed = match &mut self.links {
            LinkState::Down(_) => return,
            LinkState::Up(_) => LinkState::Down(Channel::closed()),
        };
        let LinkState::Up(links) = std::mem::replace(&mut self.links, closed) else {
            return;
        };
        if let Some(postcopy) = &self.postcopy {
            postcopy.set_request_link(None);
            let memory = postcopy.installer().copier.memory_pressure();
            memory.interrupt(true);
        }
        let (channel, pending) = links.session.end(links.receivers);
        if let Some(postcopy) = &self.postcopy {
            let memory = postcopy.installer().copier.memory_pressure();
            memory.interrupt(false);
        }
        self.links = LinkState::Down(channel);
        self.connection.pending = self.connection.pending.take().or(pending);
    }
}
