//! The relay between the two engines: passes all messages on, up to a chosen breakpoint. It cannot
//! read encrypted links and has no breakpoints in them.

mod breakpoint;
mod message;
mod policy;
mod sent_pages;

pub use breakpoint::{Breakpoint, When};
pub use message::MessageKind;
pub use sent_pages::SentPages;

use crate::unique_address;
use hikkoshi_lab::relay::{self, Carries};
use policy::BreakpointPolicy;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// What the relay does at its breakpoint.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RelayAction {
    /// Closes every link, and accepts no new ones.
    Cut,
    /// Closes every link, and accepts new ones.
    Reset,
    /// Holds further messages of that direction on that link, and the closing of all links, until
    /// [`Relay::release`]. After a message it also holds the other direction of that link, and the
    /// pages of all links: an answer, or the last pages, would continue the migration before the
    /// test has injected its fault.
    Hold,
}

/// A relay: the source connects to it, and it connects to the destination.
#[derive(Debug)]
pub struct Relay {
    relay: relay::Relay,
    policy: Arc<BreakpointPolicy>,
}

impl Relay {
    /// Listens at a unix socket (`at`) or at a unique TCP address, and connects links to
    /// `destination`, an address in `hikkoshi`'s format. Delays each message of the kind in
    /// `delay`. Encrypted links (`encrypted`) can have neither a breakpoint nor a delay.
    ///
    /// # Panics
    /// When it cannot listen, or `encrypted` is combined with a breakpoint or a delay.
    pub fn start(
        at: Option<&Path>,
        destination: &str,
        encrypted: bool,
        breakpoint: Option<(Breakpoint, RelayAction)>,
        delay: Option<(MessageKind, Duration)>,
    ) -> Self {
        assert!(!encrypted || breakpoint.is_none() && delay.is_none());
        let at = match at {
            Some(path) => format!("unix:{}", path.display()),
            None => unique_address().to_string(),
        };
        let carries = match encrypted {
            true => Carries::BYTES,
            false => Carries::Messages,
        };
        let policy = Arc::new(BreakpointPolicy::new(breakpoint, delay));
        let decides = Arc::<BreakpointPolicy>::clone(&policy);
        let relay = relay::Relay::between(&at, destination, carries, decides).unwrap();
        Self { relay, policy }
    }

    /// The address that the source connects to.
    pub fn address(&self) -> &str {
        self.relay.address()
    }

    /// Waits for the breakpoint; returns whether it was reached.
    pub(crate) fn wait_reached(&self, limit: Duration) -> bool {
        self.policy.wait_reached(limit)
    }

    /// Whether the breakpoint was reached.
    pub(crate) fn reached(&self) -> bool {
        self.policy.wait_reached(Duration::ZERO)
    }

    /// Number of messages of that kind so far.
    pub fn seen(&self, kind: MessageKind) -> u32 {
        self.policy.seen(kind)
    }

    /// The guest's memory that has passed, also after the relay has ended.
    pub fn sent_pages(&self) -> SentPages {
        self.policy.sent_pages()
    }

    /// Holds pages from now on, whatever the breakpoint. Other messages pass.
    pub fn hold_pages(&self) {
        self.policy.hold_pages();
    }

    /// Releases held messages.
    pub fn release(&self) {
        self.policy.release();
    }

    /// Closes every link, and accepts no new ones.
    pub fn cut(&self) {
        self.relay.end();
        self.policy.release();
    }

    /// Closes every link, and accepts new ones. Held messages are dropped.
    pub fn reset_links(&self) {
        self.relay.cut();
        self.policy.stop_holding();
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.cut();
    }
}
