//! The status of migrations on this host, for people and programs that watch them.
//!
//! # Model
//!
//! An engine **records** its migration: ten times a second it adds the present [`State`] to a
//! [`Recording`], which also has what came before (coarser, the longer it lasts) and what was
//! reported to the operator. It serves that on a unix socket in the **status folder**
//! ([`StatusFolder`]): a client that connects receives the recording so far, and then each new
//! state, until the end. The recording is also kept there in a file, which is renewed now and then
//! while the migration runs: if the engine is killed, it has what is known. When the migration has
//! ended, it has everything.
//!
//! If an engine is killed or gives up in post-copy, another one resumes the migration, and records
//! that in a file of its own. [`join_all`] and [`Continued`] make one recording of both.
//!
//! A dashboard, `/metrics` and a report are views of a [`Recording`].
//!
//! | file | holds |
//! |---|---|
//! | `record/` | what is sent and stored: JSON, one object a line, with a version |
//! | `recorder.rs` | adds to a recording, and keeps it bounded |
//! | `rates_by_cell.rs` | the highest and the mean dirty rate of each cell |
//! | `folder/` | the status folder: sockets of running, files of ended migrations |
//! | `server.rs` | serves the recording of this process |
//! | `client.rs` | follows a migration of another process |
//! | `join/` | one recording of several engines of a side, one after another |
//! | `history.rs` | what was moved, one entry for each migration |
//! | `host/` | a host: what it has, and its guests |
//! | `evacuation/` | an evacuation: what was planned, and what has become of each guest |
//!
//! # The map
//!
//! A guest's memory is shown as at most [`MAX_CELLS`] **cells** of equal size. What happens to
//! pages is counted by cell ([`Map`]), so the size of a status does not depend on the size of the
//! guest.
//!
//! # What is missing
//!
//! - A client cannot control a migration here: `hikkoshi-control` does that.
//!
//! [`State`]: hikkoshi_account::State
//! [`Map`]: hikkoshi_account::Map

mod client;
mod evacuation;
mod folder;
mod history;
mod host;
mod join;
mod rates_by_cell;
mod record;
mod recorder;
mod server;

pub use client::{Follow, FollowError};
pub use evacuation::{
    DeadlineMet, EVACUATION_VERSION, EvacuatedGuest, Evacuation, EvacuationError, EvacuationPlan,
    EvacuationStage, MoveOrder, PlannedChange, PlannedDeadline, PlannedDestination, PlannedMove,
    ReachedBy, StayingGuest,
};
pub use folder::{FolderError, StatusEntry, StatusEntryKind, StatusFolder};
pub use history::{HISTORY_VERSION, History, PastMigration, SkipReason, SkippedFile};
pub use host::{
    GuestLimits, HOST_VERSION, HostFacts, HostGuest, HostGuestState, HostMemory, HostProcessors,
    HostStatus, HostStatusError, HugePages, MAX_HOST_ENTRIES,
};
pub use join::{Continued, join_all};
pub use record::{
    Block, DirtyRates, End, Engine, Frame, GuestRange, Memory, Migration, Notice, Recording,
    Sample, StatusRecord, Unknown,
};
pub use recorder::Recorder;
pub use server::{ServeError, StatusServer};

/// The version of the records. A reader refuses others.
pub const VERSION: u32 = 1;

/// The most cells of a map.
pub const MAX_CELLS: usize = 1024;

/// The longest line that a reader accepts, in bytes.
pub const MAX_LINE: usize = 16 << 20;
