//! Post-copy at the source: page requests are answered, all other pages are pushed.

pub(crate) mod answer_requests;
mod prepared;
pub(crate) mod push_policy;
pub(crate) mod pusher;
mod request_queue;

pub(crate) use prepared::PreparedPostcopy;
