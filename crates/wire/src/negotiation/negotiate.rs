//! What two sides can do together.

use thiserror::Error;

use super::hello::{Hello, Role};

/// Protocol versions that one side understands: all from `min` to `max`. The
/// first version is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    min: u16,
    max: u16,
}

impl Versions {
    /// What this build understands.
    pub const SUPPORTED: Self = Self { min: 1, max: 2 };

    /// The first version in which a migration may be begun: since then a source
    /// says what processors its guest has.
    pub const TO_BEGIN: u16 = 2;

    /// From `min` to `max`, both included; `None` if `min` is 0 or above `max`.
    #[must_use]
    pub const fn new(min: u16, max: u16) -> Option<Self> {
        if min == 0 || min > max {
            None
        } else {
            Some(Self { min, max })
        }
    }

    /// The lowest.
    #[must_use]
    pub const fn min(self) -> u16 {
        self.min
    }

    /// The highest.
    #[must_use]
    pub const fn max(self) -> u16 {
        self.max
    }

    /// The highest version that both understand.
    #[must_use]
    pub fn highest_common(self, other: Self) -> Option<u16> {
        let highest = self.max.min(other.max);
        (highest >= self.min && highest >= other.min).then_some(highest)
    }
}

/// Things a side can do that its version does not imply, one bit each.
///
/// Unknown bits are harmless: [`negotiate`] keeps only what both sides named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities(u64);

impl Capabilities {
    /// Nothing beyond the version.
    pub const NONE: Self = Self(0);

    /// Post-copy: the messages and links for it are understood. Whether the
    /// machine can catch the guest's page faults is told by accepting or refusing
    /// a guest that may need it.
    pub const POSTCOPY: Self = Self(1 << 0);

    /// The source understands [`Measured`](crate::ToSource::Measured).
    pub const MEASURES: Self = Self(1 << 1);

    /// A migration can be taken up again on new links: [`Here`] and what follows
    /// from it is understood, and so are [`Declined`] and [`Perished`].
    ///
    /// [`Here`]: crate::ToDestination::Here
    /// [`Declined`]: crate::ToSource::Declined
    /// [`Perished`]: crate::ToSource::Perished
    pub const RECOVERY: Self = Self(1 << 2);

    /// The source understands [`ShutDown`](crate::ToSource::ShutDown).
    pub const SHUT_DOWN: Self = Self(1 << 3);

    /// The destination understands [`Machine`](crate::ToDestination::Machine).
    pub const MACHINE: Self = Self(1 << 4);

    /// Everything this build knows of.
    pub const KNOWN: Self = Self(
        Self::POSTCOPY.0
            | Self::MEASURES.0
            | Self::RECOVERY.0
            | Self::SHUT_DOWN.0
            | Self::MACHINE.0,
    );

    /// These bits, known or not.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The bits.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Whether all of `other` are among these.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// These and those.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// What is in both.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

/// What both sides of a link go by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The protocol version: the highest that both understand.
    pub version: u16,
    /// What both can do.
    pub capabilities: Capabilities,
}

/// Compares our hello with the peer's. Both sides come to the same result.
///
/// Both must name the same migration and the same role. The destination learns
/// the id from the hello of the control link: it answers that one with the id
/// it names, and every later link must name it too.
///
/// # Errors
///
/// If there is no common version, or the link belongs to another migration, or
/// the two differ on what the link is for. The link is to be closed.
pub fn negotiate(ours: &Hello, theirs: &Hello) -> Result<Agreed, NegotiationError> {
    let Some(version) = ours.versions.highest_common(theirs.versions) else {
        return Err(NegotiationError::Version {
            our_min: ours.versions.min,
            our_max: ours.versions.max,
            their_min: theirs.versions.min,
            their_max: theirs.versions.max,
        });
    };
    if ours.id != theirs.id {
        return Err(NegotiationError::OtherMigration);
    }
    if ours.role != theirs.role {
        return Err(NegotiationError::Role {
            ours: ours.role,
            theirs: theirs.role,
        });
    }
    Ok(Agreed {
        version,
        capabilities: ours.capabilities.intersection(theirs.capabilities),
    })
}

/// Why two sides cannot work together on a link.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NegotiationError {
    /// No version that both understand.
    #[error(
        "agreeing with the peer on a protocol version: this side understands {our_min} to {our_max}, the peer {their_min} to {their_max}; update the older side"
    )]
    Version {
        /// Our lowest.
        our_min: u16,
        /// Our highest.
        our_max: u16,
        /// Their lowest.
        their_min: u16,
        /// Their highest.
        their_max: u16,
    },
    /// Different ids, which are not printed.
    #[error(
        "agreeing with the peer on a link: it belongs to another migration than the one under way here; close it"
    )]
    OtherMigration,
    /// Different roles.
    #[error(
        "agreeing with the peer on a link: it is {ours} here and {theirs} for the peer; the peer is faulty; close it"
    )]
    Role {
        /// What it is for us.
        ours: Role,
        /// What it is for the peer.
        theirs: Role,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MigrationId;

    fn hello(min: u16, max: u16, bits: u64) -> Hello {
        Hello {
            versions: Versions::new(min, max).unwrap(),
            capabilities: Capabilities::from_bits(bits),
            role: Role::Control,
            id: MigrationId::from_bytes([7; 16]),
        }
    }

    #[test]
    fn the_highest_common_version_and_the_common_capabilities_win() {
        for (ours, theirs, expected) in [
            ((1, 1), (1, 1), Some(1)),
            ((1, 3), (2, 9), Some(3)),
            ((4, 9), (1, 4), Some(4)),
            ((1, 2), (3, 4), None),
            ((3, 4), (1, 2), None),
        ] {
            let ours = hello(ours.0, ours.1, 0b0110);
            let theirs = hello(theirs.0, theirs.1, 0b1100);
            for (one, two) in [(ours, theirs), (theirs, ours)] {
                let agreed = negotiate(&one, &two);
                assert_eq!(agreed.as_ref().ok().map(|agreed| agreed.version), expected);
                if let Ok(agreed) = agreed {
                    assert_eq!(agreed.capabilities.bits(), 0b0100);
                }
            }
        }
        assert_eq!(Versions::new(0, 1), None);
        assert_eq!(Versions::new(2, 1), None);
    }

    #[test]
    fn another_migration_or_role_is_refused() {
        let ours = hello(1, 1, 0);
        for byte in 0..16 {
            let mut id = [7; 16];
            id[byte] ^= 0x10;
            let theirs = Hello {
                id: MigrationId::from_bytes(id),
                ..ours
            };
            assert_eq!(
                negotiate(&ours, &theirs),
                Err(NegotiationError::OtherMigration)
            );
        }
        let theirs = Hello {
            role: Role::Background { index: 3 },
            ..ours
        };
        assert_eq!(
            negotiate(&ours, &theirs).unwrap_err().to_string(),
            "agreeing with the peer on a link: it is control here and background 3 for the peer; \
             the peer is faulty; close it"
        );
    }

    #[test]
    fn the_id_is_never_printed() {
        let text = format!("{:?}", hello(1, 1, 0));
        assert!(text.contains("MigrationId(secret)"), "{text}");
        assert!(!text.contains("7, 7"), "{text}");
    }
}
