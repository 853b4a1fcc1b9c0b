//! Versions, capabilities, and what two sides agree on.

use thiserror::Error;

use super::hello::{Hello, Role};

/// The protocol versions that one side supports: all from `min` to `max`. The
/// first version is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    min: u16,
    max: u16,
}

impl Versions {
    /// The versions that this build supports.
    pub const SUPPORTED: Self = Self { min: 1, max: 2 };

    /// The first version in which a migration may begin: from this version on, a
    /// source sends its guest's processors.
    pub const TO_BEGIN: u16 = 2;

    /// Returns the versions from `min` to `max`, both included; `None` if `min` is
    /// 0 or above `max`.
    #[must_use]
    pub const fn new(min: u16, max: u16) -> Option<Self> {
        if min == 0 || min > max {
            None
        } else {
            Some(Self { min, max })
        }
    }

    /// Returns the lowest version.
    #[must_use]
    pub const fn min(self) -> u16 {
        self.min
    }

    /// Returns the highest version.
    #[must_use]
    pub const fn max(self) -> u16 {
        self.max
    }

    /// Returns the highest version that both sides support.
    #[must_use]
    pub(crate) fn highest_common(self, other: Self) -> Option<u16> {
        let highest = self.max.min(other.max);
        (highest >= self.min && highest >= other.min).then_some(highest)
    }
}

/// What a side supports beyond its version, one bit each.
///
/// Unknown bits do no harm: [`negotiate`] keeps only the bits of both sides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities(u64);

impl Capabilities {
    /// No capability.
    pub const NONE: Self = Self(0);

    /// The messages and links for post-copy are supported. A destination that
    /// cannot catch the guest's page faults still has this capability; it refuses
    /// a guest that may need post-copy.
    pub const POSTCOPY: Self = Self(1 << 0);

    /// The source supports [`Measured`](crate::ToSource::Measured).
    pub const MEASURES: Self = Self(1 << 1);

    /// A migration can be resumed on new links: [`ResumeRequest`] and the messages after
    /// it are supported, and so are [`Declined`] and [`GuestLost`].
    ///
    /// [`ResumeRequest`]: crate::ToDestination::ResumeRequest
    /// [`Declined`]: crate::ToSource::Declined
    /// [`GuestLost`]: crate::ToSource::GuestLost
    pub const RECOVERY: Self = Self(1 << 2);

    /// The source supports [`ShutDown`](crate::ToSource::ShutDown).
    pub const SHUT_DOWN: Self = Self(1 << 3);

    /// The destination supports [`Machine`](crate::ToDestination::Machine).
    pub const MACHINE: Self = Self(1 << 4);

    /// The destination supports [`KeepsFrames`](crate::ToDestination::KeepsFrames)
    /// and the link for frames.
    pub const FRAMES: Self = Self(1 << 5);

    /// The destination supports [`Compare`](crate::ToDestination::Compare).
    pub const COMPARE: Self = Self(1 << 6);

    /// The destination supports [`MemoryLost`](crate::ToDestination::MemoryLost).
    pub const MEMORY_LOST: Self = Self(1 << 7);

    /// The destination supports [`Domain`](crate::ToDestination::Domain).
    pub const DOMAIN: Self = Self(1 << 8);

    /// The destination supports [`Probe`](crate::ToDestination::Probe).
    pub const PROBE: Self = Self(1 << 9);

    /// The source supports [`LeftToDo`](crate::ToSource::LeftToDo).
    pub const LEFT_TO_DO: Self = Self(1 << 10);

    /// The destination supports [`Disks`](crate::ToDestination::Disks) and the links for
    /// disks.
    pub const DISKS: Self = Self(1 << 11);

    /// The source supports [`ResumeTime`](crate::ToSource::ResumeTime).
    pub const RESUME_TIME: Self = Self(1 << 12);

    /// All capabilities of this build.
    pub const KNOWN: Self = Self(
        Self::POSTCOPY.0
            | Self::MEASURES.0
            | Self::RECOVERY.0
            | Self::SHUT_DOWN.0
            | Self::MACHINE.0
            | Self::FRAMES.0
            | Self::COMPARE.0
            | Self::MEMORY_LOST.0
            | Self::DOMAIN.0
            | Self::PROBE.0
            | Self::LEFT_TO_DO.0
            | Self::DISKS.0
            | Self::RESUME_TIME.0,
    );

    /// Returns the capabilities with these bits, known or not.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Returns the bits.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Returns whether these include all of `other`.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the capabilities that are in either.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the capabilities that are in both.
    #[must_use]
    pub(crate) const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

/// What both sides of a link use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The protocol version: the highest that both support.
    pub version: u16,
    /// The capabilities of both.
    pub capabilities: Capabilities,
}

/// Compares our hello with the peer's. Both sides get the same result.
///
/// Both hellos must have the same id and the same role. The destination gets the
/// id from the hello of the control link and answers with the same id. Every
/// later link must have it too.
///
/// # Errors
///
/// If there is no common version, the link belongs to another migration, or the
/// roles differ. Close the link.
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

/// Why two sides cannot use a link together.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NegotiationError {
    /// No version that both support.
    #[error(
        "agreeing with the peer on a protocol version: this side supports {our_min} to {our_max}, the peer {their_min} to {their_max}; update the older side"
    )]
    Version {
        /// Our lowest version.
        our_min: u16,
        /// Our highest version.
        our_max: u16,
        /// The peer's lowest version.
        their_min: u16,
        /// The peer's highest version.
        their_max: u16,
    },
    /// Different ids, which are not printed.
    #[error("agreeing with the peer on a link: it belongs to another migration; close it")]
    OtherMigration,
    /// Different roles.
    #[error(
        "agreeing with the peer on a link: its role is {ours} here and {theirs} at the peer; the peer is faulty; close it"
    )]
    Role {
        /// The role here.
        ours: Role,
        /// The role at the peer.
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
    fn the_highest_common_version_and_the_common_capabilities_are_used() {
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
            "agreeing with the peer on a link: its role is control here and background 3 at the peer; \
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
