//! Post-copy at the source: page requests are answered, all other pages are pushed.

pub(crate) mod push_policy;
pub(crate) mod pusher;
pub(crate) mod request_queue;
pub(crate) mod urgent;
