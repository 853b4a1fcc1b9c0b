//! How fast background pages are sent, so that urgent pages do not wait behind them.

mod background;
mod capacity;
mod pace;
mod urgency;
mod window;

pub use background::BackgroundSender;
pub use pace::Pace;
pub use urgency::{Answering, Urgency};
pub use window::{Wait, Window};
