//! Flow control of background links: how fast they send, so that urgent pages do not wait behind
//! background pages.

mod background;
mod capacity;
mod pace;
mod urgent_activity;
mod window;

pub use background::BackgroundSender;
pub use pace::Pace;
pub use urgent_activity::{Answering, UrgentActivity};
