//! The migration protocol: bytes in, messages out. No sockets, no threads.
//!
//! # Model
//!
//! A migration has several **links** (connections), each with a [`Role`]:
//!
//! | link | source → destination | destination → source |
//! | --- | --- | --- |
//! | control (one) | [`ToDestination`] | [`ToSource`] |
//! | urgent (one) | urgent pages | page requests |
//! | background (any number) | background pages, zero marks | acknowledgements |
//!
//! The first bytes on every link, in both directions, are a [`Hello`] of fixed
//! size: protocol versions, capabilities, the link's role, and the migration's
//! unguessable [`MigrationId`], by which links find their migration and
//! strangers do not. [`negotiate()`] turns two of them into what both can do.
//!
//! After it come **frames**: a header of [`HEADER_LEN`] bytes and, for some, a
//! payload. [`Frame::decode`] reads a header alone, so that a receiver can read
//! the payload of a page frame from its socket straight to where it belongs:
//!
//! ```
//! use hikkoshi_pages::{Page, PageRange};
//! use hikkoshi_wire::{Frame, Limits};
//!
//! let limits = Limits { pages: 1 << 18 };
//! let range = PageRange::from_len(Page::new(7), 2);
//! // The source writes the header, then 2 * 4096 bytes of memory.
//! let header = Frame::Pages { range }.encode();
//! // The destination reads as many bytes as a header has, and then knows
//! // how many more there are and where they go.
//! let frame = Frame::decode(&header, &limits)?;
//! assert_eq!(frame, Frame::Pages { range });
//! assert_eq!(frame.payload_len(), 8192);
//! # Ok::<(), hikkoshi_wire::DecodeError>(())
//! ```
//!
//! Who would rather push bytes in as they come and take whole messages out
//! uses the [`Decoder`].
//!
//! # Course of a migration, on the control link
//!
//! ```text
//!     source                                      destination
//!       | Machine: its devices, if both know of that    |
//!       | Processors: what the guest was given          |
//!       | Begin: the guest's description, the mode      |
//!       |---------------------------------------------->|  compatible_with()
//!       |                       Differs, if that is allowed
//!       |                                Accept / Refuse|
//!       |<----------------------------------------------|
//!       |  pre-copy: pages and zero marks on the background links
//!       |  post-copy: stale pages are dropped while the guest still runs
//!       | Discard ... DiscardEnd                        |
//!       |---------------------------------------------->|
//!       |                                     Discarded |
//!       |<----------------------------------------------|
//!       |  switchover: the guest is paused              |
//!       | DeviceStateChunk ...                          |
//!       | Discard ...          (post-copy: the last few)|
//!       | Switch               (sums over all of that)  |
//!       |---------------------------------------------->|
//!       |                                Ready / Failed |
//!       |<----------------------------------------------|
//!       | Commit       (from here on it never resumes)  |
//!       |---------------------------------------------->|
//!       |                                       Resumed |
//!       |<----------------------------------------------|
//!       |  post-copy: requests and urgent pages on the urgent link,
//!       |  background pages on the others               |
//!       |                                     Measured  |
//!       |                        Complete (every page)  |
//!       |<----------------------------------------------|
//!       | Goodbye                                       |
//!       |---------------------------------------------->|
//! ```
//!
//! A destination whose host pages are huge puts them together from pieces, in
//! memory. So that it can bound that memory, in post-copy **a source ends a host
//! page before it begins another**: a background link sends the pieces of one
//! until none is owed, and then goes elsewhere; on the urgent link nothing but
//! what was asked for begins one. No more are incomplete then than there are
//! links and unanswered requests.
//!
//! # Taking it up again
//!
//! From `Ready` on, links that are lost are no end, with
//! [`Capabilities::RECOVERY`] on both sides. The source opens a new control link
//! with the same id, to the same destination wherever it listens now, and begins
//! it so:
//!
//! ```text
//!     source                                      destination
//!       | Here: its stage                               |
//!       |---------------------------------------------->|
//!       |                              Where: its stage |
//!       |<----------------------------------------------|
//!       |  Ready or Runs:                               |
//!       |                   Missing ... MissingEnd      |
//!       |<----------------------------------------------|
//!       | Owed ... OwedEnd     (the rest holds zeros)   |
//!       |---------------------------------------------->|
//!       |  if anything is owed, the other links are opened
//!       |  and it goes on with Commit, or with pages
//! ```
//!
//! What each stage means, and what each side does in it, is told in
//! `docs/protocol.md`.
//!
//! # The ends
//!
//! Either side may send `Cancel` until `Commit`. The destination keeps its
//! links open until it has heard `Goodbye`, because a hang-up can overtake the
//! last message on a socket.
//!
//! # What a peer can do to us
//!
//! Nothing but be refused. Every length is bounded before it is believed, and
//! memory for a list grows with the bytes that really arrived, not with the
//! number that was announced. Page ranges are checked against the layout
//! ([`Limits`]), names and lists against the bounds stated with their types.
//! No input makes this crate panic; the fuzz targets `wire_*` and the property
//! tests check that. A text is taken in as text: without anything that a
//! terminal would obey.
//!
//! # Versions
//!
//! The hello never changes. Messages change by appending only: a new message
//! goes to the end of its enum, a changed one is a new one, and either is sent
//! only under the version or capability that introduced it. `tests/golden.rs`
//! compares each message with its kept encoding, from the version that introduced
//! it.
//!
//! | version | brought |
//! | --- | --- |
//! | 1 | everything else |
//! | 2 | [`Processors`](ToDestination::Processors) before `Begin`, [`Differs`](ToSource::Differs) |
//!
//! A source says what its [`Machine`](ToDestination::Machine) consists of to a
//! destination with [`Capabilities::MACHINE`].
//!
//! Version 1 is still understood, so that a migration under way can be taken up
//! again when one side has been updated. A migration is begun only with
//! [`Versions::TO_BEGIN`] or later.
//!
//! # What is missing
//!
//! - Encryption and authentication: the id keeps links of one migration
//!   together, it does not protect them from somebody who can read them.
//! - Checksums over page contents: the link's own have to do.

#![forbid(unsafe_code)]

mod compatibility;
mod framing;
mod messages;
mod negotiation;
pub mod text;

pub use compatibility::{MachineMismatch, Mismatch, Names, ProcessorDifferences};
pub use framing::{
    ControlError, ControlMessage, DecodeError, Decoder, EncodeError, Frame, HEADER_LEN, Limits,
    MAX_CONTROL, MAX_PAGES_PER_FRAME, MAX_PAGES_PER_REQUEST, MAX_PAGES_PER_ZEROS, Message,
    StreamError, Subject, control_frame, decode_control, encode_control,
};
pub use messages::{
    Auxiliary, BlockDescription, CpuidRegister, CpuidWord, DestinationStage, Device,
    DeviceStateDigest, DeviceStateError, FaultMeasures, GuestDescription, GuestRangeDescription,
    MAX_AUXILIARY, MAX_CPUID_WORDS, MAX_DEVICE_CHUNK, MAX_DEVICE_STATE, MAX_DEVICES, MAX_FAULTING,
    MAX_LINKS, MAX_PROCESSOR_KINDS, MAX_PROCESSOR_SETTINGS, MAX_PROCESSORS, MAX_RANGES, MAX_TEXT,
    Machine, Mode, OutsideLayout, PageRanges, Place, Processor, ProcessorKind, ProcessorSetting,
    Processors, RequestSummary, SourceStage, StageSummary, ThreadFaults, ToDestination, ToSource,
    Topology,
};
pub use negotiation::{
    Agreed, CHALLENGE_LEN, Capabilities, HELLO_LEN, Hello, HelloError, MigrationId,
    NegotiationError, Role, Versions, negotiate,
};
