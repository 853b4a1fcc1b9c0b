//! The destination's end of new connections: a listener that gives each peer a bounded time and
//! number of tries.

mod listener;
mod log_limit;
mod pending;
mod wait_limit;

pub use listener::{Incoming, Listener};
pub use wait_limit::{WaitEnded, WaitLimit};
