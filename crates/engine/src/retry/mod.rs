//! Lost links: how long a side tries to reconnect, and how often.

mod budget;
mod retry_for;

pub(crate) use budget::RetryBudget;
pub use retry_for::RetryFor;
