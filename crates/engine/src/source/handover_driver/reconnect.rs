//! Connects again after the links were lost, within the retry budget.

use std::thread;
use std::time::Instant;

use error_reporter::Report;
use hikkoshi_handover::SourceEvent;
use hikkoshi_link::{LinkError, TICK};

use crate::report::last_sign_before;
use crate::source::error::{MigrateError, SourceFailure};
use crate::source::handover_driver::HandoverDriver;
use crate::source::handover_driver::event_with_cause::DOING;
use crate::source::handover_driver::links::ActiveLinks;
use crate::source::postcopy::PreparedPostcopy;
use crate::source::session::SourceSession;

impl HandoverDriver<'_> {
    /// Closes the links and tries to connect again, for as long as the retry
    /// budget allows.
    pub(crate) fn reconnect(
        &mut self,
        cause: Option<SourceFailure>,
        restarted: bool,
    ) -> Result<SourceEvent, MigrateError> {
        let active = self.active.take();
        let last_sign = active
            .as_ref()
            .and_then(|active| active.session.last_sign());
        if let Some(active) = active {
            active.end();
        }
        let budget = self.retry_budget.lost(Instant::now());
        let deadline = Instant::now() + budget;
        let lost = cause.unwrap_or(SourceFailure::Link {
            doing: DOING,
            cause: LinkError::Closed,
        });
        if budget.is_zero() && !restarted {
            return Err(self.interrupted(lost));
        }
        if !restarted {
            self.shared.observer.notice(&format!(
                "{}; nothing is lost. Reconnecting to the destination at {} for up to {} s",
                Report::new(&lost),
                self.remote.address,
                budget.as_secs_f32()
            ));
        }
        let outages = &self.shared.live.outages;
        let before = || last_sign_before(&self.shared.live, &*self.shared.observer);
        let last_sign = last_sign.or_else(|| before().filter(|_| restarted));
        outages.begin(last_sign, Some(deadline));
        let mut last_notice = String::new();
        loop {
            self.pause();
            let failure = match self.connect() {
                Ok(event) => {
                    self.retry_budget.back(Instant::now());
                    self.shared.live.outages.end();
                    self.shared
                        .observer
                        .notice("reconnected to the destination; the migration continues");
                    return Ok(event);
                }
                // Trying again would not bring it back.
                Err(failure) if self.is_memory_lost(&failure) => {
                    return Err(self.memory_lost(failure));
                }
                Err(failure) => failure,
            };
            if self.shared.cancel.is_cancelled() || Instant::now() >= deadline {
                return Err(self.interrupted(if restarted {
                    failure
                } else {
                    SourceFailure::ReconnectTimedOut {
                        lost: Box::new(lost),
                        since: Box::new(failure),
                    }
                }));
            }
            // Reported at once: it may be something that the operator can fix.
            let text = Report::new(&failure).to_string();
            if text != last_notice {
                self.shared
                    .observer
                    .notice(&format!("still reconnecting: {text}"));
                last_notice = text;
            }
        }
    }

    /// Pauses before another attempt.
    fn pause(&mut self) {
        let pause = self.retry_budget.pause();
        let until = Instant::now() + pause;
        while Instant::now() < until && !self.shared.cancel.is_cancelled() {
            thread::sleep(TICK.min(pause));
        }
    }

    /// Makes one attempt to connect.
    fn connect(&mut self) -> Result<SourceEvent, SourceFailure> {
        let stage = self.handover.stage();
        let id = self.handover.record().id;
        let (mut session, links, there) =
            SourceSession::resume(self.shared, self.remote, id, stage, &self.unsent)?;
        if let Some(what) = session.left_to_do.take() {
            self.keep_left_to_do(what);
        }
        let progress_begun = session.urgent.is_some();
        if progress_begun {
            // Before a page is sent: this is the number of missing pages.
            let total = self.handover.record().history.missing_pages;
            let missing = self.unsent.count();
            self.shared.progress.resume_postcopy(missing, total);
        }
        let postcopy = match session.urgent.take() {
            None => None,
            Some(ends) => Some(PreparedPostcopy::start(
                self.shared,
                &session,
                ends,
                links,
                &self.unsent,
            )?),
        };
        let mut active = ActiveLinks::new(session, postcopy);
        active.progress_begun = progress_begun;
        self.active = Some(active);
        Ok(SourceEvent::Connected(there))
    }
}
