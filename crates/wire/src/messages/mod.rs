//! Control messages. The crate's essay shows their course.
//!
//! A message is known by its place in the enum: new ones go to the end, and
//! none is ever removed, moved or changed.

use hikkoshi_pages::MAX_BLOCKS;
use serde::{Deserialize, Serialize};

mod bounded;
mod device_state;
mod guest;
mod machine;
mod measurements;
mod mode;
mod page_ranges;
mod processors;
mod stage;

use bounded::{Bytes, List, Reason};

pub use bounded::MAX_TEXT;
pub use device_state::{DeviceStateDigest, DeviceStateError, MAX_DEVICE_CHUNK, MAX_DEVICE_STATE};
pub use guest::{BlockDescription, GuestDescription, GuestRangeDescription};
pub use machine::{Auxiliary, Device, MAX_AUXILIARY, MAX_DEVICES, Machine};
pub use measurements::{FaultMeasures, MAX_FAULTING, RequestSummary, StageSummary, ThreadFaults};
pub use mode::Mode;
pub use page_ranges::{MAX_RANGES, OutsideLayout, PageRanges};
pub use processors::{
    CpuidRegister, CpuidWord, MAX_CPUID_WORDS, MAX_PROCESSOR_KINDS, MAX_PROCESSOR_SETTINGS,
    MAX_PROCESSORS, Place, Processor, ProcessorKind, ProcessorSetting, Processors, Topology,
};
pub use stage::{DestinationStage, SourceStage};

/// Most background links of one migration. More than any machine has cores to
/// feed, and few enough for a thread and a buffer each.
pub const MAX_LINKS: u16 = 16;

/// What the source says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToDestination {
    /// The first message: what is to be moved, and how.
    Begin {
        /// The guest.
        description: GuestDescription,
        /// How its memory is to travel.
        mode: Mode,
        /// Whether the source may switch to post-copy. Always so in the modes
        /// [`Postcopy`](Mode::Postcopy) and [`Hybrid`](Mode::Hybrid); in
        /// [`Precopy`](Mode::Precopy) it may do so if the guest is too busy.
        may_postcopy: bool,
        /// Number of background links that the source will open, counted from
        /// 0: 1 to [`MAX_LINKS`].
        background_links: u16,
    },
    /// Post-copy: drop these pages, they are still to come. What pre-copy
    /// brought of them is stale. May be said several times, and only when
    /// everything on the background links has been acknowledged.
    Discard {
        /// The pages.
        ranges: PageRanges,
    },
    /// Post-copy: most of what is to be dropped has been named, and the guest
    /// still runs; say when it is gone. A last `Discard` may follow once the
    /// guest is paused.
    DiscardEnd,
    /// The next piece of the device state.
    DeviceStateChunk {
        /// Up to [`MAX_DEVICE_CHUNK`] bytes.
        #[serde(with = "Bytes::<MAX_DEVICE_CHUNK>")]
        bytes: Vec<u8>,
    },
    /// Everything needed to run the guest has been sent; here is how to tell.
    Switch {
        /// Length of the device state in bytes.
        device_bytes: u64,
        /// Its CRC-32C; see [`DeviceStateDigest`](crate::DeviceStateDigest).
        device_crc32c: u32,
        /// Number of pages still to come: all that [`Discard`](Self::Discard)
        /// named. 0 in pre-copy.
        owed_pages: u64,
        /// Whether the rest comes by post-copy, even if nothing is owed.
        postcopy: bool,
        /// Whether the guest is to run at the destination. It stays paused if
        /// it was paused before it was moved.
        running: bool,
    },
    /// The guest is the destination's now: the source never resumes it by
    /// itself again.
    Commit,
    /// The migration is called off; only before [`Commit`](Self::Commit).
    Cancel {
        /// Why, for a person; cut at [`MAX_TEXT`](crate::MAX_TEXT) bytes.
        #[serde(with = "Reason")]
        reason: String,
    },
    /// The last message: nothing more will come, and nothing more is needed.
    Goodbye,
    /// The first message on a new control link of a migration that is under way
    /// already: the source is back. Only to a destination with
    /// [`Capabilities::RECOVERY`](crate::Capabilities::RECOVERY), as the ones
    /// below.
    Here {
        /// How far the source is.
        stage: SourceStage,
    },
    /// The answer to [`Missing`](ToSource::Missing): of what is missing, this is
    /// owed. The rest holds zeros. Any number of times.
    Owed {
        /// The pages.
        ranges: PageRanges,
    },
    /// All that is owed has been named.
    OwedEnd {
        /// How many pages that are.
        pages: u64,
        /// Number of background links that the source will open, and the urgent
        /// link besides; 0 for none of either, when nothing is owed.
        background_links: u16,
    },
    /// What the guest was given for processors: right before
    /// [`Begin`](Self::Begin). From version 2 on.
    Processors {
        /// The guest's.
        processors: Processors,
        /// Whether the guest may be moved to processors that it can tell from
        /// these. The destination then says what is different
        /// ([`Differs`](ToSource::Differs)) instead of refusing.
        allow_mismatch: bool,
    },
    /// What the guest's machine consists of: before
    /// [`Processors`](Self::Processors). Only to a destination with
    /// [`Capabilities::MACHINE`](crate::Capabilities::MACHINE).
    Machine {
        /// The guest's.
        machine: Machine,
    },
}

/// What the destination says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToSource {
    /// The guest fits; pages may come.
    Accept {
        /// The destination's host page size of each RAM block, in bytes.
        #[serde(with = "List::<MAX_BLOCKS>")]
        host_pages: Vec<u64>,
    },
    /// The guest does not fit, or is not wanted.
    Refuse {
        /// Why, for a person; cut at [`MAX_TEXT`](crate::MAX_TEXT) bytes.
        #[serde(with = "Reason")]
        reason: String,
    },
    /// The answer to [`DiscardEnd`](ToDestination::DiscardEnd): all pages of
    /// all [`Discard`](ToDestination::Discard) messages so far are gone.
    Discarded,
    /// The guest is loaded and could run: the source may commit.
    Ready,
    /// The guest could not be loaded, or something else went wrong here. Before
    /// the commit the source resumes the guest.
    Failed {
        /// Why, for a person; cut at [`MAX_TEXT`](crate::MAX_TEXT) bytes.
        #[serde(with = "Reason")]
        reason: String,
    },
    /// The guest runs at the destination.
    Resumed,
    /// The destination wants to call the migration off; the source decides.
    Cancel {
        /// Why, for a person; cut at [`MAX_TEXT`](crate::MAX_TEXT) bytes.
        #[serde(with = "Reason")]
        reason: String,
    },
    /// Every page is here: the source is not needed any more.
    Complete {
        /// How long page requests took, for the source's account.
        requests: RequestSummary,
    },
    /// What was measured of the guest's faults, for the source's account: once,
    /// right before [`Complete`](Self::Complete), and only to a source with
    /// [`Capabilities::MEASURES`](crate::Capabilities::MEASURES).
    Measured {
        /// What was measured.
        faults: FaultMeasures,
    },
    /// The answer to [`Here`](ToDestination::Here). In the stages
    /// [`Ready`](DestinationStage::Ready) and [`Runs`](DestinationStage::Runs)
    /// what is missing follows.
    Where {
        /// How far the destination is.
        stage: DestinationStage,
        /// The destination's host page size of each RAM block, in bytes.
        #[serde(with = "List::<MAX_BLOCKS>")]
        host_pages: Vec<u64>,
        /// Most background links that it takes: 1 to [`MAX_LINKS`].
        background_links: u16,
    },
    /// Pages that the destination lacks: whole host pages of its. Any number of
    /// times.
    Missing {
        /// The pages.
        ranges: PageRanges,
    },
    /// All that is missing has been named.
    MissingEnd {
        /// How many pages that are.
        pages: u64,
    },
    /// The guest was never run here and never will be, and that is recorded: the
    /// source takes it back, even after the commit. Only to a source with
    /// [`Capabilities::RECOVERY`](crate::Capabilities::RECOVERY).
    Declined {
        /// Why, for a person; cut at [`MAX_TEXT`](crate::MAX_TEXT) bytes.
        #[serde(with = "Reason")]
        reason: String,
    },
    /// The guest has run here, and its memory is gone with its process: nobody
    /// can go on with it. Only to a source with
    /// [`Capabilities::RECOVERY`](crate::Capabilities::RECOVERY).
    Perished {
        /// How, for a person; cut at [`MAX_TEXT`](crate::MAX_TEXT) bytes.
        #[serde(with = "Reason")]
        reason: String,
    },
    /// The guest will find other processors here, and the source allowed that:
    /// once, right before [`Accept`](Self::Accept). From version 2 on.
    Differs {
        /// What is different, for a person; cut at
        /// [`MAX_TEXT`](crate::MAX_TEXT) bytes.
        #[serde(with = "Reason")]
        what: String,
    },
    /// The guest has run here and has ended itself (it powered off): pages that
    /// had not arrived are not needed any more, and the source is not either. Only to
    /// a source with [`Capabilities::SHUT_DOWN`](crate::Capabilities::SHUT_DOWN).
    ShutDown,
}
