//! How fast background pages are sent, so that urgent pages do not wait behind them.

mod background;
mod capacity;
mod pace;
mod urgent_activity;
mod window;

pub use background::BackgroundSender;
pub use pace::Pace;
pub use urgent_activity::{Answering, UrgentActivity};
