//! The first bytes on every link, and what the two sides agree on.

mod hello;
mod migration_id;
mod negotiate;
mod versions;

pub use hello::{CHALLENGE_LEN, Features, HELLO_LEN, Hello, HelloError, Role};
pub use migration_id::MigrationId;
pub use negotiate::{NegotiationError, negotiate};
pub use versions::Versions;
