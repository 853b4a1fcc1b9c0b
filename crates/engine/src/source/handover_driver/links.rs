//! The links to a destination, and the threads that work on them.

use std::sync::Arc;

use hikkoshi_link::BackgroundSender;

use crate::source::postcopy::PreparedPostcopy;
use crate::source::postcopy::answer_requests::RequestAnswerer;
use crate::source::postcopy::push_policy::PushPolicy;
use crate::source::postcopy::pusher::Pushers;
use crate::source::session::SourceSession;

/// The links to a destination, and the threads that work on them.
#[derive(Debug)]
pub(crate) struct ActiveLinks {
    pub(crate) session: SourceSession,
    urgent: Option<RequestAnswerer>,
    /// The background links, before the pushers are started.
    pub(crate) idle: Option<(Vec<BackgroundSender>, Arc<PushPolicy>)>,
    pub(crate) pushers: Option<Pushers>,
    /// The progress of post-copy was started before the first page was sent.
    pub(crate) progress_begun: bool,
}

impl ActiveLinks {
    pub(crate) fn new(session: SourceSession, postcopy: Option<PreparedPostcopy>) -> Self {
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

    /// Closes the links and joins the threads.
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
