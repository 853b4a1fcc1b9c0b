//! Where a guest is received: a VM that waits already, or one that is made for the guest.

use hikkoshi_wire::OfferedGuest;
use thiserror::Error;

use crate::guest::DestinationGuest;
use crate::guest_error::GuestError;

/// Provides the VM for a guest.
pub trait DestinationHost: Send {
    /// The VM for the offered guest. An error refuses the guest, and the next one may be
    /// offered.
    fn vm(&mut self, offered: &OfferedGuest) -> Result<&mut dyn DestinationGuest, GuestError>;

    /// The guest was refused, or the source only asked about it: a VM that was made for it is
    /// not needed.
    fn discard(&mut self) {}
}

/// A VM that waits for its guest.
#[derive(Debug)]
pub(crate) struct WaitingVm<'a, G: ?Sized>(pub(crate) &'a mut G);

/// What the source asks for needs a management daemon here.
#[derive(Debug, Error)]
#[error(
    "the domain {name} {what} at the destination, but its machine there is a QEMU that libvirt does \
     not own: start 'hikkoshi receive --connect', or {instead}"
)]
struct NeedsDaemon {
    name: String,
    what: &'static str,
    instead: &'static str,
}

impl DestinationHost for WaitingVm<'_, dyn DestinationGuest + '_> {
    fn vm(&mut self, offered: &OfferedGuest) -> Result<&mut dyn DestinationGuest, GuestError> {
        let Some(domain) = &offered.domain else {
            return Ok(&mut *self.0);
        };
        let (what, instead) = if !domain.persistent.is_empty() {
            ("is to be persistent", "move it without --persistent")
        } else if !domain.snapshots.is_empty() {
            let instead = "let libvirt forget them ('virsh snapshot-delete --metadata')";
            ("is to have its snapshots", instead)
        } else {
            return Ok(&mut *self.0);
        };
        Err(GuestError::new(NeedsDaemon {
            name: domain.name.clone(),
            what,
            instead,
        }))
    }
}
