//! What the relay counts, holds and delays, and its breakpoint.

use super::message::{MessageKind, kind_name};
use super::sent_pages::SentPages;
use super::{Breakpoint, RelayAction, When};
use hikkoshi_lab::relay::{Fate, Part, Passing, RelayPolicy, Towards};
use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[derive(Debug)]
pub(super) struct BreakpointPolicy {
    breakpoint: Option<(Breakpoint, RelayAction)>,
    delay: Option<(MessageKind, Duration)>,
    state: Mutex<State>,
    changed: Condvar,
    sent: SentPages,
}

#[derive(Debug, Default)]
struct State {
    /// By the names of kinds.
    seen: HashMap<String, u32>,
    /// The direction of a link in which the message of the breakpoint is passing.
    breaking: Option<(u32, Towards)>,
    reached: bool,
    holding: bool,
    /// The link on which both directions are held; pages are held on all links.
    held: Option<u32>,
    released: bool,
}

impl State {
    fn is_holding(&self) -> bool {
        self.holding && !self.released
    }
}

impl BreakpointPolicy {
    pub(super) fn new(
        breakpoint: Option<(Breakpoint, RelayAction)>,
        delay: Option<(MessageKind, Duration)>,
    ) -> Self {
        Self {
            breakpoint,
            delay,
            state: Mutex::default(),
            changed: Condvar::new(),
            sent: SentPages::default(),
        }
    }

    pub(super) fn wait_reached(&self, limit: Duration) -> bool {
        let state = self.lock();
        let waited = self
            .changed
            .wait_timeout_while(state, limit, |state| !state.reached);
        waited.unwrap_or_else(PoisonError::into_inner).0.reached
    }

    pub(super) fn seen(&self, kind: MessageKind) -> u32 {
        self.lock().seen.get(&kind.name()).copied().unwrap_or(0)
    }

    pub(super) fn sent_pages(&self) -> SentPages {
        self.sent.clone()
    }

    pub(super) fn hold_pages(&self) {
        let mut state = self.lock();
        state.holding = true;
        // No link has this number, so none is held in both directions.
        state.held = Some(u32::MAX);
    }

    pub(super) fn release(&self) {
        self.lock().released = true;
        self.changed.notify_all();
    }

    pub(super) fn stop_holding(&self) {
        self.lock().holding = false;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_while<'a>(
        &self,
        state: MutexGuard<'a, State>,
        condition: impl Fn(&State) -> bool,
    ) -> MutexGuard<'a, State> {
        self.changed
            .wait_while(state, |state| condition(state))
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a message; the action if it is the one of the breakpoint.
    fn count(&self, kind: &str) -> Option<(When, RelayAction)> {
        let mut state = self.lock();
        let seen = state.seen.entry(kind.to_owned()).or_default();
        *seen += 1;
        let (at, then) = self.breakpoint?;
        (at.nth == *seen && at.kind.name() == kind).then_some((at.when, then))
    }

    fn set_reached(&self, state: &mut State) {
        state.reached = true;
        self.changed.notify_all();
    }
}

impl RelayPolicy for BreakpointPolicy {
    fn before(&self, passing: &mut Passing<'_>) -> Fate {
        let Some(kind) = kind_name(passing) else {
            return Fate::Pass;
        };
        if let (Part::Message(message), Towards::Destination) = (&passing.part, passing.towards) {
            self.sent.add(&message.frame, message.control.as_ref());
        }
        let due = self.count(&kind);
        if let Some((_, delay)) = self.delay.filter(|(delayed, _)| delayed.name() == kind) {
            std::thread::sleep(delay);
        }
        if due == Some((When::Before, RelayAction::Hold)) {
            let mut state = self.lock();
            (state.holding, state.held) = (true, None);
            self.set_reached(&mut state);
            drop(self.wait_while(state, State::is_holding));
        }
        let link = passing.link;
        let pages = [MessageKind::Pages, MessageKind::Zeros].map(MessageKind::name);
        let has_pages = pages.contains(&kind);
        let mut state = self.wait_while(self.lock(), |state| {
            state.is_holding() && (state.held == Some(link) || state.held.is_some() && has_pages)
        });
        if due.is_some() {
            state.breaking = Some((link, passing.towards));
        }
        match due {
            Some((When::Before, RelayAction::Cut)) => Fate::EndBefore,
            Some((When::Before, RelayAction::Reset)) => Fate::CutBefore,
            Some((When::After, RelayAction::Cut)) => Fate::EndAfter,
            Some((When::After, RelayAction::Reset)) => Fate::CutAfter,
            Some((When::After, RelayAction::Hold)) => {
                // From now on, so that no answer passes.
                (state.holding, state.held) = (true, Some(link));
                Fate::Pass
            }
            Some((When::Before, RelayAction::Hold)) | None => Fate::Pass,
        }
    }

    fn after(&self, passing: &Passing<'_>) {
        let mut state = self.lock();
        if state.breaking != Some((passing.link, passing.towards)) {
            return;
        }
        state.breaking = None;
        match self.breakpoint {
            Some((_, RelayAction::Cut)) => state.released = true,
            Some((_, RelayAction::Reset)) => state.holding = false,
            _ => {}
        }
        self.set_reached(&mut state);
        drop(self.wait_while(state, State::is_holding));
    }

    /// The closing of a link is held, too: the last message of an engine must reach its peer before
    /// the closing of its other links does.
    fn closing(&self) {
        drop(self.wait_while(self.lock(), State::is_holding));
    }
}
