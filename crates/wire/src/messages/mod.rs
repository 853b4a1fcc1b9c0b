//! The control messages. The crate's documentation shows their order.
//!
//! A message is encoded as its position in the enum.

use hikkoshi_pages::MAX_BLOCKS;
use serde::{Deserialize, Serialize};

mod bounded;
mod device_state;
mod disks;
mod domain;
mod guest;
mod machine;
mod measurements;
mod mode;
mod name;
mod network_frames;
mod offer;
mod page_ranges;
mod processors;
mod stage;
mod subject;

use bounded::{Bytes, List, Reason};

pub use bounded::MAX_TEXT;
pub use device_state::{DeviceStateDigest, DeviceStateError, MAX_DEVICE_CHUNK, MAX_DEVICE_STATE};
pub use disks::{
    Backing, Disk, DiskImage, DiskKind, DiskPlan, GuestDisks, ImageMark, ImageName, MAX_BACKING,
    MAX_COPIED_DISKS, MAX_DISKS, MAX_IMAGE_NAMES,
};
pub use domain::{Domain, DomainSnapshot, MAX_DOMAIN_XML, MAX_SNAPSHOTS};
pub use guest::{BlockDescription, GuestDescription, GuestRangeDescription};
pub use machine::{AuxiliaryBlock, Device, Machine};
pub use measurements::{
    FaultKind, FaultMeasures, MAX_FAULTING, RequestSummary, StageSummary, ThreadFaults,
};
pub use mode::Mode;
pub use name::message_name;
pub use network_frames::{MAX_NETWORK_FRAME, MAX_NETWORK_FRAMES, NetworkFrame, OFFLOAD_LEN};
pub use offer::OfferedGuest;
pub use page_ranges::{MAX_RANGES, OutsideLayout, PageRanges};
pub use processors::{
    CpuidRegister, CpuidWord, Processor, ProcessorKind, ProcessorPlace, ProcessorSetting,
    Processors, Topology,
};
pub use stage::{DestinationStage, SourceStage};
pub use subject::Subject;

/// The most background links of one migration. A host has too few spare cores
/// to feed more, and each takes a thread and a buffer.
pub const MAX_LINKS: u16 = 16;

/// The most [`Obstacle`](ToSource::Obstacle) messages in one answer.
pub const MAX_OBSTACLES: usize = 64;

/// The most [`Warning`](ToSource::Warning) messages in one answer.
pub const MAX_WARNINGS: usize = 64;

/// The most [`Echo`](ToDestination::Echo) messages in one measurement of the line.
pub const MAX_ECHOES: u32 = 64;

/// The pages that frames name while the line is measured: 8 MiB.
pub const PROBE_PAGES: u64 = 2048;

/// Messages from the source to the destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToDestination {
    /// Which guest moves, and how. The first message of a migration.
    Offer {
        /// The guest.
        guest: Box<OfferedGuest>,
        /// How its memory travels.
        mode: Mode,
        /// Whether the source may switch to post-copy. Always true in the modes
        /// [`Postcopy`](Mode::Postcopy) and [`Hybrid`](Mode::Hybrid). In
        /// [`Precopy`](Mode::Precopy) true if the source switches to post-copy
        /// when the guest dirties pages too fast.
        may_postcopy: bool,
        /// The number of background links that the source opens, 1 to
        /// [`MAX_LINKS`]. Their indices start at 0.
        background_links: u16,
        /// Whether the source keeps the frames that arrive for the guest during the switchover, and
        /// opens a link with [`Role::Frames`](crate::Role::Frames).
        keeps_frames: bool,
    },
    /// Post-copy: drop these pages. The source sends them after the switchover;
    /// what pre-copy sent of them is stale. May be sent several times, but only
    /// when everything on the background links has been acknowledged.
    Discard {
        /// The pages.
        ranges: PageRanges,
    },
    /// Post-copy: most of the stale pages have been named, and the guest still
    /// runs. Answer when they are dropped. A last `Discard` may follow once the
    /// guest is paused. From now on the destination neither installs nor
    /// acknowledges pages before `Switch`, which must say that post-copy follows.
    DiscardEnd,
    /// The next piece of the device state.
    DeviceStateChunk {
        /// At most [`MAX_DEVICE_CHUNK`] bytes.
        #[serde(with = "Bytes::<MAX_DEVICE_CHUNK>")]
        bytes: Vec<u8>,
    },
    /// Everything needed to run the guest has been sent. The fields let the
    /// destination check that.
    Switch {
        /// The length of the device state in bytes.
        device_bytes: u64,
        /// Its CRC-32C; see [`DeviceStateDigest`].
        device_crc32c: u32,
        /// The number of pages that the source still owes: all that
        /// [`Discard`](Self::Discard) named. 0 in pre-copy.
        owed_pages: u64,
        /// Whether post-copy follows. May be true if no page is owed.
        postcopy: bool,
        /// Whether the destination resumes the guest. A guest that was paused
        /// before the migration stays paused.
        running: bool,
    },
    /// The guest belongs to the destination now: the source never again resumes
    /// it by itself.
    Commit,
    /// The migration is cancelled. Only before [`Commit`](Self::Commit).
    Cancel {
        /// Why, for people; cut at [`MAX_TEXT`] bytes. Empty: by a signal or a command.
        #[serde(with = "Reason")]
        reason: String,
    },
    /// The last message: the source sends nothing more and needs nothing more.
    Goodbye,
    /// The first message on a new control link of an unfinished migration: the
    /// source asks to resume it.
    ResumeRequest {
        /// How far the source is.
        stage: SourceStage,
    },
    /// The answer to [`Missing`](ToSource::Missing): the source owes these of
    /// the missing pages. The other missing pages hold zeros. Sent any number
    /// of times.
    Owed {
        /// The pages.
        ranges: PageRanges,
    },
    /// All owed pages have been named.
    OwedEnd {
        /// The number of owed pages.
        pages: u64,
        /// The number of background links that the source opens, in addition
        /// to the urgent link. 0 if no page is owed: then it opens none of
        /// them, and no urgent link.
        background_links: u16,
    },
    /// Frames that the guest did not get at the source, in the order of their
    /// arrival. Only on the link for frames, from *Commit* on.
    Frames {
        /// The address of the network card that they are for.
        card: [u8; 6],
        /// The frames; at most [`MAX_NETWORK_FRAMES`].
        #[serde(with = "List::<MAX_NETWORK_FRAMES>")]
        frames: Vec<NetworkFrame>,
    },
    /// No more frames follow. The last message of the source on the link for
    /// frames.
    FramesEnd,
    /// The source's process has ended after [`Commit`](Self::Commit), and pages
    /// that the destination needs were private to it: they will never come.
    /// After the list of missing pages it is sent in place of
    /// [`Owed`](Self::Owed). The last message.
    MemoryLost {
        /// What was lost, for people; cut at [`MAX_TEXT`] bytes.
        #[serde(with = "Reason")]
        reason: String,
    },
    /// The first message, instead of an offer: the source only asks whether the guest
    /// could move. The destination compares everything as for a migration,
    /// changes nothing, answers with [`Obstacle`](ToSource::Obstacle) messages
    /// and [`Compared`](ToSource::Compared), and waits for the next source.
    Compare {
        /// The guest.
        guest: Box<OfferedGuest>,
    },
    /// The first message, instead of an offer: the source only
    /// measures the line. The destination answers with
    /// [`ProbeReady`](ToSource::ProbeReady), and the source opens the background
    /// links and sends page frames on them, as in pre-copy. The destination
    /// acknowledges and discards them. The link ends with
    /// [`Goodbye`](Self::Goodbye), and the destination waits for the next
    /// source.
    Probe {
        /// The number of background links that the source opens, 1 to
        /// [`MAX_LINKS`].
        background_links: u16,
    },
    /// While the line is measured: answer with [`Echoed`](ToSource::Echoed) at
    /// once. At most [`MAX_ECHOES`] of them.
    Echo,
}

/// Messages from the destination to the source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToSource {
    /// The guest is compatible; the source may send pages.
    Accept {
        /// The destination's host page size of each RAM block, in bytes.
        #[serde(with = "List::<MAX_BLOCKS>")]
        host_pages: Vec<u64>,
        /// Whether the destination's memory may hold something where the source's has holes: the
        /// first round of pre-copy marks them as pages of zeros.
        marks_holes: bool,
    },
    /// The guest is not compatible, or the destination does not take it.
    Refuse {
        /// Why, for people; cut at [`MAX_TEXT`] bytes.
        #[serde(with = "Reason")]
        reason: String,
    },
    /// The answer to [`DiscardEnd`](ToDestination::DiscardEnd): all pages of
    /// all [`Discard`](ToDestination::Discard) messages so far are dropped.
    Discarded,
    /// The guest is loaded and can run: the source may commit.
    Ready,
    /// Loading the guest failed, or something else did. Before *Commit* the
    /// source resumes the guest.
    Failed {
        /// Why, for people; cut at [`MAX_TEXT`] bytes.
        #[serde(with = "Reason")]
        reason: String,
    },
    /// The guest runs at the destination.
    GuestResumed,
    /// The destination asks to cancel the migration; the source decides.
    Cancel {
        /// Why, for people; cut at [`MAX_TEXT`] bytes. Empty: by a signal or a command.
        #[serde(with = "Reason")]
        reason: String,
    },
    /// The destination has every page and no longer needs the source.
    Complete {
        /// How long page requests took, for the source's report.
        requests: RequestSummary,
        /// The guest's page faults, for the source's report.
        faults: Box<FaultMeasures>,
    },
    /// The answer to [`ResumeRequest`](ToDestination::ResumeRequest). In the stages
    /// [`Ready`](DestinationStage::Ready) and [`Running`](DestinationStage::Running)
    /// the destination then sends which pages are missing.
    ResumeReply {
        /// How far the destination is.
        stage: DestinationStage,
        /// The destination's host page size of each RAM block, in bytes.
        #[serde(with = "List::<MAX_BLOCKS>")]
        host_pages: Vec<u64>,
        /// The most background links that the destination accepts: 1 to
        /// [`MAX_LINKS`].
        background_links: u16,
    },
    /// Pages that the destination does not have: whole host pages of its own
    /// size. Sent any number of times.
    Missing {
        /// The pages.
        ranges: PageRanges,
    },
    /// All missing pages have been named.
    MissingEnd {
        /// The number of missing pages.
        pages: u64,
    },
    /// The destination never ran the guest, never will, and has recorded that:
    /// the source takes the guest back, even after *Commit*.
    Declined {
        /// Why, for people; cut at [`MAX_TEXT`] bytes.
        #[serde(with = "Reason")]
        reason: String,
    },
    /// The guest is lost: it has run at the destination, and its process ended
    /// there before every page had arrived. Neither side can continue it.
    GuestLost {
        /// How, for people; cut at [`MAX_TEXT`] bytes.
        #[serde(with = "Reason")]
        reason: String,
    },
    /// Something differs at the destination for which the guest is not refused: its processors, if
    /// the source allows that, or a medium that the guest only reads. Sent before
    /// [`Accept`](Self::Accept) or [`Compared`](Self::Compared), at most [`MAX_WARNINGS`] times.
    Warning {
        /// What differs, for people; cut at [`MAX_TEXT`] bytes.
        #[serde(with = "Reason")]
        what: String,
    },
    /// The guest has run at the destination and has shut itself down. The
    /// missing pages are no longer needed, and neither is the source.
    ShutDown,
    /// The answer to [`FramesEnd`](ToDestination::FramesEnd), once the guest
    /// runs: how many frames were delivered. The only message on the link for frames.
    FramesDelivered {
        /// Frames that were delivered to the guest's network cards.
        delivered: u64,
        /// Frames that were not.
        dropped: u64,
    },
    /// A reason why the destination would refuse the guest of
    /// [`Compare`](ToDestination::Compare). At most [`MAX_OBSTACLES`] of them.
    Obstacle {
        /// The reason, for people; cut at [`MAX_TEXT`] bytes.
        #[serde(with = "Reason")]
        reason: String,
        /// Whether the guest can still be moved by pre-copy alone.
        postcopy_only: bool,
    },
    /// The answer to [`Compare`](ToDestination::Compare) is complete. The
    /// destination closes the link.
    Compared {
        /// The destination's host page size of each RAM block, in bytes.
        #[serde(with = "List::<MAX_BLOCKS>")]
        host_pages: Vec<u64>,
    },
    /// The answer to [`Probe`](ToDestination::Probe): the destination accepts
    /// the background links, and this much on them. Then it closes all links.
    ProbeReady {
        /// The most bytes on all background links together, with headers.
        bytes: u64,
        /// The most milliseconds from this message on.
        millis: u64,
    },
    /// The answer to [`Echo`](ToDestination::Echo).
    Echoed,
    /// The guest is at the destination with all of its pages, but something that
    /// the source has asked for besides was not done there: its domain is not
    /// persistent, for example. Sent at most once on a link, before
    /// [`Complete`](Self::Complete), [`ShutDown`](Self::ShutDown) or a
    /// [`ResumeReply`](Self::ResumeReply) with
    /// [`DestinationStage::Complete`].
    LeftToDo {
        /// What, and what to do there, for people; cut at [`MAX_TEXT`] bytes.
        #[serde(with = "Reason")]
        what: String,
    },
    /// How long the guest did not run since the destination received *Commit*.
    /// With it the source knows about when the guest ran again, also if
    /// [`GuestResumed`](Self::GuestResumed) was late. Sent at most once on a link, immediately
    /// after `GuestResumed` or [`ResumeReply`](Self::ResumeReply).
    ResumeTime {
        /// From the receipt of *Commit* until the guest ran, in microseconds.
        micros: u64,
    },
}
