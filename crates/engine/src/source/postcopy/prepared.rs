//! Post-copy before the guest runs at the destination.

use std::sync::Arc;

use hikkoshi_link::{BackgroundSender, LinkReader, LinkWriter};

use crate::source::context::MigrationContext;
use crate::source::error::SourceFailure;
use crate::source::postcopy::answer_requests::RequestAnswerer;
use crate::source::postcopy::push_policy::PushPolicy;
use crate::source::session::SourceSession;
use crate::source::unsent::UnsentPages;

/// Post-copy before the guest runs: requests are answered, nothing is pushed.
#[derive(Debug)]
pub(crate) struct PreparedPostcopy {
    /// Answers page requests.
    pub(crate) urgent: RequestAnswerer,
    /// The background links, not used yet.
    pub(crate) links: Vec<BackgroundSender>,
    /// The order in which pages are pushed.
    pub(crate) policy: Arc<PushPolicy>,
}

impl PreparedPostcopy {
    /// Starts to answer page requests on the urgent link. The background links
    /// stay idle.
    pub(crate) fn start(
        shared: &MigrationContext,
        session: &SourceSession,
        urgent: (LinkReader, LinkWriter),
        links: Vec<BackgroundSender>,
        unsent: &Arc<UnsentPages>,
    ) -> Result<Self, SourceFailure> {
        let policy = Arc::new(PushPolicy::new(links.len()));
        let weak = Arc::<UnsentPages>::downgrade(unsent);
        shared.live.note_missing(weak);
        Ok(Self {
            urgent: RequestAnswerer::start(shared, session, urgent, unsent, &policy)?,
            links,
            policy,
        })
    }
}
