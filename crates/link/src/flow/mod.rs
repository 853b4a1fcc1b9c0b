//! Flow control of background links: how fast they send, so that urgent pages do not wait behind
//! background pages.

mod background;
mod bandwidth;
mod capacity;
mod rate_limit;
mod urgent_activity;
mod window;

pub use background::BackgroundSender;
pub use bandwidth::Bandwidth;
pub use rate_limit::RateLimit;
pub use urgent_activity::{Answering, UrgentActivity};
