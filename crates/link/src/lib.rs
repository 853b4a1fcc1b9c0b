//! The network links of one migration: how they are set up, protected and paced.
//!
//! # Model
//!
//! The destination listens ([`Listener`]); the source connects ([`open`]). A migration has these
//! links, each with a socket of its own, so that data on one link never delays another:
//!
//! * one **control** link, for messages;
//! * one **urgent** link, for page requests in one direction and the requested pages in the other,
//!   nothing else;
//! * **background** links, for pages that the destination has not requested;
//! * a link for network frames, and one for each disk that is copied.
//!
//! Each link starts with a [`Hello`](hikkoshi_wire::Hello) from each side. It carries the
//! migration's random id, which binds the link to the migration.
//!
//! * `accept/`: the destination's listener: limits the number of pending handshakes, the log output
//!   and the time to wait for a source; and the front of several destinations on one port;
//! * `connect/`: a destination to connect to; `link_handshake.rs`: TLS and the hello of both sides;
//! * `request_invitation/`: a source with a certificate asks a front for an invitation; `inquiry/`:
//!   a host asks a front about its host; `certified/`: the connection of both;
//! * `tls/`: TLS 1.3 with both sides authenticated, by invitation or by certificates;
//! * `stream/`: a connected socket, and the reader and the writer of frames on it;
//! * `compression/`: compression of background pages, which tunes itself;
//! * `flow/`: flow control of background links, so that an urgent page does not wait behind
//!   background pages in a queue.
//!
//! # Vocabulary
//!
//! * *Hello*: the first message of each side on a link: protocol versions, features, role,
//!   migration id.
//! * *Invitation*: the text that a destination prints for the source's operator: fingerprint,
//!   secret, address.
//! * *Pending handshake*: an accepted connection that has not completed TLS and the hello.
//! * *Window*: how many background bytes may be in flight.
//! * *Rate limit*: a limit in bytes a second.
//!
//! # What is missing
//!
//! * Without a migration under way, a flood of connections from many addresses can keep the source
//!   out: the listener cannot distinguish them before the hello (`accept/pending.rs`).
//! * Unix sockets provide no TCP_INFO. Their window in post-copy is a constant (`flow/window.rs`).
//! * A connection attempt tries the addresses of a host one after the other, not in parallel (RFC
//!   8305).

mod accept;
mod address;
mod certified;
mod compression;
mod connect;
mod flow;
mod inquiry;
mod link_handshake;
mod request_invitation;
mod stream;
mod sync;
pub mod tls;

pub use accept::{
    Arrival, Front, Listener, RejectionLog, RoutedConnection, WaitEnded, WaitLimit, hand_over,
};
pub use address::{Address, AddressError, ResolveError};
pub use certified::PeerCertificate;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub use compression::fuzzing as compression_fuzzing;
pub use compression::{
    Compression, CompressionCounters, Compressor, DecompressError, Decompressor, MethodCounters,
};
pub use connect::Remote;
pub use flow::{Answering, BackgroundSender, Bandwidth, RateLimit, UrgentActivity};
pub use inquiry::{Inquiry, InquiryError, MAX_ANSWER, inquire};
pub use link_handshake::{Agreed, HandshakeError, hello, open};
pub use request_invitation::{InvitationRequest, KeptRequest, RequestError, request_invitation};
pub use stream::{
    AcceptedLink, DEFAULT_STALL_TIMEOUT, LinkError, LinkReader, LinkWriter, Stream, TICK, split,
};
