//! The HTTP server.
//!
//! One thread serves all connections (tokio, hyper); a few others make large responses. It answers
//! GET and HEAD, and no request has an effect. What a client can use is bounded ([`Limits`]).
//!
//! | path | what |
//! |---|---|
//! | `/` and the page's files | the page |
//! | `/events` | changes, as Server-Sent Events |
//! | `/api/migrations` | the migrations, in short |
//! | `/api/migrations/NAME` | the recording of one |
//! | `/report/NAME.html` | the report of one, with both sides if both are here |
//! | `/metrics` | metrics for Prometheus |

mod allowed_hosts;
mod events;
mod fetch_metadata;
mod large;
mod limits;
mod listen;
mod respond;
mod routes;
mod serve;
mod write_timeout;

pub use allowed_hosts::{AllowedHost, InvalidHost};
pub use limits::Limits;
pub use listen::{InvalidListen, Listen};
pub use serve::{BindError, Options, RunError, Server};
