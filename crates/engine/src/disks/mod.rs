//! Disks that are copied with the guest.
//!
//! The VMMs themselves copy them, over a connection of their own for each disk: the source's
//! VMM is the client, the destination's the server. The engines carry its bytes on a link of
//! its own (`relay.rs`), protected as the others are, and wait. The link has no limit of its own:
//! it carries also the guest's writes, which must not wait for one. The VMM limits its copies.
//!
//! ```text
//! source                                        destination
//!   Disks, with the offer        ───────────▶     serves those that are copied
//!   a link for each disk         ───────────▶     connects it to the server
//!   copies all, and from then on
//!   each write of the guest      ◀──────────▶     writes it
//!   all disks are the same: pre-copy, or the switchover
//!   pauses the guest, ends the copies
//!   Switch                       ───────────▶     serves nothing any more, loads the guest
//! ```
//!
//! A destination that hangs while the guest's writes wait for it is given up (`stall_timer.rs`).
//!
//! So the disks are the same before *Switch* is sent, and nothing of them is left to do after it.
//! If anything fails before, the source's VMM ends the copies and uses its own images, which
//! have everything at all times.

mod connection;
mod relay;
mod stall_timer;

pub use connection::{DiskConnection, DiskRequests, Waiting};
pub(crate) use relay::{DiskFailure, DiskRelay, DiskWatch, RelayStart};
pub(crate) use stall_timer::patience;

/// What a destination has found about a guest's disks; for people.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiskComparison {
    /// Why the guest is refused.
    pub refused: Vec<String>,
    /// What differs although it is not.
    pub warnings: Vec<String>,
}

/// About how many bytes the copies of disks send.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiskContent {
    /// For those of which that is known.
    pub bytes: u64,
    /// The others, for people.
    pub unknown: Vec<String>,
}
