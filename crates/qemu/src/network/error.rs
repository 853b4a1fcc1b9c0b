//! Why the guest's networks do not take part.

use std::io;

use hikkoshi_network_frames::OpenError;
use thiserror::Error;

use crate::qmp::QmpError;

/// Frames cannot be captured or delivered.
#[derive(Debug, Error)]
pub(crate) enum NetworkError {
    /// Asking QEMU.
    #[error(transparent)]
    Qmp(#[from] QmpError),
    /// Reading which devices QEMU has open.
    #[error("reading the network devices of QEMU's process {pid}")]
    Process {
        /// The process.
        pid: u32,
        /// Why.
        source: io::Error,
    },
    /// A packet socket.
    #[error("opening the tap device {interface} of the network card {card}")]
    Open {
        /// The device.
        interface: String,
        /// The card.
        card: String,
        /// Why.
        source: OpenError,
    },
    /// No card has a tap device.
    #[error(
        "none of the guest's network cards has a tap device that is known (they are connected to: \
         {backends})"
    )]
    NoTap {
        /// The types of the backends.
        backends: String,
    },
}
