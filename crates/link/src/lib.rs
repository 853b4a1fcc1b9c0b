//! The connections of one migration and how they share a network.
//!
//! A migration has one **control** link (messages), one **urgent** link (page
//! requests one way, the pages they ask for the other way, nothing else) and
//! **background** links (pages nobody asked for). Each is a stream socket of
//! its own, so that none can stand in another's way; each begins with a
//! [`Hello`](hikkoshi_wire::Hello) that binds it to its migration by an
//! unguessable id.

mod accept;
mod connect;
mod flow;
mod stream;
mod sync;
pub mod tls;

pub use accept::{Incoming, Listener, WaitEnded, WaitLimit};
pub use connect::{Address, AddressError, HandshakeError, Remote, ResolveError, hello, open};
pub use flow::{Answering, BackgroundSender, Pace, UrgentActivity};
pub use stream::{
    LinkError, LinkReader, LinkWriter, PEER_TIMEOUT, Stream, TICK, TrafficClass, split,
};
