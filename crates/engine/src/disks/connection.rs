//! A VMM's end of a disk's connection.

use std::fmt;
use std::os::unix::net::UnixStream;

/// A connection over which the source's VMM, the client, copies a disk to that of the
/// destination, the server.
pub struct DiskConnection {
    /// The disk, for people.
    pub disk: String,
    /// The engine's end. The VMM has the other one.
    pub socket: UnixStream,
    /// Follows what the client sends and receives.
    pub requests: Box<dyn DiskRequests>,
}

impl fmt::Debug for DiskConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskConnection")
            .field("disk", &self.disk)
            .finish_non_exhaustive()
    }
}

/// Follows the bytes of a disk's connection, at either end, and so knows which requests of the
/// client have no answer yet.
pub trait DiskRequests: Send {
    /// The client has sent these bytes, and the server does not have them yet.
    fn sent(&mut self, bytes: &[u8]);

    /// The server has sent these bytes, and the client does not have them yet.
    fn received(&mut self, bytes: &[u8]);

    /// What the client waits for.
    fn waiting(&self) -> Waiting;
}

/// What the source's VMM waits for on a disk's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// Nothing.
    Nothing,
    /// The connection is being set up. The VMM may do nothing else meanwhile.
    Setup,
    /// Requests that a disk completes in a moment. A write of the guest may be one of them.
    Request,
    /// Only requests that can take a disk minutes: to flush what was written, or to clear a large
    /// part of the disk. The copy itself makes them. The guest waits for one only if it clears as
    /// much at once.
    LongRequest,
    /// Nothing any more: the VMM has ended the connection.
    Over,
}
