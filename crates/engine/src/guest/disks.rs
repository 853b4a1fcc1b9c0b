//! The guest's disks: optional parts of the two adapters.

use hikkoshi_linux::CancelFlag;
use hikkoshi_wire::GuestDisks;

#[cfg(doc)]
use super::{DestinationGuest, SourceGuest};
use crate::disks::{DiskComparison, DiskConnection, DiskContent};
use crate::guest_error::GuestError;
use crate::report::DiskCopy;

/// The disks of a guest that is to be moved away. The machine itself copies those that are to be
/// copied, over connections that the engine carries.
///
/// [`offered`](Self::offered) and [`compared`](Self::compared) are called first. If disks are
/// copied, [`connect`](Self::connect) and [`open`](Self::open) follow for each one, then
/// [`limit`](Self::limit) and [`copy`](Self::copy) for each one, then `limit` and
/// [`progress`](Self::progress) until all are in sync, and [`complete`](Self::complete) when the
/// guest is paused.
pub trait SourceDisks {
    /// The guest's disks, which the destination compares with its own. At most
    /// [`MAX_COPIED_DISKS`](crate::MAX_COPIED_DISKS) are copied.
    fn offered(&self) -> GuestDisks;

    /// The destination has compared the disks, or did not: removes what was added to them for
    /// that.
    fn compared(&mut self);

    /// Makes the connection over which the machine copies the disk `number` of those [that are
    /// copied](hikkoshi_wire::GuestDisks::copied): the machine gets one end as a client, and the
    /// other one is returned. The machine uses it from [`open`](Self::open) on. If the
    /// engine ends it, what the machine waits for must fail soon.
    fn connect(&mut self, number: usize) -> Result<DiskConnection, GuestError>;

    /// Has the machine set up that connection, which carries its bytes now. Called for each disk
    /// before the first one is copied: a server does not wait long for a client to begin. Ends
    /// early, with an error, once `cancel` is set.
    fn open(&mut self, number: usize, cancel: &CancelFlag) -> Result<(), GuestError>;

    /// Begins to copy that disk, whose connection is open. The guest runs. When all is copied, each
    /// write of the guest reaches both disks before it is complete. [`complete`](Self::complete)
    /// ends the copies; so do [`resume`](SourceGuest::resume) and
    /// [`release`](SourceGuest::release), whatever they have copied. Ends early, with an error,
    /// once `cancel` is set.
    fn copy(&mut self, number: usize, cancel: &CancelFlag) -> Result<(), GuestError>;

    /// How many bytes a second the copies may send, all together; `None`: no limit. **The guest's
    /// own writes to a disk that is copied must not wait for it**, and a disk that is in sync has
    /// no limit. Used from the next [`copy`](Self::copy) or
    /// [`progress`](Self::progress) on.
    fn limit(&mut self, bytes_per_second: Option<u64>);

    /// About how many bytes the copies of the disks send.
    fn content(&mut self) -> Result<DiskContent, GuestError>;

    /// How far the copies are; an error says why one has failed. Called a few times a second.
    fn progress(&mut self) -> Result<Vec<DiskCopy>, GuestError>;

    /// Ends the copies of a guest that was [paused](SourceGuest::pause): both sides' disks have the
    /// same content when this returns. Fails if one is not complete. Ends early, with an error,
    /// once `give_up` is set; [`resume`](SourceGuest::resume) must be possible then. Called only if
    /// disks are copied.
    fn complete(&mut self, give_up: &CancelFlag) -> Result<(), GuestError>;
}

/// The disks of a machine that waits for a guest.
pub trait DestinationDisks {
    /// Compares the source's disks with those here: whether they are the same ones, or fit, if they
    /// are copied. Changes nothing. Called before [`prepare`](DestinationGuest::prepare), so that a
    /// guest that is refused leaves the machine to the next one.
    fn compare(&mut self, disks: &GuestDisks) -> Result<DiskComparison, GuestError>;

    /// Lets the source's machine write to those of these disks that are copied, from
    /// [`connect`](Self::connect) to [`end`](Self::end). Called after
    /// [`prepare`](DestinationGuest::prepare); [`release`](DestinationGuest::release) ends it, too.
    fn serve(&mut self, disks: &GuestDisks) -> Result<(), GuestError>;

    /// A connection to what serves the disk `number` of these.
    fn connect(&mut self, number: usize) -> Result<DiskConnection, GuestError>;

    /// The copies are complete, and the guest is paused at the source: the disks are the machine's
    /// own again. Called before [`load_device_state`](DestinationGuest::load_device_state), while
    /// the guest is paused, so it must be quick.
    fn end(&mut self) -> Result<(), GuestError>;
}
