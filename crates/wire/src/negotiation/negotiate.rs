//! What two sides use, by their hellos.

use thiserror::Error;

use super::hello::{Hello, Role};

/// Compares our hello with the peer's. Returns the protocol version to use: the
/// highest that both support. Both sides get the same result.
///
/// Both hellos must have the same id and the same role. The destination gets the
/// id from the hello of the control link and answers with the same id. Every
/// later link must have it too.
///
/// # Errors
///
/// If there is no common version, the link belongs to another migration, or the
/// roles differ. Close the link.
pub fn negotiate(ours: &Hello, theirs: &Hello) -> Result<u16, NegotiationError> {
    let Some(version) = ours.versions.highest_common(theirs.versions) else {
        return Err(NegotiationError::Version {
            our_min: ours.versions.min(),
            our_max: ours.versions.max(),
            their_min: theirs.versions.min(),
            their_max: theirs.versions.max(),
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
    Ok(version)
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
    use crate::{Features, MigrationId, Versions};

    fn hello(min: u16, max: u16) -> Hello {
        Hello {
            versions: Versions::new(min, max).unwrap(),
            features: Features::default(),
            role: Role::Control,
            id: MigrationId::from_bytes([7; 16]),
        }
    }

    #[test]
    fn the_highest_common_version_is_used() {
        for (ours, theirs, expected) in [
            ((1, 1), (1, 1), Some(1)),
            ((1, 3), (2, 9), Some(3)),
            ((4, 9), (1, 4), Some(4)),
            ((1, 2), (3, 4), None),
            ((3, 4), (1, 2), None),
        ] {
            let ours = hello(ours.0, ours.1);
            let theirs = Hello {
                features: Features(u64::MAX),
                ..hello(theirs.0, theirs.1)
            };
            for (one, two) in [(ours, theirs), (theirs, ours)] {
                assert_eq!(negotiate(&one, &two).ok(), expected);
            }
        }
        assert_eq!(Versions::new(0, 1), None);
        assert_eq!(Versions::new(2, 1), None);
    }

    #[test]
    fn another_migration_or_role_is_refused() {
        let ours = hello(1, 1);
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
        let text = format!("{:?}", hello(1, 1));
        assert!(text.contains("MigrationId(secret)"), "{text}");
        assert!(!text.contains("7, 7"), "{text}");
    }
}
