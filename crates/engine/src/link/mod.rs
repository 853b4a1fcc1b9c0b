//! The connections of one migration and how they share a network.
//!
//! A migration has one **control** link (messages), one **urgent** link (page
//! requests one way, the pages they ask for the other way, nothing else) and
//! **background** links (pages nobody asked for). Each is a stream socket of
//! its own, so that none can stand in another's way; each begins with a
//! [`Hello`](hikkoshi_wire::Hello) that binds it to its migration by an
//! unguessable id.

mod address;
mod background;
mod capacity;
mod framed;
mod handshake;
mod hellos;
mod listener;
mod mark;
mod mentions;
mod pace;
mod reader;
mod remote;
pub mod secure;
mod spin;
mod stream;
mod unreached;
mod urgency;
mod waiting;
mod window;
mod writer;

pub use address::{Address, AddressError, ResolveError};
pub use background::BackgroundSender;
pub(crate) use framed::TICK;
pub use framed::{LinkError, split};
pub use handshake::{HandshakeError, hello, open};
pub use listener::{Incoming, Listener};
pub use mark::Mark;
pub use pace::Pace;
pub use reader::LinkReader;
pub use remote::Remote;
pub use stream::{PEER_TIMEOUT, Stream};
pub use urgency::{Answering, Urgency};
pub use waiting::{WaitOver, Waiting};
pub use window::{Wait, Window};
pub use writer::LinkWriter;
