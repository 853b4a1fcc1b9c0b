//! A capability of KVM that cannot be used.

use std::io;

use thiserror::Error;

/// Why a capability of KVM could not be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CapabilityError {
    /// This host's KVM does not have it.
    #[error("this host's KVM does not offer {name}: use another of KVM's dirty logs")]
    NotOffered {
        /// Its name in the kernel.
        name: &'static str,
    },
    /// KVM refused to enable it.
    #[error("enabling {name} with argument {argument}")]
    Enable {
        /// Its name in the kernel.
        name: &'static str,
        /// The argument.
        argument: u64,
        /// The error of the system call.
        source: io::Error,
    },
}
