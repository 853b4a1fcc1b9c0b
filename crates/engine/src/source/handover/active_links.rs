//! The links to a destination, and the threads that work on them.

use std::sync::Arc;

use hikkoshi_link::BackgroundSender;

use crate::source::postcopy::PreparedPostcopy;
use crate::source::postcopy::push_policy::PushPolicy;
use crate::source::postcopy::pusher::Pushers;
use crate::source::postcopy::urgent::UrgentThread;
use crate::source::session::Session;

/// Connections to a destination, and the threads that work on them.
#[derive(Debug)]
pub(crate) struct ActiveLinks {
    pub(crate) session: Session,
    urgent: Option<UrgentThread>,
    /// What the rest is pushed on, before it is.
    pub(crate) idle: Option<(Vec<BackgroundSender>, Arc<PushPolicy>)>,
    pub(crate) pushers: Option<Pushers>,
    /// What it is to bring was counted before its first page.
    pub(crate) progress_begun: bool,
}

impl ActiveLinks {
    pub(crate) fn new(session: Session, postcopy: Option<PreparedPostcopy>) -> Self {
        let (urgent, idle) = match postcopy {
            Some(PreparedPostcopy {
                urgent,
                links,
                policy,
            }) => (Some(urgent), Some((links, policy))),
            None => (None, None),
        };
        Self {
            session,
            urgent,
            idle,
            pushers: None,
            progress_begun: false,
        }
    }

    /// Ends the links, and waits for the threads.
    pub(crate) fn end(mut self) {
        self.session.close();
        if let Some(pushers) = self.pushers {
            pushers.join();
        }
        if let Some(urgent) = self.urgent {
            urgent.join();
        }
    }
}
