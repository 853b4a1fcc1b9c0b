//! The first bytes on every link.
//!
//! ```text
//! offset  bytes
//!      0      8  magic "hikkoshi"
//!      8      2  lowest protocol version
//!     10      2  highest protocol version
//!     12      2  role: 0 control, 1 urgent, 2 background, 3 frames, 4 disk
//!     14      2  number of the background link or of the disk, otherwise 0
//!     16      8  optional features, one bit each
//!     24     16  the migration's id
//!     40      4  CRC-32C of the 40 bytes before
//! ```
//!
//! All numbers are little-endian. This layout is the same in every future
//! version: each side reads the other's versions from it. A side uses only the
//! features that both hellos have, and ignores bits that it does not know.
//!
//! After its hello the destination sends a challenge, [`CHALLENGE_LEN`] random
//! bytes, and the source returns them before it sends anything else. So bytes
//! recorded from another connection cannot be replayed on this one.

use std::fmt;

use thiserror::Error;

use super::migration_id::MigrationId;
use super::versions::Versions;
use crate::framing::{field, put};

/// The length of a hello in bytes.
pub const HELLO_LEN: usize = 44;

/// The length of the challenge after a destination's hello, in bytes.
pub const CHALLENGE_LEN: usize = 16;

const MAGIC: [u8; 8] = *b"hikkoshi";

/// What a link is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Control messages.
    Control,
    /// Page requests, and the pages that answer them.
    Urgent,
    /// Pages that the destination has not requested.
    Background {
        /// Its index among the background links, from 0 on.
        index: u16,
    },
    /// Network frames that arrived for the guest during the switchover.
    Frames,
    /// The bytes of a connection to the server of one disk.
    Disk {
        /// The disk's index among those that are copied
        /// ([`GuestDisks::copied`](crate::GuestDisks::copied)), from 0 on.
        index: u16,
    },
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Control => f.write_str("control"),
            Self::Urgent => f.write_str("urgent"),
            Self::Background { index } => write!(f, "background {index}"),
            Self::Frames => f.write_str("frames"),
            Self::Disk { index } => write!(f, "disk {index}"),
        }
    }
}

/// Optional features of the protocol, one bit each. A side ignores bits that it does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(pub u64);

impl Features {
    /// A destination can receive [`Frame::Compressed`](crate::Frame::Compressed) on background
    /// links.
    pub const COMPRESSED_PAGES: Self = Self(1);

    /// What this build supports.
    pub const SUPPORTED: Self = Self::COMPRESSED_PAGES;

    /// The features that both sets have.
    #[must_use]
    pub const fn common(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether the set has all of `features`.
    #[must_use]
    pub const fn has(self, features: Self) -> bool {
        self.0 & features.0 == features.0
    }
}

/// The first message on a link: what the sender supports, and what the link is
/// for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The protocol versions that the sender supports.
    pub versions: Versions,
    /// The optional features that the sender supports beyond that.
    pub features: Features,
    /// What the link is for.
    pub role: Role,
    /// The migration that the link belongs to.
    pub id: MigrationId,
}

impl Hello {
    /// Returns the bytes to send.
    #[must_use]
    pub fn encode(&self) -> [u8; HELLO_LEN] {
        let (role, index) = match self.role {
            Role::Control => (0u16, 0),
            Role::Urgent => (1, 0),
            Role::Background { index } => (2, index),
            Role::Frames => (3, 0),
            Role::Disk { index } => (4, index),
        };
        let mut hello = [0; HELLO_LEN];
        put::<0, 8, HELLO_LEN>(&mut hello, MAGIC);
        put::<8, 2, HELLO_LEN>(&mut hello, self.versions.min().to_le_bytes());
        put::<10, 2, HELLO_LEN>(&mut hello, self.versions.max().to_le_bytes());
        put::<12, 2, HELLO_LEN>(&mut hello, role.to_le_bytes());
        put::<14, 2, HELLO_LEN>(&mut hello, index.to_le_bytes());
        put::<16, 8, HELLO_LEN>(&mut hello, self.features.0.to_le_bytes());
        put::<24, 16, HELLO_LEN>(&mut hello, self.id.to_bytes());
        let checksum = checksum(&hello);
        put::<40, 4, HELLO_LEN>(&mut hello, checksum.to_le_bytes());
        hello
    }

    /// Decodes a peer's hello.
    ///
    /// # Errors
    ///
    /// See [`HelloError`]; close the link.
    pub fn decode(hello: &[u8; HELLO_LEN]) -> Result<Self, HelloError> {
        if field::<0, 8, HELLO_LEN>(hello) != MAGIC {
            return Err(HelloError::NotHikkoshi);
        }
        let stated = u32::from_le_bytes(field::<40, 4, HELLO_LEN>(hello));
        if stated != checksum(hello) {
            return Err(HelloError::Checksum);
        }
        let min = u16::from_le_bytes(field::<8, 2, HELLO_LEN>(hello));
        let max = u16::from_le_bytes(field::<10, 2, HELLO_LEN>(hello));
        let versions = Versions::new(min, max).ok_or(HelloError::Versions { min, max })?;
        let role = u16::from_le_bytes(field::<12, 2, HELLO_LEN>(hello));
        let index = u16::from_le_bytes(field::<14, 2, HELLO_LEN>(hello));
        let role = match (role, index) {
            (0, 0) => Role::Control,
            (1, 0) => Role::Urgent,
            (2, index) => Role::Background { index },
            (3, 0) => Role::Frames,
            (4, index) => Role::Disk { index },
            _ => return Err(HelloError::Role { role, index }),
        };
        Ok(Self {
            versions,
            features: Features(u64::from_le_bytes(field::<16, 8, HELLO_LEN>(hello))),
            role,
            id: MigrationId::from_bytes(field::<24, 16, HELLO_LEN>(hello)),
        })
    }
}

fn checksum(hello: &[u8; HELLO_LEN]) -> u32 {
    crc32c::crc32c(&field::<0, 40, HELLO_LEN>(hello))
}

/// Why a hello was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HelloError {
    /// The peer does not use this protocol.
    #[error(
        "negotiating with the peer: its first bytes are not a hikkoshi hello; check the address: another program answers there"
    )]
    NotHikkoshi,
    /// The hello was damaged.
    #[error(
        "negotiating with the peer: the checksum of its hello is wrong; it was damaged in transit; connect again"
    )]
    Checksum,
    /// The lowest version is above the highest, or 0.
    #[error(
        "negotiating with the peer: it claims to support protocol versions {min} to {max}, which is not a range of versions; the peer is faulty"
    )]
    Versions {
        /// The lowest version.
        min: u16,
        /// The highest version.
        max: u16,
    },
    /// A role that does not exist, or an index for a role that has none.
    #[error(
        "negotiating with the peer: it opens a link of role {role} with number {index}, which does not exist; use the same version of hikkoshi on both sides"
    )]
    Role {
        /// The role's number.
        role: u16,
        /// The link's index.
        index: u16,
    },
}
