//! As much of the NBD protocol as hikkoshi needs: which requests of the source's QEMU have no
//! answer yet ([`NbdRequests`]), and a client that flushes a disk of the destination's QEMU
//! ([`FlushClient`]).
//!
//! The numbers are those of the protocol's specification (*proto.md* of the project *nbd*), with
//! all formats of requests and answers that QEMU 7.2 to 10.0 negotiate: simple, structured, and
//! extended headers.

mod flush_client;
mod framing;
mod requests;

pub(crate) use flush_client::{FlushClient, FlushError};
pub(crate) use requests::NbdRequests;

use crate::qmp::Version;

/// The first QEMU whose limit for the setup of a connection, 10 s, can be changed. Older ones have
/// none, or, if they were mended, one that cannot be.
pub(crate) const HANDSHAKE_LIMIT_SINCE: Version = Version::new(10, 0, 0);

/// `NBDMAGIC` and `IHAVEOPT`: the beginning of the server's greeting.
const GREETING: [u8; 16] = *b"NBDMAGICIHAVEOPT";

/// The greeting and the handshake flags of the server (`u16`).
const GREETING_LEN: usize = 18;

/// The beginning of an option.
const OPTION_MAGIC: [u8; 8] = *b"IHAVEOPT";

/// Requests: those with a length of 32 bits, and of 64 (extended headers).
const REQUEST: u32 = 0x2560_9513;
const EXTENDED_REQUEST: u32 = 0x21e4_1c71;

/// Answers: simple, in structured chunks, in chunks with extended headers.
const SIMPLE_REPLY: u32 = 0x6744_6698;
const STRUCTURED_REPLY: u32 = 0x668e_33ef;
const EXTENDED_REPLY: u32 = 0x6e8a_278c;

/// The kinds of requests.
const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
const FLUSH: u16 = 3;
