//! The migration protocol: bytes in, messages out. No sockets, no threads.
//!
//! # Model
//!
//! A migration uses several **links** (connections). Each has a [`Role`]:
//!
//! | link | source → destination | destination → source |
//! | --- | --- | --- |
//! | control (one) | [`ToDestination`] | [`ToSource`] |
//! | urgent (one) | urgent pages | page requests |
//! | background (one or more) | background pages, zero pages | acknowledgements |
//! | frames (at most one) | network frames that arrived in the switchover | how many were delivered |
//!
//! On every link, each side first sends a [`Hello`] of fixed size: protocol
//! versions, optional features (none so far), the link's role, and the migration's
//! secret [`MigrationId`]. The id assigns the link to its migration, and an unknown
//! peer cannot guess it. [`negotiate`] compares the two hellos and returns the version
//! to use.
//!
//! After the hello come **frames**: a header of [`HEADER_LEN`] bytes and, for
//! some kinds, a payload. [`Frame::decode`] reads only the header, so a receiver
//! can read the payload of a page frame from its socket directly to its final
//! address:
//!
//! ```
//! use hikkoshi_pages::{Page, PageRange};
//! use hikkoshi_wire::{Frame, Limits};
//!
//! let limits = Limits { pages: 1 << 18 };
//! let range = PageRange::from_len(Page::new(7), 2);
//! // The source writes the header, then 2 * 4096 bytes of memory.
//! let header = Frame::Pages { range }.encode();
//! // The destination reads the header first. The header states how many
//! // bytes follow, and for which pages.
//! let frame = Frame::decode(&header, &limits)?;
//! assert_eq!(frame, Frame::Pages { range });
//! assert_eq!(frame.payload_len(), 8192);
//! # Ok::<(), hikkoshi_wire::DecodeError>(())
//! ```
//!
//! # Where to find what
//!
//! | folder | holds |
//! | --- | --- |
//! | `negotiation/` | the hello, versions, the migration's id |
//! | `framing/` | frame headers, control messages as bytes |
//! | `messages/` | the control messages and the types in them |
//! | `compatibility/` | whether the guest can run at the destination |
//!
//! # The control link during a migration
//!
//! ```text
//!     source                                      destination
//!       | Offer: the guest, and how it will move        |
//!       |---------------------------------------------->|  differences()
//!       |                      Warning: what may differ |
//!       |                                Accept / Refuse|
//!       |<----------------------------------------------|
//!       |  pre-copy: pages and zero pages on the background links
//!       |  post-copy: stale pages are dropped while the guest still runs
//!       | Discard ... DiscardEnd                        |
//!       |---------------------------------------------->|
//!       |                                     Discarded |
//!       |<----------------------------------------------|
//!       |  switchover: the guest is paused              |
//!       | DeviceStateChunk ...                          |
//!       | Discard ...          (post-copy: the last few)|
//!       | Switch               (totals of all of that)  |
//!       |---------------------------------------------->|
//!       |                                Ready / Failed |
//!       |<----------------------------------------------|
//!       | Commit    (from here on the source never      |
//!       |            resumes the guest by itself)       |
//!       |---------------------------------------------->|
//!       |                      GuestResumed, ResumeTime |
//!       |<----------------------------------------------|
//!       |  post-copy: requests and urgent pages on the urgent link,
//!       |  background pages on the others               |
//!       |            LeftToDo, if something was not done
//!       |                        Complete (every page)  |
//!       |<----------------------------------------------|
//!       | Goodbye                                       |
//!       |---------------------------------------------->|
//! ```
//!
//! A destination with huge host pages assembles each from its 4 KiB pages, in
//! memory. To bound that memory, in post-copy **a source completes a host page
//! before it starts another one**: a background link sends pages of one host
//! page until none of them is owed, and on the urgent link only a request
//! starts a host page. So the number of incomplete host pages is at most the
//! number of links plus the number of unanswered requests.
//!
//! # Compressed pages
//!
//! A destination whose hello has [`Features::COMPRESSED_PAGES`] also receives
//! [`Frame::Compressed`] on background links, in pre-copy and in post-copy: the
//! contents of up to [`MAX_PAGES_PER_FRAME`] pages as one block of LZ4 or one
//! frame of Zstandard, smaller than the pages. The header bounds both sizes, and
//! the content must be exactly the pages. Pages that were requested are never
//! compressed.
//!
//! # How the line is measured
//!
//! A source that moves nothing can measure the line to a waiting destination.
//! The page frames on the background links, at
//! most of [`PROBE_PAGES`] pages, have any content:
//!
//! ```text
//!     source                                      destination
//!       | Probe: the number of background links         |
//!       |---------------------------------------------->|
//!       |                ProbeReady: what it accepts    |
//!       |<----------------------------------------------|
//!       | Echo                                          |
//!       |---------------------------------------------->|
//!       |                                        Echoed |
//!       |<----------------------------------------------|
//!       |  pages on the background links, acknowledgements back
//!       | Goodbye                                       |
//!       |---------------------------------------------->|
//! ```
//!
//! # How a migration is resumed
//!
//! From `Ready` on, a migration survives the loss of its links. The source opens a
//! new control link with the same id, to the address where the destination listens
//! now:
//!
//! ```text
//!     source                                      destination
//!       | ResumeRequest: its stage                      |
//!       |---------------------------------------------->|
//!       |                        ResumeReply: its stage |
//!       |<----------------------------------------------|
//!       |  Ready or Running:                            |
//!       |                   Missing ... MissingEnd      |
//!       |<----------------------------------------------|
//!       | Owed ... OwedEnd (the other pages hold zeros) |
//!       |---------------------------------------------->|
//!       |  if a page is owed, the source opens the other links
//!       |  and continues with Commit, or with pages
//! ```
//!
//! A source that cannot send a missing page any more answers `MemoryLost` in
//! place of `Owed`, and ends.
//!
//! `docs/protocol.md` defines the stages and what each side does in them.
//!
//! # How a migration ends
//!
//! Either side may send `Cancel` until `Commit`. The destination keeps its
//! links open until it has received `Goodbye`, because closing a socket can
//! destroy the last message on it.
//!
//! # What a faulty or hostile peer can do
//!
//! Its link is closed; nothing else happens. Every length is checked before it
//! is used, and the memory for a list grows with the bytes that have arrived,
//! not with the announced length. Page ranges are checked against the layout
//! ([`Limits`]), names and lists against the bounds of their types. No input
//! makes this crate panic: the fuzz targets `wire_*` and the property
//! tests check that.
//! Text from a peer is reduced to printable characters ([`text`]), so a
//! terminal that shows it does not interpret it.
//!
//! # Versions
//!
//! There is one version, 1. `tests/golden.rs` compares each message with its kept
//! encoding. From release 0.1.0 on, the hello never changes, and a release also
//! speaks the version of the release before, and those of its own minor
//! version: a new message goes to the end of its enum, a changed message is a
//! new one, and both are sent only under the version, or the optional feature,
//! that introduced them.
//!
//! # What is missing
//!
//! - Encryption and authentication: the id only assigns links to migrations.
//!   It does not protect them from an attacker who can read them.
//! - Checksums over page contents: those of the transport have to suffice.

#![forbid(unsafe_code)]

mod compatibility;
mod framing;
mod limits;
mod messages;
mod negotiation;
pub mod text;

pub use compatibility::{
    BlockDifferences, BlockNames, MachineMismatch, Mismatch, ProcessorDifferences,
};
pub use framing::{
    CompressionMethod, ControlError, ControlMessage, DecodeError, EncodeError, Frame, HEADER_LEN,
    MAX_DISK_BYTES, MAX_PAGES_PER_FRAME, MAX_PAGES_PER_REQUEST, MAX_PAGES_PER_ZEROS,
    decode_control, encode_control,
};
pub use limits::{Limits, MAX_CONTROL, MAX_OFFER};
pub use messages::{
    AuxiliaryBlock, Backing, BlockDescription, CpuidRegister, CpuidWord, DestinationStage, Device,
    DeviceStateDigest, DeviceStateError, Disk, DiskImage, DiskKind, DiskPlan, Domain,
    DomainSnapshot, FaultKind, FaultMeasures, GuestDescription, GuestDisks, GuestRangeDescription,
    ImageMark, ImageName, MAX_BACKING, MAX_COPIED_DISKS, MAX_DEVICE_CHUNK, MAX_DEVICE_STATE,
    MAX_DISKS, MAX_DOMAIN_XML, MAX_ECHOES, MAX_FAULTING, MAX_IMAGE_NAMES, MAX_LINKS,
    MAX_NETWORK_FRAME, MAX_NETWORK_FRAMES, MAX_OBSTACLES, MAX_RANGES, MAX_SNAPSHOTS, MAX_TEXT,
    MAX_WARNINGS, Machine, Mode, NetworkFrame, OFFLOAD_LEN, OfferedGuest, OutsideLayout,
    PROBE_PAGES, PageRanges, Processor, ProcessorKind, ProcessorPlace, ProcessorSetting,
    Processors, RequestSummary, SourceStage, StageSummary, Subject, ThreadFaults, ToDestination,
    ToSource, Topology, message_name,
};
pub use negotiation::{
    CHALLENGE_LEN, Features, HELLO_LEN, Hello, HelloError, MigrationId, NegotiationError, Role,
    Versions, negotiate,
};
