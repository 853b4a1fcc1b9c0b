//! The destination's side of new connections: a listener with limits on the number and the duration
//! of handshakes, and on the log messages about them.

mod front;
mod handed;
mod listener;
mod log_limit;
mod pending;
mod wait_limit;

pub use front::{Arrival, Front, RejectionLog, RoutedConnection};
pub use handed::hand_over;
pub use listener::Listener;
pub use wait_limit::{WaitEnded, WaitLimit};
